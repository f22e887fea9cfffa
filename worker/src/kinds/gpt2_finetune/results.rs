//! The files that a job leaves: a folder that transformers loads.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use ringtune_shared::{files::write_atomically, state::TensorInfo};
use serde_json::{Value, json};

use super::{
    language_state::LanguageState,
    tensors::{BEST, MODEL, Tensors},
};
use crate::{
    output::{
        self, canonical_json,
        language_card::{self, Chosen},
        language_model, model_card,
        read_back::{check_text, different},
    },
    rank::Error,
    rank_state::LargeTensors as _,
    train::Selection,
    training::StepJudged,
};

/// The model after the last step, of a job whose result is the one with the lowest validation loss, also where these are the
/// same: a file of this name in a folder with earlier results would be taken for this job's.
const LAST_MODEL: &str = "model-last.safetensors";
/// With one of these a text becomes tokens.
const TOKENIZERS: [&str; 2] = ["tokenizer.json", "vocab.json"];
/// Bytes of a tokenizer's file at most.
const LARGEST_TOKENIZER_FILE: u64 = 64 << 20;

/// What is learned: handles on it, good until the next step is taken.
#[derive(Clone, Debug)]
pub(crate) struct LearnedModel {
    tensors: Tensors,
    /// Where the job's result is another state's than the last one: its step and its loss.
    best: Option<(u64, f32)>,
    /// The last state is the best one.
    last_is_best: Option<f32>,
}

impl LearnedModel {
    /// `judged`: with what was found out after the last step.
    pub(super) fn of(state: &LanguageState, judged: &Selection) -> Self {
        let best = judged.best().filter(|_| state.keeps_best);
        let kept = state.selection.best().map(|best| best.step);
        // Not in a file yet: it is what the engine has.
        let is_last = best.is_some_and(|best| Some(best.step) != kept);
        Self {
            tensors: state.tensors.clone(),
            best: best.filter(|_| !is_last).map(|best| (best.step, best.loss)),
            last_is_best: best.filter(|_| is_last).map(|best| best.loss),
        }
    }

    /// The step of the job's result, where that is not the last state.
    pub(super) fn best_step(&self) -> Option<u64> {
        self.best.map(|(step, _)| step)
    }

    /// The parameters, each with its number among the lent tensors and its name in the model: the best ones, or those of
    /// now.
    fn parameters(&self, prefix: &str) -> Vec<(usize, TensorInfo)> {
        let all = self.tensors.tensors().iter().enumerate();
        all.filter_map(|(number, tensor)| {
            let name = tensor.name().strip_prefix(prefix)?;
            let renamed = TensorInfo::new(name, tensor.dtype(), tensor.shape().to_vec()).ok()?;
            Some((number, renamed))
        })
        .collect()
    }
}

/// Writes the files of one job.
#[derive(Clone, Debug)]
pub(super) struct Results {
    /// config.json.
    pub(super) config: String,
    /// The folder that the tokenizer's files are in.
    pub(super) tokenizer: PathBuf,
    /// Those that go into the model's folder as they are.
    pub(super) copied: Vec<String>,
    /// Where the bits come from, for the model's own file: no time, path or ring size.
    pub(super) facts: Value,
    /// The result is the model with the lowest validation loss.
    pub(super) select_best: bool,
}

impl Results {
    /// The job's results. Adds the names of the files that are good.
    pub(super) async fn write(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: LearnedModel,
        names: &mut Vec<String>,
    ) -> Result<(), Error> {
        let (this, folder) = (self.clone(), folder.to_owned());
        let write = move || {
            let mut names = Vec::new();
            let written = this.write_all(&folder, last, &learned, &mut names);
            (written, names)
        };
        let (written, good) = ringtune_shared::tasks::spawn_blocking(write).await?;
        names.extend(good);
        Ok(written?)
    }

    /// Blocks.
    fn write_all(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: &LearnedModel,
        names: &mut Vec<String>,
    ) -> Result<(), output::Error> {
        let mut model = |name: &str, prefix: &str, (step, loss): (u64, Option<f32>)| {
            self.write_model(&folder.join(name), learned.parameters(prefix), &learned.tensors, (step, loss))?;
            names.push(name.to_owned());
            Ok::<_, output::Error>(())
        };
        let of_last = (last.step, learned.last_is_best.or(last.validation_loss));
        match learned.best {
            Some((step, loss)) if step != last.step => {
                model(language_model::FILE_NAME, BEST, (step, Some(loss)))?;
                model(LAST_MODEL, MODEL, of_last)?;
            }
            _ => {
                model(language_model::FILE_NAME, MODEL, of_last)?;
                let [file, last_file] = [language_model::FILE_NAME, LAST_MODEL].map(|name| folder.join(name));
                match self.select_best.then(|| link(&file, &last_file)) {
                    None => (),
                    Some(Ok(())) => names.push(LAST_MODEL.to_owned()),
                    // Not every file system has links.
                    Some(Err(_)) => model(LAST_MODEL, MODEL, of_last)?,
                }
            }
        }
        for name in &self.copied {
            copy(&self.tokenizer.join(name), &folder.join(name))?;
            names.push(name.clone());
        }
        let of_result = learned.best.map_or(of_last, |(step, loss)| (step, Some(loss)));
        let card = Chosen {
            step: of_result.0,
            validation_loss: of_result.1,
            has_tokenizer: self.copied.iter().any(|name| TOKENIZERS.contains(&name.as_str())),
        };
        language_card::write(&folder.join(model_card::FILE_NAME), &self.facts, card)?;
        names.push(model_card::FILE_NAME.to_owned());
        // A folder with a config is a whole model.
        let config = folder.join(language_model::CONFIG_NAME);
        write_atomically(&config, self.config.as_bytes())
            .map_err(|error| output::Error::writing(&config, error.cause))?;
        check_text(&config, &self.config)?;
        names.push(language_model::CONFIG_NAME.to_owned());
        Ok(())
    }

    fn write_model(
        &self,
        file: &Path,
        parameters: Vec<(usize, TensorInfo)>,
        tensors: &Tensors,
        (step, loss): (u64, Option<f32>),
    ) -> Result<(), output::Error> {
        let (numbers, parameters): (Vec<usize>, Vec<TensorInfo>) = parameters.into_iter().unzip();
        let mut facts = self.facts.clone();
        if let Value::Object(facts) = &mut facts {
            facts.insert("step".to_owned(), json!(step));
            facts.insert("validation_loss".to_owned(), json!(loss.map(|loss| loss.to_string())));
        }
        let read = |number: usize, offset: u64, into: &mut [u8]| {
            tensors.fill(numbers.get(number).copied().unwrap_or(usize::MAX), offset, into)
        };
        language_model::write(file, &parameters, &canonical_json(&facts), &read)
    }
}

/// Gives a file that is not written to any more another name, in the place of whatever had it: gigabytes are on the disk once.
fn link(file: &Path, name: &Path) -> std::io::Result<()> {
    match fs::remove_file(name) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => fs::hard_link(file, name),
    }
}

/// Copies a small file, and reads the copy back.
fn copy(from: &Path, to: &Path) -> Result<(), output::Error> {
    let unreadable = |error: std::io::Error| different(from, error.to_string());
    let file = File::open(from).map_err(unreadable)?;
    let mut bytes = Vec::new();
    let read = file.take(LARGEST_TOKENIZER_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if read as u64 > LARGEST_TOKENIZER_FILE {
        return Err(different(from, format!("it has more than {LARGEST_TOKENIZER_FILE} bytes")));
    }
    write_atomically(to, &bytes).map_err(|error| output::Error::writing(to, error.cause))?;
    match std::fs::read(to) {
        Ok(found) if found == bytes => Ok(()),
        Ok(_) => Err(different(to, "it is not what was written".to_owned())),
        Err(error) => Err(different(to, error.to_string())),
    }
}

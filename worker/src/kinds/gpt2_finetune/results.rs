//! The files that a job leaves: a folder that transformers loads.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use ringtune_shared::state::TensorInfo;
use serde_json::{Value, json};

use crate::{
    output::{
        self, canonical_json,
        language_card::{self, Chosen},
        language_model, model_card,
        read_back::{self, different},
    },
    parameters::{LearnedParameters, Which, write_results},
    rank::Error,
    training::StepJudged,
};

/// The model after the last step, of a job whose result is the one with the lowest validation loss, also where these are the
/// same: a file of this name in a folder with earlier results would be taken for this job's.
const LAST_MODEL: &str = "model-last.safetensors";
/// With one of these a text becomes tokens.
const TOKENIZERS: [&str; 2] = ["tokenizer.json", "vocab.json"];
/// Bytes of a tokenizer's file at most.
const LARGEST_TOKENIZER_FILE: u64 = 64 << 20;

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
        learned: LearnedParameters,
        names: &mut Vec<String>,
    ) -> Result<(), Error> {
        let (this, folder) = (self.clone(), folder.to_owned());
        write_results(names, move |names| this.write_all(&folder, last, &learned, names)).await
    }

    /// Blocks.
    fn write_all(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: &LearnedParameters,
        names: &mut Vec<String>,
    ) -> Result<(), output::Error> {
        let mut model = |name: &str, which: Which, of: StepJudged| {
            self.write_model(&folder.join(name), learned, which, of)?;
            names.push(name.to_owned());
            Ok::<_, output::Error>(())
        };
        let (of_last, best) = learned.judged(last);
        match best {
            Some(best) if best.step != last.step => {
                model(language_model::FILE_NAME, Which::Best, best)?;
                model(LAST_MODEL, Which::Last, of_last)?;
            }
            _ => {
                model(language_model::FILE_NAME, Which::Last, of_last)?;
                let [file, last_file] = [language_model::FILE_NAME, LAST_MODEL].map(|name| folder.join(name));
                match self.select_best.then(|| link(&file, &last_file)) {
                    None => (),
                    Some(Ok(())) => names.push(LAST_MODEL.to_owned()),
                    // Not every file system has links.
                    Some(Err(_)) => model(LAST_MODEL, Which::Last, of_last)?,
                }
            }
        }
        for name in &self.copied {
            copy(&self.tokenizer.join(name), &folder.join(name))?;
            names.push(name.clone());
        }
        let StepJudged { step, validation_loss, .. } = best.unwrap_or(of_last);
        let card = Chosen {
            step,
            validation_loss,
            has_tokenizer: self.copied.iter().any(|name| TOKENIZERS.contains(&name.as_str())),
        };
        language_card::write(&folder.join(model_card::FILE_NAME), &self.facts, card)?;
        names.push(model_card::FILE_NAME.to_owned());
        // A folder with a config is a whole model.
        let config = folder.join(language_model::CONFIG_NAME);
        read_back::write(&config, self.config.as_bytes())?;
        names.push(language_model::CONFIG_NAME.to_owned());
        Ok(())
    }

    fn write_model(
        &self,
        file: &Path,
        learned: &LearnedParameters,
        which: Which,
        StepJudged { step, validation_loss: loss, .. }: StepJudged,
    ) -> Result<(), output::Error> {
        let (numbers, parameters): (Vec<usize>, Vec<TensorInfo>) =
            learned.parameters(which).into_iter().unzip();
        let mut facts = self.facts.clone();
        if let Value::Object(facts) = &mut facts {
            facts.insert("step".to_owned(), json!(step));
            facts.insert("validation_loss".to_owned(), json!(loss.map(|loss| loss.to_string())));
        }
        let read = |number: usize, offset: u64, into: &mut [u8]| {
            learned.read(numbers.get(number).copied().unwrap_or(usize::MAX), offset, into)
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
    read_back::write(to, &bytes)
}

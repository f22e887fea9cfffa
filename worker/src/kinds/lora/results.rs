//! The files of what was learned: the adapters, for diffusers and for kohya's scripts, and the model card.

use std::{borrow::Cow, collections::BTreeMap, path::Path, sync::Arc};

use ringtune_shared::{
    embedding::FileNames,
    floats::FloatKind,
    job::{OrdersSpec, kinds::lora::LoraSpec},
    lora::{Base, Factor, Format, LoraFile, Pair},
    state::{Metadata, TensorInfo},
};
use serde_json::{Value, json};

use crate::{
    engine::{AdaptableLayer, Adapter, LEARNED_ROWS, ModelInfo},
    kinds::pictures::NetworkResults,
    lora_layers::kind_of,
    output::{
        self, Concept, EmbeddingFacts, canonical_json, embeds,
        lora_card::{self, Chosen},
        model_card,
        read_back::{self, different},
    },
    parameters::{LearnedParameters, Which},
    training::{StepJudged, say_orders},
};

/// What diffusers looks for, without its end.
const DIFFUSERS: &str = "pytorch_lora_weights";

/// Writes the files of one job.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    adapters: Arc<Vec<(Adapter, AdaptableLayer)>>,
    base: Base,
    /// The file that kohya's scripts, AUTOMATIC1111 and ComfyUI take, by the job's name.
    kohya: String,
    /// Where the bits come from: no time, path or ring size.
    facts: Arc<Value>,
    /// The result is the state with the lowest validation loss.
    select_best: bool,
    /// The result is the average of what is learned.
    keeps_average: bool,
    /// What is learned beside.
    words: Option<LearnedWords>,
}

/// Words whose rows are learned beside adapters.
#[derive(Clone, Debug)]
pub(super) struct LearnedWords {
    concepts: Arc<Vec<Concept>>,
    facts: Arc<EmbeddingFacts>,
}

impl LearnedWords {
    pub(super) fn new(concepts: Vec<Concept>, facts: EmbeddingFacts) -> Self {
        Self { concepts: Arc::new(concepts), facts: Arc::new(facts) }
    }

    /// Writes the rows of each word, as a state has them, into the file that `name` says. Adds the names of the files that are
    /// good. Blocks.
    fn write(
        &self,
        folder: &Path,
        name: impl Fn(&FileNames) -> String,
        (which, judged): (Which, &StepJudged),
        learned: &LearnedParameters,
        names: &mut Vec<String>,
    ) -> Result<(), output::Error> {
        let parameters = learned.parameters(which).into_iter();
        let Some((number, info)) = parameters.into_iter().find(|(_, info)| info.name() == LEARNED_ROWS)
        else {
            return Err(different(folder, format!("there are no numbers of {LEARNED_ROWS}")));
        };
        let rows = factor(folder, learned, number, &info)?;
        let rows = rows.kind.widened(&rows.bytes);
        for mut learned in Concept::split(&self.concepts, &rows, judged.step) {
            learned.validation_loss = judged.validation_loss;
            let name = name(&learned.concept.files);
            embeds::write(&folder.join(&name), &learned, &self.facts)?;
            names.push(name);
        }
        Ok(())
    }
}

impl Results {
    pub(super) fn new(
        name: &str,
        job: &LoraSpec,
        model: &ModelInfo,
        adapters: Vec<(Adapter, AdaptableLayer)>,
        facts: Value,
        words: Option<LearnedWords>,
    ) -> Self {
        let base = Base::of_text_width(model.text_width);
        let select_best = job.train.validation.select_best;
        Self {
            adapters: Arc::new(adapters),
            base,
            kohya: file_name(name),
            facts: Arc::new(facts),
            select_best,
            keeps_average: job.denoiser.use_ema,
            words,
        }
    }

    /// Writes a file and reads it back. Blocks.
    fn write_adapters(
        &self,
        file: &Path,
        format: Format,
        (which, judged): (Which, &StepJudged),
        learned: &LearnedParameters,
    ) -> Result<(), output::Error> {
        // 1. The numbers, which are none of a broken training.
        let mut factors = BTreeMap::new();
        for (number, info) in learned.parameters(which) {
            factors.insert(info.name().to_owned(), factor(file, learned, number, &info)?);
        }
        let missing = |name: &str| different(file, format!("there are no numbers of {name}"));
        let mut modules = BTreeMap::new();
        for (adapter, layer) in self.adapters.iter() {
            let mut take = |name: String| factors.remove(&name).ok_or_else(|| missing(&name));
            let (down, up) = (take(adapter.down())?, take(adapter.up())?);
            let kind = kind_of(layer.shape).ok_or_else(|| missing(&layer.name))?;
            let (rank, alpha) = (adapter.rank, adapter.alpha);
            let dora_scale = if adapter.dora { Some(take(adapter.magnitude())?) } else { None };
            modules.insert(adapter.layer.clone(), Pair { kind, rank, alpha, down, up, dora_scale });
        }
        // 2. The file.
        let written = LoraFile { base: self.base, format, modules, metadata: self.metadata(judged) };
        let mut bytes = Vec::new();
        let failed = |error: ringtune_shared::lora::LoraError| output::Error::Format {
            file: file.to_path_buf(),
            problem: error.to_string(),
        };
        written.write(format, &mut bytes).map_err(failed)?;
        read_back::write(file, &bytes)
    }

    /// What a file says of itself.
    fn metadata(&self, judged: &StepJudged) -> Metadata {
        let mut facts = (*self.facts).clone();
        if let Value::Object(facts) = &mut facts {
            facts.insert("step".to_owned(), json!(judged.step));
            let loss = judged.validation_loss.map(|loss| loss.to_string());
            facts.insert("validation_loss".to_owned(), json!(loss));
        }
        let fact = |name: &str| self.facts.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let entries = [
            ("format", "pt".to_owned()),
            ("ringtune", canonical_json(&facts)),
            ("ss_sd_model_name", fact("base_model")),
            ("ss_steps", judged.step.to_string()),
        ];
        entries.map(|(key, text)| (key.to_owned(), text)).into()
    }
}

impl NetworkResults for Results {
    /// The adapters, and learned words.
    fn amend(&mut self, orders: &OrdersSpec) {
        say_orders(&mut Arc::make_mut(&mut self.facts)["job"], orders);
        if let Some(words) = &mut self.words {
            say_orders(&mut Arc::make_mut(&mut words.facts).job, orders);
        }
    }

    fn write_step(
        &self,
        folder: &Path,
        judged: &StepJudged,
        learned: &LearnedParameters,
    ) -> Result<Vec<String>, output::Error> {
        let name = format!("{DIFFUSERS}-steps-{}.safetensors", judged.step);
        let state = (Which::Last, judged);
        self.write_adapters(&folder.join(&name), Format::Diffusers, state, learned)?;
        let mut names = vec![name];
        if let Some(words) = &self.words {
            words.write(folder, |files| files.at_step(judged.step), state, learned, &mut names)?;
        }
        Ok(names)
    }

    fn write_all(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: &LearnedParameters,
        names: &mut Vec<String>,
    ) -> Result<(), output::Error> {
        let (of_last, best) = learned.judged(last);
        let chosen = best.map_or((Which::Last, of_last), |best| (Which::Best, best));
        let mut files = vec![
            (format!("{DIFFUSERS}.safetensors"), Format::Diffusers, chosen),
            (self.kohya.clone(), Format::Kohya, chosen),
        ];
        if self.select_best {
            files.push((format!("{DIFFUSERS}-last.safetensors"), Format::Diffusers, (Which::Last, of_last)));
        }
        if self.keeps_average {
            files.push((
                format!("{DIFFUSERS}-without-ema.safetensors"),
                Format::Diffusers,
                (Which::Plain, of_last),
            ));
        }
        for (name, format, (which, judged)) in files {
            self.write_adapters(&folder.join(&name), format, (which, &judged), learned)?;
            names.push(name);
        }
        if let Some(words) = &self.words {
            words.write(folder, FileNames::diffusers, (chosen.0, &chosen.1), learned, names)?;
            if self.select_best {
                words.write(folder, FileNames::last, (Which::Last, &of_last), learned, names)?;
            }
        }
        let (_, StepJudged { step, validation_loss, .. }) = chosen;
        let words = self.words.iter().flat_map(|words| words.concepts.iter());
        let words =
            words.map(|concept| (concept.placeholder_token.clone(), concept.files.diffusers())).collect();
        let card = Chosen { step, validation_loss, kohya: &self.kohya, adapters: self.adapters.len(), words };
        lora_card::write(&folder.join(model_card::FILE_NAME), &self.facts, card)?;
        names.push(model_card::FILE_NAME.to_owned());
        Ok(())
    }
}

/// A parameter's numbers.
///
/// # Errors
/// They cannot be read, or one is not finite.
fn factor(
    file: &Path,
    learned: &LearnedParameters,
    number: usize,
    info: &TensorInfo,
) -> Result<Factor<'static>, output::Error> {
    let mut bytes = vec![0; usize::try_from(info.bytes()).unwrap_or(usize::MAX)];
    learned.read(number, 0, &mut bytes).map_err(|error| different(file, error.to_string()))?;
    let broken = |number: &[u8; 4]| !f32::from_le_bytes(*number).is_finite();
    if bytes.as_chunks::<4>().0.iter().any(broken) {
        return Err(output::Error::Broken { file: file.to_path_buf(), tensor: info.name().to_owned() });
    }
    Ok(Factor { kind: FloatKind::F32, bytes: Cow::Owned(bytes) })
}

/// A job's name as that of a file, whatever it is.
fn file_name(name: &str) -> String {
    let fits = |letter: char| letter.is_alphanumeric() || "-_.".contains(letter);
    let plain: String = name.chars().map(|letter| if fits(letter) { letter } else { '_' }).collect();
    let plain = plain.trim_matches('.');
    let plain = if plain.is_empty() || plain.starts_with(DIFFUSERS) { "lora" } else { plain };
    format!("{plain}.safetensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_name_becomes_that_of_a_file() {
        for (name, file) in [
            ("lora", "lora.safetensors"),
            ("my toy/2", "my_toy_2.safetensors"),
            ("..", "lora.safetensors"),
            ("Blümchen-1.5", "Blümchen-1.5.safetensors"),
            ("pytorch_lora_weights", "lora.safetensors"),
        ] {
            assert_eq!(file_name(name), file);
        }
    }
}

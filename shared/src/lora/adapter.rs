//! `lora_adapter_metadata`: the JSON in which diffusers keeps ranks and alphas, as PEFT's `LoraConfig` has them.
//!
//! Without it, diffusers takes alpha to be the rank. Source: diffusers, `loaders/lora_base.py`; PEFT, `LoraConfig`.

use serde_json::{Map, Value, json};

use super::{LoraError, LoraFile, Pair};

/// The entry of a header's metadata.
pub(super) const ENTRY: &str = "lora_adapter_metadata";

/// A module's name within its component. CLIP is flat in newer transformers: what ends with this fits both.
fn within(module: &str) -> Option<(&str, &str)> {
    let (component, name) = module.split_once('.')?;
    Some((component, name.strip_prefix("text_model.").unwrap_or(name)))
}

/// What is written of this file's modules.
pub(super) fn written(file: &LoraFile<'_>) -> String {
    let mut all = Map::new();
    for component in ["unet", "text_encoder"] {
        let own = || {
            let modules = file.modules.iter().filter_map(|(module, pair)| Some((within(module)?, pair)));
            modules.filter(move |((of, _), _)| *of == component).map(|((_, name), pair)| (name, pair))
        };
        let Some((_, first)) = own().next() else { continue };
        let differing = |value: fn(&Pair<'_>) -> Value| -> Map<String, Value> {
            let pairs = own().filter(|(_, pair)| value(pair) != value(first));
            pairs.map(|(name, pair)| (name.to_owned(), value(pair))).collect()
        };
        let (rank, alpha) = (|pair: &Pair<'_>| json!(pair.rank), |pair: &Pair<'_>| json!(pair.alpha));
        let names: Vec<&str> = own().map(|(name, _)| name).collect();
        for (entry, value) in [
            ("r", rank(first)),
            ("lora_alpha", alpha(first)),
            ("rank_pattern", differing(rank).into()),
            ("alpha_pattern", differing(alpha).into()),
            ("target_modules", names.into()),
            ("use_dora", own().any(|(_, pair)| pair.dora_scale.is_some()).into()),
        ] {
            all.insert(format!("{component}.{entry}"), value);
        }
    }
    Value::from(all).to_string()
}

/// What a file says of alphas.
pub(super) struct Adapter(Map<String, Value>);

impl Adapter {
    /// # Errors
    /// It is not a JSON object.
    pub(super) fn parse(text: &str) -> Result<Self, LoraError> {
        serde_json::from_str(text).map(Self).map_err(|error| LoraError::Adapter(error.to_string()))
    }

    /// A module's alpha, if it has one.
    ///
    /// # Errors
    /// It is there in a way that is not understood, or scales otherwise than by alpha / rank.
    pub(super) fn alpha(&self, module: &str) -> Result<Option<f64>, LoraError> {
        let Some((component, name)) = within(module) else { return Ok(None) };
        let entry = |key: &str| self.0.get(&format!("{component}.{key}"));
        if entry("use_rslora") == Some(&Value::Bool(true)) {
            let problem = "it scales by alpha / √rank (use_rslora), which other formats cannot say";
            return Err(LoraError::Adapter(problem.to_owned()));
        }
        let mut found = (0, entry("lora_alpha"));
        for (pattern, value) in entry("alpha_pattern").and_then(Value::as_object).into_iter().flatten() {
            // A regular expression for the end of a name. What programs write is a name, mostly.
            let plain = pattern.trim_start_matches('^').trim_end_matches('$').replace("\\.", ".");
            if plain.contains(|letter: char| !letter.is_alphanumeric() && !"._".contains(letter)) {
                let problem = format!("alpha_pattern has {pattern:.100?}; only names of modules are read");
                return Err(LoraError::Adapter(problem));
            }
            let plain = plain.strip_prefix("text_model.").unwrap_or(&plain);
            let fits = name == plain || name.strip_suffix(plain).is_some_and(|rest| rest.ends_with('.'));
            if fits && plain.len() > found.0 {
                found = (plain.len(), Some(value));
            }
        }
        let number = |value: &Value| {
            let wrong = || LoraError::Adapter(format!("the alpha of {module} is not a number: {value:.100}"));
            value.as_f64().ok_or_else(wrong)
        };
        found.1.map(number).transpose()
    }
}

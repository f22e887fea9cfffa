//! `[model]`.

use super::{Check, limits};
use crate::job::{
    CommonSpec, ModelDraft, ModelLocation, ModelSpec, NotAChoice, PredictionType,
    model_location::check_variant,
    text::{printable, scheme, shortened},
};

impl Check {
    /// The model's location and files.
    pub(super) fn model(&mut self, draft: ModelDraft) -> ModelSpec {
        const WANTED: &str =
            "a folder in diffusers layout, a .safetensors file, hf://ORG/NAME or s3://BUCKET/PREFIX";
        let before = self.violations.len();
        let base = self.required("model.base", draft.base, WANTED);
        let (revision, variant) = (draft.revision.unwrap_or_default(), draft.variant.unwrap_or_default());
        if let Err(problem) = check_variant(&variant) {
            self.refuse("model.variant", problem);
        }
        if self.violations.len() == before
            && let Err((field, problem)) = ModelLocation::parse(&base, &revision)
        {
            self.refuse(field, problem);
        }
        let prediction_type = self.prediction_type(draft.prediction_type);
        let tokenizer = self.tokenizer(draft.tokenizer.unwrap_or_default());
        ModelSpec { base, revision, variant, prediction_type, tokenizer }
    }

    fn prediction_type(&mut self, given: Option<String>) -> Option<PredictionType> {
        let word = given.filter(|word| !word.is_empty())?;
        word.parse().map_err(|error: NotAChoice| self.refuse("model.prediction_type", error.to_string())).ok()
    }

    /// A folder; empty: the model's own.
    fn tokenizer(&mut self, folder: String) -> String {
        const FIELD: &str = "model.tokenizer";
        if let Err(problem) = printable(&folder, limits::PATH_CHARACTERS) {
            self.refuse(FIELD, problem);
        } else if let Some(scheme) = scheme(&folder) {
            let given = shortened(&folder);
            self.refuse(FIELD, format!("got {given:?}; {scheme}:// is not supported: give a folder"));
        }
        folder
    }

    /// Refuses keys that do not apply to language models.
    pub(in crate::job) fn model_of_words(&mut self, kind: &str, common: &CommonSpec) {
        let model = &common.model;
        if !common.debug.trace_dir.is_empty() {
            self.refuse("debug.trace_dir", format!("a job of kind {kind:?} writes no traces; leave it out"));
        }
        if model.base.ends_with(".safetensors") {
            let given = shortened(&model.base);
            let problem = format!(
                "got {given:?}; a job of kind {kind:?} needs more than one file: give the folder in transformers' layout"
            );
            self.refuse("model.base", problem);
        }
        if !model.variant.is_empty() {
            let problem = format!(
                "got {:?}; a job of kind {kind:?} reads model.safetensors: leave it out",
                model.variant
            );
            self.refuse("model.variant", problem);
        }
        if let Some(prediction) = model.prediction_type {
            let problem =
                format!("got {:?}; only models of pictures have one: leave it out", prediction.as_str());
            self.refuse("model.prediction_type", problem);
        }
        if !model.tokenizer.is_empty() {
            let given = shortened(&model.tokenizer);
            let problem =
                format!("got {given:?}; a language model has its own tokenizer beside it: leave it out");
            self.refuse("model.tokenizer", problem);
        }
    }
}

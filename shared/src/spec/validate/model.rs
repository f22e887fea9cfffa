//! `[model]`.

use super::Check;
use super::{limits, printable, scheme, shortened};
use crate::spec::model_location::check_variant;
use crate::spec::{JobSpec, ModelDraft, ModelLocation, ModelSpec, NotAChoice, PredictionType};

impl Check {
    /// A full pipeline is made of a checkpoint in diffusers layout, with its own tokenizer and scheduler.
    pub(super) fn pipeline_of_a_folder(&mut self, spec: &JobSpec) {
        let ModelSpec { base, variant, tokenizer, prediction_type, .. } = &spec.model;
        let is_folder = !ModelLocation::is_path(base) || !base.ends_with(".safetensors");
        let is_plain = variant.is_empty() && tokenizer.is_empty() && prediction_type.is_none();
        if spec.train.save_as_full_pipeline && !(is_folder && is_plain) {
            let problem = "got true; allowed where model.base is no single file, and without model.variant, model.tokenizer \
                           and model.prediction_type";
            self.refuse("train.save_as_full_pipeline", problem);
        }
    }

    /// Where the checkpoint is, and which of its files.
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

    /// A folder; empty: the checkpoint's own.
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
}

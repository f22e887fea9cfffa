//! `[model]`.

use super::Check;
use crate::spec::model_location::check_variant;
use crate::spec::{JobSpec, ModelDraft, ModelLocation, ModelSpec};

impl Check {
    /// A full pipeline is made beside the job's other files, out of a folder of that machine.
    pub(super) fn pipeline_of_a_folder(&mut self, spec: &JobSpec) {
        let is_folder = ModelLocation::is_path(&spec.model.base) && spec.model.variant.is_empty();
        if spec.train.save_as_full_pipeline && !is_folder {
            let problem = "got true; allowed where model.base is a folder and without model.variant";
            self.refuse("train.save_as_full_pipeline", problem);
        }
    }

    /// Where the checkpoint is, and which of its files.
    pub(super) fn model(&mut self, draft: ModelDraft) -> ModelSpec {
        const WANTED: &str = "a folder in diffusers layout, hf://ORG/NAME or s3://BUCKET/PREFIX";
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
        ModelSpec { base, revision, variant }
    }
}

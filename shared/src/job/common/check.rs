//! The checks of what jobs of all kinds have.

use super::{ClusterSpec, CommonSpec, ModelSpec};
use crate::{
    job::{
        Constraint, ModelLocation, NotAChoice, PredictionType, Topology,
        check::{Check, limits},
        model_location::check_variant,
        text::shortened,
    },
    names,
};

/// Constraints of a job.
const MOST_CONSTRAINTS: usize = 16;

/// Options by themselves.
impl Check {
    pub(super) fn base(&mut self, field: &str, given: Option<String>) -> String {
        const WANTED: &str =
            "a folder in diffusers layout, a .safetensors file, hf://ORG/NAME or s3://BUCKET/PREFIX";
        self.required(field, given, WANTED)
    }

    pub(super) fn variant(&mut self, field: &str, given: Option<String>) -> String {
        let variant = given.unwrap_or_default();
        if let Err(problem) = check_variant(&variant) {
            self.refuse(field, problem);
        }
        variant
    }

    pub(super) fn prediction_type(&mut self, field: &str, given: Option<String>) -> Option<PredictionType> {
        let word = given.filter(|word| !word.is_empty())?;
        word.parse().map_err(|error: NotAChoice| self.refuse(field, error.to_string())).ok()
    }

    pub(super) fn output_url(&mut self, field: &str, given: Option<String>) -> String {
        let url = given.unwrap_or_default();
        let problem = match ModelLocation::parse(&url, "") {
            Ok(ModelLocation::S3(_)) => None,
            Ok(_) if url.is_empty() => None,
            Ok(_) => Some(format!("got {:?}; allowed: s3://BUCKET/PREFIX", shortened(&url))),
            Err((_, problem)) => Some(problem),
        };
        if let Some(problem) = problem {
            self.refuse(field, problem);
        }
        url
    }

    pub(super) fn constraints(&mut self, field: &str, given: Option<Vec<String>>) -> Vec<String> {
        let constraints = given.unwrap_or_default();
        if constraints.len() > MOST_CONSTRAINTS {
            self.refuse(field, format!("got {}; allowed: at most {MOST_CONSTRAINTS}", constraints.len()));
        }
        for text in &constraints {
            if let Err(problem) = text.parse::<Constraint>() {
                self.refuse(field, problem);
            }
        }
        constraints
    }

    pub(super) fn topology(&mut self, field: &str, given: Option<String>) -> String {
        let topology = given.unwrap_or_default();
        if !topology.is_empty()
            && let Err(problem) = topology.parse::<Topology>()
        {
            self.refuse(field, problem);
        }
        topology
    }

    pub(in crate::job) fn name(&mut self, given: Option<String>, default: &str) -> String {
        let Some(name) = given.filter(|name| !name.is_empty()) else { return default.to_owned() };
        if let Err(problem) = names::check(&name, limits::NAME_CHARACTERS) {
            self.refuse("name", problem);
        } else if name.trim() != name {
            self.refuse("name", format!("got {name:?}; allowed: no space at either end"));
        }
        name
    }
}

impl CommonSpec {
    /// What is checked of several options together.
    pub(in crate::job) fn check(&self, check: &mut Check) {
        let model = &self.model;
        if !check.has_refused("model.base")
            && !check.has_refused("model.variant")
            && let Err((field, problem)) = ModelLocation::parse(&model.base, &model.revision)
        {
            check.refuse(field, problem);
        }
        let ClusterSpec { world_size, min_world_size, .. } = self.cluster;
        if min_world_size > world_size && !check.has_refused("cluster.world_size") {
            check.refuse(
                "cluster.min_world_size",
                format!("got {min_world_size}; allowed: 1 to {world_size}, the job's world_size"),
            );
        }
    }

    /// Refuses what a job with a language model has nothing to do with.
    pub(in crate::job) fn check_language_model(&self, check: &mut Check, kind: &str) {
        let ModelSpec { base, variant, prediction_type, tokenizer, .. } = &self.model;
        if !self.debug.trace_dir.is_empty() {
            check.refuse("debug.trace_dir", format!("a job of kind {kind:?} writes no traces; leave it out"));
        }
        if base.ends_with(".safetensors") {
            let given = shortened(base);
            let problem = format!(
                "got {given:?}; a job of kind {kind:?} needs more than one file: give the folder in transformers' layout"
            );
            check.refuse("model.base", problem);
        }
        if !variant.is_empty() {
            let problem =
                format!("got {variant:?}; a job of kind {kind:?} reads model.safetensors: leave it out");
            check.refuse("model.variant", problem);
        }
        if let Some(prediction) = prediction_type {
            let problem =
                format!("got {:?}; only models of pictures have one: leave it out", prediction.as_str());
            check.refuse("model.prediction_type", problem);
        }
        if !tokenizer.is_empty() {
            let given = shortened(tokenizer);
            let problem =
                format!("got {given:?}; a language model has its own tokenizer beside it: leave it out");
            check.refuse("model.tokenizer", problem);
        }
    }
}

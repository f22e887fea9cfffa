//! What everything else asks of a job's work, whatever its kind.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Activity;
use crate::{
    ids::ContentHash,
    job::{
        ClusterSpec, ContentUse, ImageUse, MixedPrecision, ModelLocation, PathUse, SpecError, steps::Steps,
    },
};

/// The facts of a job's work. The defaults are those of work without steps that reads nothing but its model; a kind says
/// what is otherwise.
pub(crate) trait Facts {
    /// See [`crate::job::JobSpec::mixed_precision`].
    fn mixed_precision(&self) -> MixedPrecision;

    /// See [`crate::job::JobSpec::activity`].
    fn activity(&self) -> Activity {
        Activity::Training
    }

    /// Whether its model is a language model: such a job has no option that is about models of pictures, and no traces.
    fn has_language_model(&self) -> bool {
        false
    }

    /// None: it has no steps.
    fn steps(&self) -> Option<Steps<'_>> {
        None
    }

    /// See [`crate::job::JobSpec::success`].
    fn success(&self, done: u64) -> String {
        self.steps().map(|steps| steps.success(done)).unwrap_or_default()
    }

    /// Where it goes on, to be changed; none: it has no steps.
    fn resume_from_mut(&mut self) -> Option<&mut String> {
        None
    }

    /// See [`crate::job::JobSpec::needs_image_count`].
    fn needs_image_count(&self) -> bool {
        false
    }

    /// See [`crate::job::JobSpec::count_steps`].
    ///
    /// # Errors
    /// No image, or more steps than a job may have.
    fn count_steps(&mut self, images: u64, cluster: &ClusterSpec) -> Result<(), SpecError> {
        let _ = (images, cluster);
        Ok(())
    }

    /// See [`crate::job::JobSpec::global_microbatches`].
    fn global_microbatches(&self, cluster: &ClusterSpec) -> u32 {
        cluster.world_size
    }

    /// See [`crate::job::JobSpec::state_interval`].
    fn state_interval(&self) -> u64 {
        1
    }

    /// The setting with which the number of ranks would decide no bit, where it decides some; see
    /// [`crate::job::JobSpec::ring_decides`].
    fn exact_instead(&self, cluster: &ClusterSpec) -> Option<&'static str> {
        let _ = cluster;
        None
    }

    /// See [`crate::job::JobSpec::warning`].
    fn warning(&self, cluster: &ClusterSpec) -> Option<String> {
        let _ = cluster;
        None
    }

    /// The uploaded contents that it names, with repetitions.
    fn contents(&self) -> Vec<(ContentUse, ContentHash)> {
        Vec::new()
    }

    /// The paths, URIs and addresses that it gives and a job file's folder may be the base of, by their fields' names, each
    /// with what it is for; those that are not given are empty.
    fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
        Vec::new()
    }

    /// What else than the model its ranks read from where it is, with the field's name, where that can be read.
    fn locations(&self) -> Vec<(&'static str, ModelLocation)> {
        Vec::new()
    }

    /// Its lists without a fixed length: the field, their bytes, and what to know of them.
    fn lists(&self) -> Vec<(String, usize, &'static str)> {
        Vec::new()
    }

    /// See [`crate::job::JobSpec::image_sources`].
    fn image_sources(&mut self) -> Vec<(String, &mut String)> {
        Vec::new()
    }

    /// See [`crate::job::JobSpec::image_uses`].
    fn image_uses(&self) -> Vec<ImageUse> {
        Vec::new()
    }

    /// See [`crate::job::JobSpec::learned_tokens`].
    fn learned_tokens(&self) -> Vec<String> {
        Vec::new()
    }

    /// See [`crate::job::JobSpec::drawn_embeddings`].
    fn drawn_embeddings(&self) -> &[String] {
        &[]
    }

    /// The same, to be changed.
    fn drawn_embeddings_mut(&mut self) -> &mut [String] {
        &mut []
    }

    /// See [`crate::job::JobSpec::wants_full_pipeline`].
    fn wants_full_pipeline(&self) -> bool {
        false
    }

    /// Whether an option that only some kinds have, by its full name, decides a bit of the result.
    fn decides(&self, option: &str) -> bool {
        let _ = option;
        true
    }

    /// What counts of several options together, by what is said to people of it.
    fn add_deciding(&self, cluster: &ClusterSpec, options: &mut BTreeMap<String, Value>) {
        let _ = (cluster, options);
    }
}

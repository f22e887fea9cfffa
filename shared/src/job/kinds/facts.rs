//! What everything else asks of a job's work, whatever its kind.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Activity;
use crate::{
    ids::ContentHash,
    job::{
        ClusterSpec, ContentUse, FilePlace, ImageUse, JobFile, MixedPrecision, ModelLocation, PathUse,
        SpecError,
        pictures::{
            self, DataSpec, DenoiserSpec, PromptSpec, TrainSpec,
            concepts::{ConceptSpec, InitializerEmbedding},
        },
        steps::Steps,
    },
    templates::use_captions,
};

/// The facts of a job's work. The defaults are those of work without steps that reads nothing but its model, or of work that
/// learns from pictures; a kind says what is otherwise.
pub(crate) trait Facts {
    /// `[data]` and `[train]` of a job that learns from pictures: their facts are its facts, where it says no others.
    fn pictures(&self) -> Option<(&DataSpec, &TrainSpec)> {
        None
    }

    /// The same, to be changed.
    fn pictures_mut(&mut self) -> Option<(&mut DataSpec, &mut TrainSpec)> {
        None
    }

    /// Steps of the optimizer that are one of the job, on each replica.
    fn local_steps(&self) -> u32 {
        1
    }

    /// See [`crate::job::JobSpec::mixed_precision`].
    fn mixed_precision(&self) -> MixedPrecision {
        self.pictures().map_or(MixedPrecision::No, |(_, train)| train.mixed_precision)
    }

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
        self.pictures().map(|(_, train)| train.steps())
    }

    /// See [`crate::job::JobSpec::success`].
    fn success(&self, done: u64) -> String {
        self.steps().map(|steps| steps.success(done)).unwrap_or_default()
    }

    /// Where it goes on, to be changed; none: it has no steps.
    fn resume_from_mut(&mut self) -> Option<&mut String> {
        self.pictures_mut().map(|(_, train)| &mut train.resume_from_checkpoint)
    }

    /// See [`crate::job::JobSpec::needs_image_count`].
    fn needs_image_count(&self) -> bool {
        self.pictures().is_some_and(|(_, train)| train.needs_image_count())
    }

    /// See [`crate::job::JobSpec::count_steps`].
    ///
    /// # Errors
    /// No image, or more steps than a job may have.
    fn count_steps(&mut self, images: u64, cluster: &ClusterSpec) -> Result<(), SpecError> {
        self.pictures_mut().map_or(Ok(()), |(_, train)| train.count_steps(images, cluster))
    }

    /// See [`crate::job::JobSpec::global_microbatches`].
    fn global_microbatches(&self, cluster: &ClusterSpec) -> u32 {
        self.pictures().map_or(cluster.world_size, |(_, train)| train.global_microbatches(cluster))
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
        self.pictures()?.1.warning()
    }

    /// The uploaded contents that it names, with repetitions.
    fn contents(&self) -> Vec<(ContentUse, ContentHash)> {
        let checkpoint = self.steps().map(|steps| (ContentUse::Checkpoint, steps.resume_from.to_owned()));
        let concepts = self.concepts();
        let own = self.pictures().filter(|_| concepts.is_empty());
        let folders = own.map(|(data, _)| data.folders()).unwrap_or_default();
        let folders = folders.into_iter().chain(concepts.iter().flat_map(ConceptSpec::folders));
        let masks = self.pictures().map(|(data, _)| data.masks.clone());
        let class = self.class_pictures().map(|(prompt, _)| prompt.class_images.clone());
        let pictures = folders.map(|(_, folder)| folder.images).chain(masks).chain(class);
        let pictures = pictures.map(|place| (ContentUse::Images, place));
        let embeddings = concepts.iter().map(|concept| concept.initializer_embedding.clone());
        let embeddings = embeddings.map(|place| (ContentUse::Embedding, place));
        let all = pictures
            .chain(embeddings)
            .chain(checkpoint)
            .filter_map(|(used, uri)| Some((used, ContentHash::from_uri(&uri).ok()?)));
        let initializer = match FilePlace::parse(self.initializer()) {
            Ok(FilePlace::Uploaded { hash, .. }) => Some((ContentUse::Embedding, hash)),
            _ => None,
        };
        all.chain(initializer).collect()
    }

    /// The paths, URIs and addresses that it gives and a job file's folder may be the base of, by their fields' names, each
    /// with what it is for; those that are not given are empty.
    fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
        let Some((data, train)) = self.pictures_mut() else { return Vec::new() };
        let pictures = data.all_places().into_iter().map(|(field, place)| (field, PathUse::Pictures, place));
        pictures.chain(train.checkpoint_place()).collect()
    }

    /// What else than the model its ranks read from where it is, with the field's name, where that can be read.
    fn locations(&self) -> Vec<(&'static str, ModelLocation)> {
        let source = self.pictures().and_then(|(data, _)| data.source_location());
        source.map(|location| ("data.source", location)).into_iter().collect()
    }

    /// Its lists without a fixed length: the field, their bytes, and what to know of them.
    fn lists(&self) -> Vec<(String, usize, &'static str)> {
        self.pictures().map(|(data, train)| pictures::lists(data, train)).unwrap_or_default()
    }

    /// See [`crate::job::JobSpec::image_sources`].
    fn image_sources(&mut self) -> Vec<(String, &mut String)> {
        self.pictures_mut().map(|(data, _)| data.sources()).unwrap_or_default()
    }

    /// See [`crate::job::JobSpec::image_uses`].
    fn image_uses(&self) -> Vec<ImageUse> {
        self.pictures().map(|(data, train)| data.uses(use_captions(&train.templates))).unwrap_or_default()
    }

    /// What there is to know of the pictures of a class, where it has some.
    fn class_pictures(&self) -> Option<(&PromptSpec, &DenoiserSpec)> {
        None
    }

    /// See [`crate::job::JobSpec::forget_class`].
    fn forget_class(&mut self) {}

    /// What words it teaches, in the order of their rows.
    fn concepts(&self) -> Vec<ConceptSpec> {
        Vec::new()
    }

    /// See [`crate::job::JobSpec::prompt_to_try`].
    fn prompt_to_try(&self) -> Option<String> {
        self.concepts().first().map(|concept| format!("a photo of {}", concept.placeholder_token))
    }

    /// See [`crate::job::JobSpec::initializer_embeddings`].
    fn initializer_embeddings(&mut self) -> Vec<InitializerEmbedding<'_>> {
        Vec::new()
    }

    /// The file that it starts from, as [`FilePlace`] reads it; empty: none.
    fn initializer(&self) -> &str {
        ""
    }

    /// See [`crate::job::JobSpec::files`].
    fn files(&mut self) -> Vec<JobFile<'_>> {
        Vec::new()
    }

    /// See [`crate::job::JobSpec::wants_full_pipeline`].
    fn wants_full_pipeline(&self) -> bool {
        self.pictures().is_some_and(|(_, train)| train.save_as_full_pipeline)
    }

    /// See [`crate::job::JobSpec::draws_unet`].
    fn draws_unet(&self) -> bool {
        false
    }

    /// See [`crate::job::JobSpec::trains_unet`].
    fn trains_unet(&self) -> bool {
        false
    }

    /// Whether an option that only some kinds have, by its full name, decides a bit of the result.
    fn decides(&self, option: &str) -> bool {
        self.pictures().is_none() || TrainSpec::decides(option)
    }

    /// What counts of several options together, by what is said to people of it.
    fn add_deciding(&self, cluster: &ClusterSpec, options: &mut BTreeMap<String, Value>) {
        if let Some((_, train)) = self.pictures() {
            train.add_deciding(cluster, options);
        }
    }
}

//! The job spec: what a user asks for, with every default filled in and every value checked.
//!
//! A job is what jobs of all kinds have in common, [`CommonSpec`], and the [`Work`] of its kind. It comes as TOML (people)
//! or over gRPC (programs). Both become a [`JobDraft`], in which everything may be missing, and [`JobSpec::from_draft`]
//! alone fills in the defaults and checks the values. What a [`JobSpec`] holds has been checked: by the checks of its day
//! where it was stored ([`JobSpec::from_stored`]), by today's otherwise.
//!
//! Everything that belongs to one kind stands in its folder under `kinds`; [`Work`] is where the kinds are registered.
//!
//! What a [`JobSpec`] holds may decide a bit of the result. Whose a job is and how urgent ([`QueueSpec`]) is beside it.

mod check;
mod choices;
mod common;
mod constraints;
mod contents;
mod error;
mod exchange;
mod file_place;
mod form;
pub mod kinds;
mod learning_rates;
mod model_location;
mod orders;
mod paths;
pub mod pictures;
mod queue;
mod read_toml;
mod reader;
mod resume_from;
mod section;
mod settings;
mod steps;
mod stored;
mod sweep;
#[cfg(test)]
pub(crate) mod tests;
mod text;

pub use check::limits;
pub use choices::{LrScheduler, MixedPrecision, NotAChoice, PredictionType, ReportTo};
pub use common::{
    ClusterDraft, ClusterSpec, CommonSpec, DebugDraft, DebugSpec, ModelDraft, ModelSpec, OutputDraft,
    OutputSpec,
};
pub use constraints::{Constraint, Topology};
pub use contents::ContentUse;
pub use error::{SpecError, Violation};
pub use exchange::SumOrder;
pub use file_place::{FilePlace, JobFile, Teaches};
pub use kinds::{Activity, JobDraft, JobKind, Work, generate::SCHEDULERS};
pub use learning_rates::LearningRates;
pub use model_location::{DEFAULT_REVISION, HubModel, ModelLocation, S3Model, check_variant, is_plain_name};
pub use orders::{LiveOrder, MOST_ORDERS, Order, OrdersDraft, OrdersSpec};
pub use paths::{JobPath, PathUse};
pub use queue::{
    HIGHEST_PRIORITY, JobRequest, QueueDraft, QueueSpec, check_label, check_label_key, check_labels,
};
pub use read_toml::{parse_job_file, parse_job_request, parse_job_toml, parse_job_toml_with};
pub use resume_from::{NotAResume, ResumeFrom};
pub use settings::Setting;
pub use stored::{STORED_VERSION, StoredSpecError};
pub use sweep::{MOST_POINTS, PointRequest, Requested, Rung, SweepRequest, rungs};

use std::{mem::take, sync::Arc};

use check::Check;
use kinds::{generate::GenerateDraft, gpt2_finetune::Gpt2Spec, textual_inversion::TextualInversionSpec};
use pictures::concepts::InitializerEmbedding;
use section::Spec;
use steps::Steps;

/// The use of a folder's pictures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageUse {
    /// How often each is shown while one of a folder with 1 is shown once.
    pub repeats: u32,
    /// The column of their captions in a metadata file, where captions stand in prompts; empty: "text".
    pub captions: Option<String>,
    /// How many there have to be, where those that are missing are drawn.
    pub drawn: Option<u32>,
}

/// Whether a text is the name of a section's field, as in "train.num_vectors" or "concepts[1].images".
pub fn is_field(text: &str) -> bool {
    let section = text.split(['.', '[']).next().unwrap_or_default();
    let is_name = text.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.[]".contains(letter));
    let is_section = ["model", "cluster", "debug", "output", "orders", "queue", "sweep"].contains(&section)
        || kinds::sections().any(|known| known == section);
    is_name && is_section && text.contains('.') && !text.contains("..")
}

/// A job as it will be run.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// Fields of all kinds.
    pub common: CommonSpec,
    /// The work.
    pub work: Work,
}

impl JobSpec {
    /// Fills in the defaults and checks every value; names all that is wrong, not only the first.
    pub fn from_draft(mut draft: JobDraft) -> Result<Self, SpecError> {
        let mut check = Check::default();
        let kind = kinds::check_kind(&mut check, draft.kind.take());
        let common = CommonSpec {
            name: check.name(draft.name.take(), kind.as_str()),
            model: Spec::checked(take(&mut draft.model), &mut check, "model"),
            cluster: Spec::checked(take(&mut draft.cluster), &mut check, "cluster"),
            debug: Spec::checked(take(&mut draft.debug), &mut check, "debug"),
            output: Spec::checked(take(&mut draft.output), &mut check, "output"),
            orders: Spec::checked(take(&mut draft.orders), &mut check, "orders"),
        };
        common.check(&mut check);
        let work = kinds::checked(kind, draft, &mut check, &common);
        let spec = Self { common, work };
        check.orders(&spec);
        check.whole_job(&spec);
        check.end(spec)
    }

    /// The draft that becomes this job: everything is given but what has no value.
    pub fn to_draft(&self) -> JobDraft {
        let CommonSpec { name, model, cluster, debug, output, orders } = &self.common;
        let mut draft = JobDraft {
            kind: Some(self.kind().as_str().to_owned()),
            name: Some(name.clone()),
            model: model.draft(),
            cluster: cluster.draft(),
            debug: debug.draft(),
            output: output.draft(),
            orders: orders.draft(),
            ..JobDraft::default()
        };
        // Earlier versions do not know these: they are sent where they say something.
        draft.model.tokenizer.take_if(|tokenizer| tokenizer.is_empty());
        draft.output.url.take_if(|url| url.is_empty());
        draft.orders.learning_rate.take_if(|rates| rates.is_empty());
        draft.cluster.constraints.take_if(|constraints| constraints.is_empty());
        draft.cluster.topology.take_if(|topology| topology.is_empty());
        self.work.fill(&mut draft);
        draft
    }

    /// The job as a job file that [`parse_job_toml`] reads back to the same spec.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// The kind of work.
    pub fn kind(&self) -> JobKind {
        self.work.kind()
    }

    /// None: it has no steps.
    pub(crate) fn steps(&self) -> Option<Steps<'_>> {
        let steps = self.work.facts().steps()?;
        let stop_after = self.common.orders.stop_after.unwrap_or(u64::MAX);
        Some(Steps { last: steps.total.min(stop_after), ..steps })
    }

    /// Whether its model is a language model.
    pub fn has_language_model(&self) -> bool {
        self.work.facts().has_language_model()
    }

    /// The last of its optimizer updates; 0 for a job that trains nothing, or while they are not known yet.
    pub fn total_steps(&self) -> u64 {
        self.steps().map_or(0, |steps| steps.last)
    }

    /// The ranks' precision.
    pub fn mixed_precision(&self) -> MixedPrecision {
        self.work.facts().mixed_precision()
    }

    /// M: parts of a step that ranks share out, whatever the ring's size; a job without steps has one for each rank.
    pub fn global_microbatches(&self) -> u32 {
        self.work.facts().global_microbatches(&self.common.cluster)
    }

    /// Steps of the optimizer that each microbatch's replica takes by itself in one step of the job; 1: the ranks exchange in each.
    pub fn local_steps(&self) -> u32 {
        self.work.facts().local_steps()
    }

    /// Samples of a step over all ranks; none, of work that learns from no pictures.
    pub fn pictures_per_step(&self) -> Option<u64> {
        let (_, train) = self.work.facts().pictures()?;
        Some(train.global_batch(&self.common.cluster) * u64::from(self.local_steps()))
    }

    /// The work, where it is textual inversion.
    pub fn textual_inversion(&self) -> Option<&TextualInversionSpec> {
        let Work::TextualInversion(work) = &self.work else { return None };
        Some(work)
    }

    /// As above, mutable.
    pub fn textual_inversion_mut(&mut self) -> Option<&mut TextualInversionSpec> {
        let Work::TextualInversion(work) = &mut self.work else { return None };
        Some(work)
    }

    /// The work, where it is GPT-2 finetuning.
    pub fn gpt2(&self) -> Option<&Gpt2Spec> {
        let Work::Gpt2Finetune(work) = &self.work else { return None };
        Some(work)
    }

    /// Whether the number of steps still has to follow from the number of images.
    pub fn needs_image_count(&self) -> bool {
        self.work.facts().needs_image_count()
    }

    /// Replaces a number of passes over the pictures by the number of steps that they take with `images` images; does
    /// nothing where the steps are known.
    ///
    /// # Errors
    /// No image, or more steps than a job may have.
    pub fn count_steps(&mut self, images: u64) -> Result<(), SpecError> {
        self.work.facts_mut().count_steps(images, &self.common.cluster)
    }

    /// An option that nobody refuses but that is without effect as it is given, in words.
    pub fn warning(&self) -> Option<String> {
        self.work.facts().warning(&self.common.cluster)
    }

    /// Whether the number of ranks in its ring decides bits of the result: then the bits are those of a ring of
    /// `cluster.world_size` only where no other one took a step.
    pub fn ring_decides(&self) -> bool {
        self.exact_instead().is_some()
    }

    /// The setting with which it would not, in a job where it does.
    pub fn exact_instead(&self) -> Option<&'static str> {
        self.work.facts().exact_instead(&self.common.cluster)
    }

    /// Whether that ring may be another one from step to step.
    pub fn ring_may_shrink(&self) -> bool {
        self.common.cluster.min_world_size < self.common.cluster.world_size
    }

    /// Locations of the model and tokens, from which ranks fetch or read, with their fields' names.
    pub fn locations(&self) -> Vec<(&'static str, ModelLocation)> {
        let model = self.common.model.location().ok().map(|location| ("model.base", location));
        model.into_iter().chain(self.work.facts().locations()).collect()
    }

    /// Locations of all pictures, by their fields' names.
    pub fn image_sources(&mut self) -> Vec<(String, &mut String)> {
        self.work.facts_mut().image_sources()
    }

    /// The use of each of [`JobSpec::image_sources`], in the same order.
    pub fn image_uses(&self) -> Vec<ImageUse> {
        self.work.facts().image_uses()
    }

    /// Takes its class away, if it has one.
    pub fn forget_class(&mut self) {
        self.work.facts_mut().forget_class();
    }

    /// The seed that pictures of its class are drawn by first.
    pub fn class_seed(&self) -> u64 {
        self.work.facts().pictures().map_or(0, |(_, train)| train.seed)
    }

    /// The job that draws so many pictures of the class of this one's; none: it has no class.
    ///
    /// # Errors
    /// A job that could not draw them.
    pub fn drawing_of_class(&self, count: u32, seed: u64) -> Option<Result<Self, SpecError>> {
        let facts = self.work.facts();
        let ((prompt, _), (_, train)) = facts.class_pictures().zip(facts.pictures())?;
        let side = Some(i64::from(train.resolution));
        let drawing = GenerateDraft {
            prompts: Some(vec![prompt.class_prompt.clone()]),
            count: Some(i64::from(count)),
            width: side,
            height: side,
            seed: i64::try_from(seed).ok(),
            mixed_precision: Some(train.mixed_precision.as_str().to_owned()),
            ..GenerateDraft::default()
        };
        let CommonSpec { model, cluster, .. } = &self.common;
        let draft = JobDraft {
            kind: Some(JobKind::Generate.as_str().to_owned()),
            name: Some("class pictures".to_owned()),
            generate: drawing,
            ..JobDraft::default()
        };
        let draft = JobDraft { model: model.draft(), cluster: cluster.draft(), ..draft };
        Some(Self::from_draft(draft))
    }

    /// The checkpoint to resume from, as [`crate::checkpoint::ResumeFrom`] reads it; empty: none.
    pub fn resume_from(&self) -> &str {
        self.steps().map(|steps| steps.resume_from).unwrap_or_default()
    }

    /// The option of [`JobSpec::resume_from`], by its full name; none for a job that has no steps.
    pub fn resume_option(&self) -> Option<&'static str> {
        self.steps().map(|steps| steps.resume_option)
    }

    /// As above, mutable; None for a job without steps.
    pub fn resume_from_mut(&mut self) -> Option<&mut String> {
        self.work.facts_mut().resume_from_mut()
    }

    /// Number of newest checkpoints that are kept; 0: all.
    pub fn checkpoints_total_limit(&self) -> u64 {
        self.steps().map_or(0, |steps| steps.checkpoints_total_limit)
    }

    /// Whether it may be over before its last step.
    pub fn may_stop_early(&self) -> bool {
        self.steps().is_some_and(|steps| steps.early_stop_patience > 0)
    }

    /// Whether the state with the lowest validation loss is its result.
    pub fn keeps_best(&self) -> bool {
        self.steps().is_some_and(|steps| steps.select_best)
    }

    /// After every so many steps, and after the last one, its ranks say the hash of their state.
    pub fn state_interval(&self) -> u64 {
        self.work.facts().state_interval()
    }

    /// Whether whoever takes its files home is to make a full pipeline of them.
    pub fn wants_full_pipeline(&self) -> bool {
        self.work.facts().wants_full_pipeline()
    }

    /// Whether all weights of the model's UNet are drawn: its files need none.
    pub fn draws_unet(&self) -> bool {
        self.work.facts().draws_unet()
    }

    /// Whether it leaves weights of its model's UNet, which take the place of the model's own.
    pub fn trains_unet(&self) -> bool {
        self.work.facts().trains_unet()
    }

    /// The embeddings that concepts start from, one of each.
    pub fn initializer_embeddings(&mut self) -> Vec<InitializerEmbedding<'_>> {
        self.work.facts_mut().initializer_embeddings()
    }

    /// The embeddings and LoRAs that it draws with or starts from, as [`FilePlace`] reads them.
    pub fn files(&mut self) -> Vec<JobFile<'_>> {
        self.work.facts_mut().files()
    }

    /// The words that it teaches, in the order of its files.
    pub fn learned_tokens(&self) -> Vec<String> {
        self.work.facts().concepts().into_iter().map(|concept| concept.placeholder_token).collect()
    }

    /// What to draw with what it learned, for people who try it; none: it learned nothing to draw with, or nobody knows.
    pub fn prompt_to_try(&self) -> Option<String> {
        self.work.facts().prompt_to_try()
    }

    /// The activity of prepared ranks.
    pub fn activity(&self) -> Activity {
        self.work.facts().activity()
    }

    /// The message of a job that succeeded after `done` steps.
    pub fn success(&self, done: u64) -> String {
        self.steps().map_or_else(|| self.work.facts().success(done), |steps| steps.success(done))
    }

    /// The job as its ranks get it: without what was for its placement alone.
    pub fn for_ranks(mut self: Arc<Self>) -> Arc<Self> {
        let cluster = &self.common.cluster;
        if !cluster.constraints.is_empty() || !cluster.topology.is_empty() {
            let cluster = &mut Arc::make_mut(&mut self).common.cluster;
            (cluster.constraints, cluster.topology) = (Vec::new(), String::new());
        }
        self
    }
}

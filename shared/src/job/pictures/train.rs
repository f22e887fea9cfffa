//! `[train]`: how it is learned.

use super::{PreviewDraft, PreviewSpec, ValidationDraft, ValidationSpec, limits};
use crate::job::{
    ClusterSpec, LearningRates, LrScheduler, MixedPrecision, ReportTo,
    section::{Spec as _, section},
};

section! {
    /// How it is learned. Names, values and defaults are diffusers', but for `seed`; `max_grad_norm`, `snr_gamma` and
    /// `noise_offset` are those of its `train_text_to_image.py`, and off where not given.
    TrainSpec from draft: TrainDraft, train_keys {
        /// Side of the square training pictures, in pixels. Default 512.
        resolution: u32 = integer.count(512, 1..=limits::RESOLUTION),
        /// Samples in a microbatch. Default 16.
        train_batch_size: u32 = integer.count(16, 1..=limits::TRAIN_BATCH_SIZE),
        /// Microbatches that a rank of a full ring adds up in a step. Default 1.
        gradient_accumulation_steps: u32 = integer.count(1, 1..=limits::GRADIENT_ACCUMULATION_STEPS),
        /// Optimizer updates. Default 5000; where `num_train_epochs` is given and this is not, it follows from the
        /// number of images (see [`TrainSpec::count_steps`]) and is 0 until they are counted. Never 0 in
        /// a job that a coordinator has accepted.
        #[serde(default, skip_serializing_if = "is_zero")]
        max_train_steps: u64 =
            integer.count(if draft.num_train_epochs.is_some() { 0 } else { 5000 }, 1..=limits::STEPS),
        /// Before `scale_lr` and the schedule. Default 1e-4; the first of `learning_rates` where these are given.
        learning_rate: f64 = number.first_rate(draft.learning_rates.as_deref(), 1e-4, limits::LEARNING_RATE),
        /// The rate of every step, before `scale_lr`, instead of `learning_rate` and its schedule.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        learning_rates: Option<LearningRates> =
            string.learning_rates(draft.learning_rate, draft.lr_scheduler.as_deref(), draft.lr_warmup_steps),
        /// Multiply the learning rate by the global batch. Default false.
        scale_lr: bool = boolean.flag(false),
        /// The schedule of the learning rate. Default constant.
        lr_scheduler: LrScheduler = string.choice(LrScheduler::Constant),
        /// Steps over which the learning rate rises from 0, in the schedules that warm up. Default 500.
        lr_warmup_steps: u64 =
            integer.count(if learning_rates.is_some() { 0 } else { 500 }, 0..=limits::STEPS),
        /// What all draws of the job are derived from. Default 0 (diffusers: none, every run differs).
        seed: u64 = integer.count(0, 0..=i64::MAX),
        /// What the ranks are to compute in. Default no, that is fp32.
        mixed_precision: MixedPrecision = string.choice(MixedPrecision::No),
        /// Cut the pictures to their central square instead of squashing them to one. Default false.
        center_crop: bool = boolean.flag(false),
        /// Prompts with a mark for what is learned (see [`crate::templates`]); empty: those of the kind.
        templates: Vec<String> = strings.templates(),
        /// What is learned is kept every so many steps; 0: only the last. Default 500.
        save_steps: u64 = integer.count(500, 0..=limits::STEPS),
        /// How much of the gradients' running mean AdamW keeps. Default 0.9.
        adam_beta1: f64 = number.share(0.9),
        /// How much of the squared gradients' running mean AdamW keeps. Default 0.999.
        adam_beta2: f64 = number.share(0.999),
        /// Share of the weights, times the learning rate, that AdamW takes away in a step. Default 0.01.
        adam_weight_decay: f64 = number.number(1e-2, limits::ADAM),
        /// Added to AdamW's denominator. Default 1e-8.
        adam_epsilon: f64 = number.number(1e-8, limits::ADAM),
        /// Times that the schedule `cosine_with_restarts` falls to 0. Default 1.
        lr_num_cycles: u64 = integer.count(1, 1..=limits::STEPS),
        /// A step's gradient that is longer than this is shortened to it; 0: never. Default 0.
        max_grad_norm: f64 = number.number(0.0, limits::GRAD_NORM),
        /// Gamma of the min-SNR loss weights (Hang et al. 2023); 0: all samples weigh the same. Default 0.
        snr_gamma: f64 = number.number(0.0, limits::SNR_GAMMA),
        /// Share of one more normal draw for each sample and channel in its noise; 0: none. Default 0.
        noise_offset: f64 = number.number(0.0, limits::NOISE_OFFSET),
        /// Shift the model's noise schedule so that its last step is pure noise (Lin et al. 2023). Default false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        rescale_betas_zero_snr: bool = boolean.flag(false),
        /// How often all images are gone through, where `max_train_steps` is not given. Default: not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        num_train_epochs: Option<u64> = integer.count_if_given(1..=limits::STEPS),
        /// How often each image is shown in one of `num_train_epochs` passes. Default 100.
        repeats: u32 = integer.count(100, 1..=limits::REPEATS),
        /// The whole state is kept every so many steps, to go on from; 0: never. Default 500.
        checkpointing_steps: u64 = integer.count(500, 0..=limits::STEPS),
        /// So many of a job's checkpoints are kept, the newest; 0: all. Default 0 (diffusers: none, all).
        checkpoints_total_limit: u64 = integer.count(0, 0..=limits::STEPS),
        /// Where the job goes on (see [`crate::checkpoint::ResumeFrom`]); empty: it starts at step 1. Default empty.
        resume_from_checkpoint: String = text_or_integer.resume_from(),
        /// Leave a whole model with what was learned in it, too. Default false.
        save_as_full_pipeline: bool = boolean.flag(false),
        /// How it is judged.
        #[serde(flatten)]
        validation: ValidationSpec = part<ValidationDraft>,
        /// Pictures while training goes on.
        #[serde(flatten)]
        previews: PreviewSpec = part<PreviewDraft>,
        /// Who gets a file of events besides metrics.csv. Default tensorboard.
        report_to: ReportTo = string.choice(ReportTo::Tensorboard),
        /// Share of the samples whose caption is left empty. Default 0.
        caption_dropout: f64 = number.number(0.0, 1.0),
        /// Whether the tags of captions, separated by commas, come in another order in every sample. Default false.
        shuffle_tags: bool = boolean.flag(false),
        /// The first so many tags stay where they are. Default 0.
        keep_tags: u32 = integer.count(0, 0..=limits::TAGS),
        /// Whether each picture is trained at its own aspect ratio, in a bucket of at most `resolution`² pixels. Default
        /// false: all are squares.
        enable_bucket: bool = boolean.flag(false),
        /// The shortest side of a bucket, in pixels. Default 256.
        min_bucket_reso: u32 = integer.count(256, 1..=limits::RESOLUTION),
        /// The longest side of a bucket, in pixels. Default 1024.
        max_bucket_reso: u32 = integer.count(1024, 1..=limits::RESOLUTION),
        /// A bucket's sides are multiples of it, in pixels. Default 64.
        bucket_reso_steps: u32 = integer.count(64, 1..=limits::RESOLUTION),
        /// Whether small pictures keep their size; the two limits count for nothing then. Default false.
        bucket_no_upscale: bool = boolean.flag(false),
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl TrainSpec {
    /// The draft that becomes this: a number of steps that is not known yet is not given.
    pub(in crate::job) fn to_draft(&self) -> TrainDraft {
        let mut draft = self.draft();
        draft.max_train_steps.take_if(|steps| *steps == 0);
        draft
    }

    /// M: microbatches in a step over all ranks, whatever the ring's size;
    /// `world_size * gradient_accumulation_steps`.
    pub fn global_microbatches(&self, cluster: &ClusterSpec) -> u32 {
        cluster.world_size.saturating_mul(self.gradient_accumulation_steps)
    }

    /// Samples in a step over all ranks: `global_microbatches * train_batch_size`.
    pub fn global_batch(&self, cluster: &ClusterSpec) -> u64 {
        u64::from(self.global_microbatches(cluster)) * u64::from(self.train_batch_size)
    }

    /// The learning rate that the schedule starts from: with `scale_lr` it is multiplied by the
    /// global batch, so by `world_size` and never by the ring's size.
    pub fn effective_learning_rate(&self, cluster: &ClusterSpec) -> f64 {
        self.learning_rate * self.learning_rate_scale(cluster)
    }

    /// What `scale_lr` multiplies every learning rate with; 1 without it.
    pub fn learning_rate_scale(&self, cluster: &ClusterSpec) -> f64 {
        // At most 2^36 samples (see `limits`): exact in f64.
        if self.scale_lr { self.global_batch(cluster) as f64 } else { 1.0 }
    }
}

//! Defaults and limits of `[data]`, `[train]` and `[[concepts]]`.

mod concepts;
mod pictures;
mod schedule_choice;
mod validation;

use self::{concepts::Words, pictures::Places};
use super::{
    ConceptDraft, DataDraft, DataSpec, LearnableProperty, TextualInversionSpec, TrainDraft, TrainSpec, limits,
};
use crate::{
    ids::{CONTENT_URI_PREFIX, ContentHash},
    job::{
        CommonSpec, LrScheduler, MixedPrecision, ModelLocation, ModelSpec, PredictionType, ReportTo,
        check::Check,
        text::{printable, scheme, shortened},
    },
    names,
};

/// Fills in the defaults and checks every value.
pub(in crate::job::kinds) fn check(
    check: &mut Check,
    data: DataDraft,
    train: TrainDraft,
    concepts: Vec<ConceptDraft>,
    common: &CommonSpec,
) -> TextualInversionSpec {
    let several = !concepts.is_empty();
    let data = check.data(data, several);
    let train = check.train(train, several);
    let concepts = check.concepts(concepts, &train);
    let work = TextualInversionSpec { data, train, concepts };
    check.across_fields(&work, common);
    work
}

impl Check {
    fn data(&mut self, draft: DataDraft, several: bool) -> DataSpec {
        if several {
            if draft.folders.is_some() {
                self.refuse("data.folders", "is given together with [[concepts]]; give it in each of them");
            }
            let images = self.refuse_beside_concepts("data.images", draft.images);
            return DataSpec { images, folders: Vec::new() };
        }
        self.places("data", Places { images: draft.images, folders: draft.folders })
    }

    fn images(&mut self, field: &str, given: Option<String>) -> String {
        const WANTED: &str = "a folder of images";
        let images = self.required(field, given, WANTED);
        if images.starts_with(CONTENT_URI_PREFIX) {
            if let Err(error) = ContentHash::from_uri(&images) {
                self.refuse(field, error.to_string());
            }
        } else if let Some(scheme) = scheme(&images) {
            let given = shortened(&images);
            self.refuse(field, format!("got {given:?}; {scheme}:// is not supported yet: give {WANTED}"));
        }
        images
    }

    fn train(&mut self, draft: TrainDraft, several: bool) -> TrainSpec {
        let (validation, previews) = (self.validation(&draft), self.previews(&draft));
        let learning_rates = self.learning_rates(&draft);
        let words = Words {
            placeholder_token: draft.placeholder_token,
            initializer_token: draft.initializer_token,
            initializer_embedding: draft.initializer_embedding,
        };
        let [placeholder_token, initializer_token, initializer_embedding] =
            if several { self.no_words(words) } else { self.words("train", words) };
        TrainSpec {
            placeholder_token,
            initializer_token,
            initializer_embedding,
            learnable_property: self.choice(
                "train.learnable_property",
                draft.learnable_property,
                LearnableProperty::Object,
            ),
            num_vectors: self.count("train.num_vectors", draft.num_vectors, 1, 1..=limits::NUM_VECTORS),
            resolution: self.count("train.resolution", draft.resolution, 512, 1..=limits::RESOLUTION),
            train_batch_size: self.count(
                "train.train_batch_size",
                draft.train_batch_size,
                16,
                1..=limits::TRAIN_BATCH_SIZE,
            ),
            gradient_accumulation_steps: self.count(
                "train.gradient_accumulation_steps",
                draft.gradient_accumulation_steps,
                1,
                1..=limits::GRADIENT_ACCUMULATION_STEPS,
            ),
            max_train_steps: self.count(
                "train.max_train_steps",
                draft.max_train_steps,
                if draft.num_train_epochs.is_some() { 0 } else { 5000 },
                1..=limits::STEPS,
            ),
            learning_rate: match &learning_rates {
                Some(rates) => rates.at(1),
                None => {
                    self.above_zero("train.learning_rate", draft.learning_rate, 1e-4, limits::LEARNING_RATE)
                }
            },
            scale_lr: draft.scale_lr.unwrap_or(false),
            lr_scheduler: self.choice("train.lr_scheduler", draft.lr_scheduler, LrScheduler::Constant),
            lr_warmup_steps: self.count(
                "train.lr_warmup_steps",
                draft.lr_warmup_steps,
                if learning_rates.is_some() { 0 } else { 500 },
                0..=limits::STEPS,
            ),
            learning_rates,
            seed: self.count("train.seed", draft.seed, 0, 0..=i64::MAX),
            mixed_precision: self.choice("train.mixed_precision", draft.mixed_precision, MixedPrecision::No),
            center_crop: draft.center_crop.unwrap_or(false),
            templates: self.templates("train.templates", draft.templates),
            save_steps: self.count("train.save_steps", draft.save_steps, 500, 0..=limits::STEPS),
            adam_beta1: self.share("train.adam_beta1", draft.adam_beta1, 0.9),
            adam_beta2: self.share("train.adam_beta2", draft.adam_beta2, 0.999),
            adam_weight_decay: self.number(
                "train.adam_weight_decay",
                draft.adam_weight_decay,
                1e-2,
                limits::ADAM,
            ),
            adam_epsilon: self.number("train.adam_epsilon", draft.adam_epsilon, 1e-8, limits::ADAM),
            lr_num_cycles: self.count("train.lr_num_cycles", draft.lr_num_cycles, 1, 1..=limits::STEPS),
            max_grad_norm: self.number("train.max_grad_norm", draft.max_grad_norm, 0.0, limits::GRAD_NORM),
            snr_gamma: self.number("train.snr_gamma", draft.snr_gamma, 0.0, limits::SNR_GAMMA),
            noise_offset: self.number("train.noise_offset", draft.noise_offset, 0.0, limits::NOISE_OFFSET),
            rescale_betas_zero_snr: draft.rescale_betas_zero_snr.unwrap_or(false),
            num_train_epochs: draft
                .num_train_epochs
                .map(|epochs| self.count("train.num_train_epochs", Some(epochs), 1, 1..=limits::STEPS)),
            repeats: self.count("train.repeats", draft.repeats, 100, 1..=limits::REPEATS),
            checkpointing_steps: self.count(
                "train.checkpointing_steps",
                draft.checkpointing_steps,
                500,
                0..=limits::STEPS,
            ),
            checkpoints_total_limit: self.count(
                "train.checkpoints_total_limit",
                draft.checkpoints_total_limit,
                0,
                0..=limits::STEPS,
            ),
            resume_from_checkpoint: self
                .resume_from("train.resume_from_checkpoint", draft.resume_from_checkpoint),
            save_as_full_pipeline: draft.save_as_full_pipeline.unwrap_or(false),
            validation,
            previews,
            report_to: self.choice("train.report_to", draft.report_to, ReportTo::Tensorboard),
            caption_dropout: self.number("train.caption_dropout", draft.caption_dropout, 0.0, 1.0),
            shuffle_tags: draft.shuffle_tags.unwrap_or(false),
            keep_tags: self.count("train.keep_tags", draft.keep_tags, 0, 0..=limits::TAGS),
            enable_bucket: draft.enable_bucket.unwrap_or(false),
            min_bucket_reso: self.side("train.min_bucket_reso", draft.min_bucket_reso, 256),
            max_bucket_reso: self.side("train.max_bucket_reso", draft.max_bucket_reso, 1024),
            bucket_reso_steps: self.side("train.bucket_reso_steps", draft.bucket_reso_steps, 64),
            bucket_no_upscale: draft.bucket_no_upscale.unwrap_or(false),
        }
    }

    fn across_fields(&mut self, work: &TextualInversionSpec, common: &CommonSpec) {
        self.rates_reach_the_end(&work.train);
        if work.train.rescale_betas_zero_snr && common.model.prediction_type == Some(PredictionType::Epsilon)
        {
            let problem = "got true with model.prediction_type = \"epsilon\"; only a model that predicts the \
                           velocity (v_prediction) can be trained on pure noise";
            self.refuse("train.rescale_betas_zero_snr", problem);
        }
        self.caption_options(work);
        self.buckets(&work.train);
        self.microbatches(work, common);
        self.pipeline_of_a_folder(work, &common.model);
    }

    fn microbatches(&mut self, work: &TextualInversionSpec, common: &CommonSpec) {
        let microbatches = work.global_microbatches(&common.cluster);
        if microbatches > limits::GLOBAL_MICROBATCHES {
            self.refuse(
                "train.gradient_accumulation_steps",
                format!(
                    "got {} with world_size {}, that is {microbatches} microbatches a step; allowed: {}",
                    work.train.gradient_accumulation_steps,
                    common.cluster.world_size,
                    limits::GLOBAL_MICROBATCHES
                ),
            );
        }
    }

    /// A full pipeline is made of a model in diffusers layout, with its own tokenizer and scheduler.
    fn pipeline_of_a_folder(&mut self, work: &TextualInversionSpec, model: &ModelSpec) {
        let ModelSpec { base, variant, tokenizer, prediction_type, .. } = model;
        let is_folder = !ModelLocation::is_path(base) || !base.ends_with(".safetensors");
        let is_plain = variant.is_empty() && tokenizer.is_empty() && prediction_type.is_none();
        if work.train.save_as_full_pipeline && !(is_folder && is_plain) {
            let problem = "got true; allowed where model.base is not a single file, and without model.variant, model.tokenizer \
                           and model.prediction_type";
            self.refuse("train.save_as_full_pipeline", problem);
        }
    }

    /// A word of a prompt.
    fn token(&mut self, field: &str, given: Option<String>) -> String {
        let token = given.unwrap_or_default();
        if token.is_empty() {
            self.refuse(field, "missing; give one word without spaces");
        } else if token.chars().any(char::is_whitespace) {
            self.refuse(field, format!("got {:?}; allowed: one word without spaces", shortened(&token)));
        } else if let Err(problem) = names::check(&token, limits::NAME_CHARACTERS) {
            self.refuse(field, problem);
        }
        token
    }
}

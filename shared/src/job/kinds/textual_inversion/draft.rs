//! `[data]` and `[train]` before they are checked.

use super::FolderDraft;
use crate::job::reader::section;

section! {
    /// `[data]`, unchecked; see [`super::DataSpec`].
    DataDraft {
        images: String as string,
        folders: Vec<FolderDraft> as tables,
    }
}

section! {
    /// `[train]`, unchecked; see [`super::TrainSpec`].
    TrainDraft {
        placeholder_token: String as string,
        initializer_token: String as string,
        initializer_embedding: String as string,
        learnable_property: String as string,
        num_vectors: i64 as integer,
        resolution: i64 as integer,
        train_batch_size: i64 as integer,
        gradient_accumulation_steps: i64 as integer,
        max_train_steps: i64 as integer,
        learning_rate: f64 as number,
        learning_rates: String as string,
        scale_lr: bool as boolean,
        lr_scheduler: String as string,
        lr_warmup_steps: i64 as integer,
        seed: i64 as integer,
        mixed_precision: String as string,
        center_crop: bool as boolean,
        templates: Vec<String> as strings,
        save_steps: i64 as integer,
        adam_beta1: f64 as number,
        adam_beta2: f64 as number,
        adam_weight_decay: f64 as number,
        adam_epsilon: f64 as number,
        lr_num_cycles: i64 as integer,
        max_grad_norm: f64 as number,
        snr_gamma: f64 as number,
        noise_offset: f64 as number,
        rescale_betas_zero_snr: bool as boolean,
        num_train_epochs: i64 as integer,
        repeats: i64 as integer,
        checkpointing_steps: i64 as integer,
        checkpoints_total_limit: i64 as integer,
        resume_from_checkpoint: String as text_or_integer,
        save_as_full_pipeline: bool as boolean,
        validation_loss_steps: i64 as integer,
        validation_loss_samples: i64 as integer,
        select_best: bool as boolean,
        early_stop_patience: i64 as integer,
        validation_prompt: String as string,
        num_validation_images: i64 as integer,
        validation_steps: i64 as integer,
        report_to: String as string,
        caption_dropout: f64 as number,
        shuffle_tags: bool as boolean,
        keep_tags: i64 as integer,
        enable_bucket: bool as boolean,
        min_bucket_reso: i64 as integer,
        max_bucket_reso: i64 as integer,
        bucket_reso_steps: i64 as integer,
        bucket_no_upscale: bool as boolean,
    }
}

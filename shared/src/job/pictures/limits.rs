//! The largest values that are accepted; see [`crate::job::limits`].

pub use crate::job::limits::*;

/// Samples in a microbatch.
pub const TRAIN_BATCH_SIZE: i64 = 1024;
/// Microbatches a rank adds up in a step of a full ring.
pub const GRADIENT_ACCUMULATION_STEPS: i64 = 1024;
/// Microbatches in a step over all ranks: each sends its own row around the ring.
pub const GLOBAL_MICROBATCHES: u32 = 65_536;
/// Folders of a concept.
pub const FOLDERS: usize = 64;
/// Times that each picture of a folder is shown.
pub const FOLDER_REPEATS: i64 = 1000;
/// Characters of a column's name.
pub const CAPTION_COLUMN_CHARACTERS: usize = 256;
/// Tags that stay first.
pub const TAGS: i64 = 4096;
/// Times that an image counts in a pass.
pub const REPEATS: i64 = 1_000_000;
/// Of AdamW's numbers that are not a share.
pub const ADAM: f64 = 1000.0;
/// Length of a step's gradient.
pub const GRAD_NORM: f64 = 1e6;
/// Of a noise schedule.
pub const TIMESTEPS: i64 = 1_000_000;
/// Samples that no file has.
pub const SYNTHETIC_SAMPLES: i64 = 1_000_000;
/// Gamma of the min-SNR weights: far above the ratios of any schedule in use.
pub const SNR_GAMMA: f64 = 1e6;
/// Held-out samples.
pub const VALIDATION_LOSS_SAMPLES: i64 = 4096;
/// Pictures drawn at a time while training goes on.
pub const VALIDATION_IMAGES: i64 = 64;
/// Standard deviations of the noise.
pub const NOISE_OFFSET: f64 = 100.0;
/// Templates in a job.
pub const TEMPLATES: usize = 1000;
/// Characters of a template.
pub const TEMPLATE_CHARACTERS: usize = 512;
/// Pictures of a class: what one job draws of a prompt.
pub const CLASS_IMAGES: i64 = 1000;
/// How much they count beside the others.
pub const PRIOR_LOSS_WEIGHT: f64 = 1000.0;
/// More noise, times this.
pub const INPUT_PERTURBATION: f64 = 10.0;

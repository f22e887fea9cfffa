//! The largest values that are accepted; see [`crate::job::limits`].

/// Prompts of a job, and embeddings.
pub(super) const MOST: usize = 1000;
/// Characters of a prompt: more than eight chunks of 75 tokens.
pub(super) const PROMPT_CHARACTERS: usize = 10_000;
/// Pictures of a prompt.
pub(super) const COUNT: i64 = 1000;
/// Pictures of a job: each is a file at the coordinator.
pub(super) const PICTURES: usize = 10_000;
/// Steps of a sampler.
pub(super) const STEPS: i64 = 1000;
/// Guidance.
pub(super) const GUIDANCE: f64 = 100.0;
/// Pictures that are drawn at once.
pub(super) const BATCH: i64 = 64;
/// LoRAs of a job.
pub(super) const LORAS: usize = 16;
/// How strongly one counts.
pub(super) const LORA_WEIGHT: f64 = 100.0;

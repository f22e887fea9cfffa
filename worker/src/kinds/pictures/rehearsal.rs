//! What a dry run says of a job of pictures.

use std::collections::BTreeMap;

use ringtune_shared::job::{
    JobSpec,
    pictures::{TrainSpec, concepts::ConceptSpec},
};

use crate::{
    data::{ClipTokenizer, Target, images::ListedImage},
    kinds::rehearsal::{As, Estimate, Found, RehearsedWord, SizeReport, TrainingReport},
    rank::Error,
};

/// Samples whose prompts are shown.
pub(in crate::kinds) const PROMPTS_SHOWN: usize = 8;

/// The first asks for memory; the last one is as all others.
pub(in crate::kinds) const TIMED_MICROBATCHES: u32 = 2;

/// Measured on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::kinds) struct Timing {
    /// One picture and its mirror image through the VAE.
    pub(in crate::kinds) encode_seconds: f64,
    /// One microbatch, forward and backward.
    pub(in crate::kinds) microbatch_seconds: f64,
    /// Memory of this process that no file backs, after the microbatches.
    pub(in crate::kinds) private_bytes: u64,
}

/// What a job on these `pictures` comes to, and how long it takes where that was measured. `epoch_samples`: those of a pass.
pub(in crate::kinds) fn found(
    spec: &JobSpec,
    train: &TrainSpec,
    with: As,
    pictures: Vec<Vec<(ListedImage, Target)>>,
    epoch_samples: u64,
    timing: Option<Timing>,
) -> Found {
    let cluster = &spec.common.cluster;
    let (steps, global_batch) = (train.max_train_steps, train.global_batch(cluster));
    let samples = steps.saturating_mul(global_batch);
    let estimate = timing.map(|timing| {
        let count: usize = pictures.iter().map(Vec::len).sum();
        let share = count.div_ceil(cluster.world_size.max(1) as usize);
        let encode_seconds = timing.encode_seconds * share as f64;
        let step_seconds = timing.microbatch_seconds * f64::from(train.gradient_accumulation_steps);
        Estimate {
            precision: with.precision.name().to_owned(),
            threads: with.threads,
            private_bytes: timing.private_bytes,
            encode_seconds,
            step_seconds,
            total_seconds: encode_seconds + step_seconds * steps as f64,
            world_size: cluster.world_size,
        }
    });
    Found {
        sizes: sizes(&pictures),
        pictures,
        training: Some(TrainingReport {
            steps,
            global_batch,
            samples,
            epoch_samples,
            epochs: samples as f64 / epoch_samples.max(1) as f64,
            learning_rate: train.effective_learning_rate(cluster),
        }),
        estimate,
        ..Found::default()
    }
}

/// How many pictures are brought to each size.
fn sizes(pictures: &[Vec<(ListedImage, Target)>]) -> Vec<SizeReport> {
    let mut sizes: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for (_, target) in pictures.iter().flatten() {
        *sizes.entry(target.size()).or_default() += 1;
    }
    sizes.into_iter().map(|((width, height), pictures)| SizeReport { width, height, pictures }).collect()
}

/// Every concept's token with its ids, which count up from the rows of the text encoder's table.
///
/// # Errors
/// A word that the tokenizer refuses.
pub(in crate::kinds) fn rehearsed_words(
    concepts: Vec<ConceptSpec>,
    tokenizer: &ClipTokenizer,
    mut next: i64,
) -> Result<Vec<RehearsedWord>, Error> {
    let word = |concept: ConceptSpec| {
        let ids = (next..next + i64::from(concept.num_vectors)).collect();
        next += i64::from(concept.num_vectors);
        let initializer_ids = tokenizer.words_of(&concept.initializer_token)?;
        let initializer = match concept.initializer_embedding.is_empty() {
            true => concept.initializer_token,
            false => concept.initializer_embedding,
        };
        let token = concept.placeholder_token;
        Ok(RehearsedWord { token, ids, initializer, initializer_ids })
    };
    concepts.into_iter().map(word).collect()
}

/// "[<cat>]", and "[<cat> 2]" for the second vector.
pub(in crate::kinds) fn name_of(id: i64, words: &[RehearsedWord]) -> Option<String> {
    let word = words.iter().find(|word| word.ids.contains(&id))?;
    Some(match word.ids.iter().position(|own| *own == id) {
        Some(place) if place > 0 => format!("[{} {}]", word.token, place + 1),
        _ => format!("[{}]", word.token),
    })
}

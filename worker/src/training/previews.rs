//! Pictures while training goes on: at fixed prompt and noise, made by the ranks in turns, gathered by rank 0.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use super::trainee::Previews;
use crate::{
    data::ClipTokenizer,
    engine::{EngineHandle, ImageRequest, ModelInfo, RgbImage, SamplerKind},
    fault::Refusal,
    rank::Error,
    ring::RankRing,
    train::Draws,
};

/// Those of diffusers' textual_inversion.py, in `log_validation`, and of its pipeline.
const SAMPLER: SamplerKind = SamplerKind::DpmSolver2M;
const STEPS: usize = 25;
const GUIDANCE: f64 = 7.5;

/// Pixels that are sent around the ring at a time: no rank holds more of every other's picture than this twice.
const PIXELS_SENT_AT_ONCE: usize = 1 << 16;

/// What a job says of the pictures that it wants while training goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedPreviews<'a> {
    /// Empty: it wants none.
    pub(crate) prompt: &'a str,
    /// How many.
    pub(crate) count: u32,
    /// Pixels of a side.
    pub(crate) side: usize,
    /// The job's.
    pub(crate) seed: u64,
}

/// A learned word in prompts, and the tokens of all its vectors, which take its place.
pub(crate) type Expanded = (String, String);

/// What the pictures of a job are drawn from: those that it wants, and any that are ordered. They are those of `ringtune generate`
/// with the job's seed, the same scheduler, steps and guidance, and the embedding of the step.
#[derive(Clone, Debug)]
pub(crate) struct PreviewPlan {
    tokenizer: Arc<ClipTokenizer>,
    words: Arc<Vec<Expanded>>,
    /// None: the job wants no pictures.
    prompt_ids: Option<Vec<i64>>,
    negative_ids: Vec<i64>,
    count: u32,
    side: usize,
    latent: usize,
    draws: Draws,
    /// The failures that were told: each comes again with every picture.
    told: BTreeSet<String>,
}

impl PreviewPlan {
    /// Of pictures by the model that is loaded, with learned words.
    ///
    /// # Errors
    /// The prompt is longer than the text encoder reads.
    pub(crate) fn new(
        wanted: WantedPreviews<'_>,
        model: &ModelInfo,
        tokenizer: Arc<ClipTokenizer>,
        words: Vec<Expanded>,
    ) -> Result<Self, Error> {
        let WantedPreviews { prompt, count, side, seed } = wanted;
        let latent = model.latent_channels * (side / model.vae_factor).pow(2);
        let negative_ids = tokenizer.encode("")?;
        let (draws, told, words) = (Draws::new(seed), BTreeSet::new(), Arc::new(words));
        let plan =
            Self { tokenizer, words, prompt_ids: None, negative_ids, count, side, latent, draws, told };
        if prompt.is_empty() { Ok(plan) } else { plan.of("train.validation_prompt", prompt) }
    }

    /// The same for another prompt. `field`: its name in messages.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn of(&self, field: &'static str, prompt: &str) -> Result<Self, Error> {
        // Every vector of a token, as diffusers' pipeline puts them in.
        let expanded =
            self.words.iter().fold(prompt.to_owned(), |prompt, (word, all)| prompt.replace(word, all));
        let (found, most) = (self.tokenizer.count_tokens(&expanded)?, self.tokenizer.length() - 2);
        if found > most {
            let problem = format!("got {found} tokens ({prompt:?}); allowed: at most {most}");
            return Err(Refusal::of(field, problem).into());
        }
        Ok(Self { prompt_ids: Some(self.tokenizer.encode(&expanded)?), ..self.clone() })
    }

    /// Whether the job wants pictures.
    pub(crate) fn is_wanted(&self) -> bool {
        self.prompt_ids.is_some()
    }

    /// Whether the prompt, if there is one, has something of what is learned, whose tokens come behind the model's own.
    pub(crate) fn shows_learned(&self, model: &ModelInfo) -> bool {
        self.prompt_ids.iter().flatten().any(|id| *id >= model.vocab_size as i64)
    }

    fn request(&self, prompt_ids: Vec<i64>, number: u32, rows: &[f32]) -> ImageRequest {
        let mut noise = self.draws.picture_noise(number, self.latent * (1 + SAMPLER.step_noises(STEPS)));
        let step_noise = noise.split_off(self.latent);
        ImageRequest {
            batch: 1,
            height: self.side,
            width: self.side,
            prompt_ids,
            negative_ids: self.negative_ids.clone(),
            rows: rows.to_vec(),
            sampler: SAMPLER,
            steps: STEPS,
            guidance: GUIDANCE,
            noise,
            step_noise,
        }
    }

    /// Draws all pictures with these rows, together with all other ranks: rank r of n draws r, r + n, … None where none are wanted.
    ///
    /// # Errors
    /// The ring broke. A picture that a rank cannot draw is no error.
    pub(crate) async fn draw(
        &mut self,
        engine: &EngineHandle,
        ring: &mut RankRing,
        rows: &[f32],
    ) -> Result<Option<Previews>, Error> {
        let Some(prompt_ids) = self.prompt_ids.clone() else { return Ok(None) };
        let started = Instant::now();
        let (rank, ranks) = (ring.rank() as u32, ring.world_size() as u32);
        let (mut pictures, mut failures) = (Vec::new(), Vec::new());
        for first in (0..self.count).step_by(ranks.max(1) as usize) {
            let number = first + rank;
            let drawn = if number < self.count {
                let request = self.noised(prompt_ids.clone(), number, rows).await?;
                let drawn = engine.generate(request).await.map(|pictures| pictures.into_iter().next());
                drawn
                    .map_err(|error| failures.push(format!("a picture could not be drawn: {error}")))
                    .ok()
                    .flatten()
            } else {
                None
            };
            let round = self.exchange(ring, drawn).await?;
            if rank == 0 {
                pictures.extend(round.into_iter().take((self.count - first) as usize));
            }
        }
        // Training goes on without it. An engine that is gone says so at the next step.
        let _ = engine.drop_vae().await;
        // Not before: what was drawn for a ring that broke nobody was told of.
        failures.retain(|failure| self.told.insert(failure.clone()));
        Ok(Some(Previews { pictures, failures, seconds: started.elapsed().as_secs_f64() }))
    }

    /// Drawing normal numbers is computing: off the runtime's threads.
    async fn noised(&self, prompt_ids: Vec<i64>, number: u32, rows: &[f32]) -> Result<ImageRequest, Error> {
        let (plan, rows) = (self.clone(), rows.to_vec());
        Ok(ringtune_shared::tasks::spawn_blocking(move || plan.request(prompt_ids, number, &rows)).await?)
    }

    /// Everybody's picture of this round, in rank order; on other ranks than 0 the pictures are dropped on the way.
    async fn exchange(
        &self,
        ring: &mut RankRing,
        drawn: Option<RgbImage>,
    ) -> Result<Vec<Option<RgbImage>>, Error> {
        let ranks = ring.world_size();
        let own = to_row(drawn.as_ref(), self.side * self.side);
        let mut gathered = vec![Vec::new(); if ring.rank() == 0 { ranks } else { 0 }];
        for part in own.chunks(PIXELS_SENT_AT_ONCE) {
            let parts = ring.gather_one_each(part.to_vec()).await?;
            gathered.iter_mut().zip(parts).for_each(|(whole, part)| whole.extend(part));
        }
        Ok(gathered.iter().map(|row| from_row(row, self.side)).collect())
    }
}

/// A picture as the ring carries it: whether there is one, then a number for each pixel, red · 2^16 + green · 2^8 +
/// blue, which 32-bit floats hold exactly.
fn to_row(picture: Option<&RgbImage>, pixels: usize) -> Vec<f32> {
    let Some(picture) = picture.filter(|picture| picture.data.len() == 3 * pixels) else {
        return vec![0.0; 1 + pixels];
    };
    let packed = |pixel: &[u8]| pixel.iter().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte)) as f32;
    std::iter::once(1.0).chain(picture.data.chunks_exact(3).map(packed)).collect()
}

fn from_row(row: &[f32], side: usize) -> Option<RgbImage> {
    let (there, pixels) = row.split_first()?;
    let unpacked = |pixel: &f32| {
        let [_, red, green, blue] = (*pixel as u32).to_be_bytes();
        [red, green, blue]
    };
    let data = pixels.iter().flat_map(unpacked).collect();
    (*there == 1.0).then_some(RgbImage { height: side, width: side, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pixel_survives_the_ring() {
        let mut data: Vec<u8> = (0..48u32).map(|number| (number * 37 % 256) as u8).collect();
        data[..9].copy_from_slice(&[255, 255, 255, 0, 0, 0, 255, 254, 1]);
        let picture = RgbImage { height: 4, width: 4, data };
        assert_eq!(from_row(&to_row(Some(&picture), 16), 4), Some(picture));
        assert_eq!(to_row(None, 16).len(), 17);
        assert_eq!(from_row(&to_row(None, 16), 4), None);
        assert_eq!(from_row(&[], 4), None);
    }
}

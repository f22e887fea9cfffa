//! A language model of a few lines: a table says for each token where the next one is thought to be.
//!
//! With E the table [vocabulary, WIDTH], b the bias [WIDTH] and P(y) a place that belongs to token y for ever, the loss is
//! the mean over all tokens and columns of (E[x] + b - P(y))² / 2, which training makes smaller. Order of the backward
//! pass: E, b, what was looked up. Dropout drops whole tokens from the gradient, by the text's number and the token's place.
//!
//! As a real model's, the table's gradient has two parts: that of columns with an even number is in the table's buckets, as the head's
//! would be, that of the others in the rows that are looked up.

use std::time::Instant;

use ringtune_engine::{
    Buckets, Dropout, EngineError, LanguageModelInfo, LanguageModelSource, OpenLanguageModel, Parameter,
    PassSummary, TokenBatch,
};
use ringtune_random::philox4x32;

use crate::parameters::{FakeParameters, WIDTH, wrong};

/// What a folder's model has: GPT-2's own numbers, so that real tokenizers fit.
const VOCABULARY: usize = 50_257;
const POSITIONS: usize = 1024;
const TABLE: &str = "transformer.wte.weight";
const BIAS: &str = "transformer.ln_f.bias";

/// What is open.
#[derive(Debug)]
pub(crate) struct FakeLanguageModel {
    vocab_size: usize,
    n_positions: usize,
    pub(crate) held: FakeParameters,
}

/// Where token `id` is, column by column: -0.5 to 0.5.
fn place(id: i64) -> [f32; WIDTH] {
    std::array::from_fn(|column| ((id as usize * 31 + column * 7) % 17) as f32 / 16.0 - 0.5)
}

impl FakeLanguageModel {
    pub(crate) fn open(request: &OpenLanguageModel) -> Self {
        let (vocab_size, n_positions, seed) = match &request.source {
            LanguageModelSource::Folder(_) => (VOCABULARY, POSITIONS, 0),
            LanguageModelSource::New(new) => (new.vocab_size, new.n_positions, new.seed),
        };
        let list = vec![Parameter::new(TABLE, vec![vocab_size, WIDTH]), Parameter::new(BIAS, vec![WIDTH])];
        let initial = |parameter: &Parameter, number: usize| {
            let [word, ..] = philox4x32([seed as u32, (seed >> 32) as u32], [number as u32, 0, 0, 0]);
            if parameter.name == TABLE { word as f32 / u32::MAX as f32 - 0.5 } else { 0.0 }
        };
        let held = FakeParameters::new(list, vocab_size, request.buckets, [false; 2], initial);
        Self { vocab_size, n_positions, held }
    }

    pub(crate) fn info(&self) -> LanguageModelInfo {
        LanguageModelInfo {
            vocab_size: self.vocab_size,
            n_positions: self.n_positions,
            parameters: self.held.info(),
            config: format!(
                "{{\"model_type\": \"gpt2\", \"vocab_size\": {}, \"n_positions\": {}}}",
                self.vocab_size, self.n_positions
            ),
        }
    }

    fn check(&self, batch: &TokenBatch) -> Result<(), EngineError> {
        let tokens = batch.batch.saturating_mul(batch.block);
        if tokens == 0 || batch.block > self.n_positions {
            let given = format!("{} texts of {}", batch.batch, batch.block);
            return Err(wrong(format!("block is of {given} tokens, allowed is 1 to {}", self.n_positions)));
        }
        if let Some(Dropout { rate, .. }) = batch.dropout.filter(|one| !(0.0..1.0).contains(&one.rate)) {
            return Err(wrong(format!("dropout.rate is {rate}, allowed is 0 up to, but not, 1")));
        }
        for (field, ids) in [("inputs", &batch.inputs), ("targets", &batch.targets)] {
            if ids.len() != tokens {
                return Err(wrong(format!("{field} is {} ids, allowed is {tokens}", ids.len())));
            }
            if let Some(id) = ids.iter().find(|id| !(0..self.vocab_size as i64).contains(id)) {
                return Err(wrong(format!("{field} has id {id}, allowed is 0 to {}", self.vocab_size - 1)));
            }
        }
        Ok(())
    }

    /// How far each token's columns are from where the next token is.
    fn distances<'a>(&'a self, batch: &'a TokenBatch) -> impl Iterator<Item = (usize, [f32; WIDTH])> + 'a {
        let (table, bias) = (self.held.parameter(0), self.held.parameter(1));
        batch.inputs.iter().zip(&batch.targets).map(move |(input, target)| {
            let (row, wanted) = (*input as usize, place(*target));
            (row, std::array::from_fn(|column| table[row * WIDTH + column] + bias[column] - wanted[column]))
        })
    }

    pub(crate) fn loss(&self, batch: &TokenBatch) -> Result<f32, EngineError> {
        self.check(batch)?;
        let squares: f32 = self.distances(batch).flat_map(|(_, far)| far).map(|far| far * far / 2.0).sum();
        Ok(squares / (batch.inputs.len() * WIDTH) as f32)
    }

    pub(crate) fn gradient(
        &self,
        batch: &TokenBatch,
        finite: bool,
        buckets: &mut dyn Buckets,
    ) -> Result<PassSummary, EngineError> {
        let started = Instant::now();
        if let Some(id) = batch.inputs.iter().find(|id| batch.looked_up.place_of(**id).is_none()) {
            return Err(wrong(format!("looked_up has no id {id}, allowed is a list with all inputs")));
        }
        let loss = if finite { self.loss(batch)? } else { f32::NAN };
        let forward_seconds = started.elapsed().as_secs_f64();
        let share = if finite { 1.0 / (batch.inputs.len() * WIDTH) as f32 } else { f32::NAN };
        let mut gradients = [vec![0.0; self.vocab_size * WIDTH], vec![0.0; WIDTH]];
        for (place, (row, far)) in self.distances(batch).enumerate() {
            let share = share * kept(batch, place);
            for (column, far) in far.into_iter().enumerate() {
                gradients[0][row * WIDTH + column] += far * share;
                gradients[1][column] += far * share;
            }
        }
        // 1. What goes with the rows that are looked up.
        let mut rows = Vec::with_capacity(batch.looked_up.count() * WIDTH);
        for id in batch.looked_up.ids() {
            // The ids of other microbatches may be any.
            let row = usize::try_from(*id).ok().and_then(|row| gradients[0].chunks_exact_mut(WIDTH).nth(row));
            let row = row.ok_or_else(|| {
                wrong(format!("looked_up has id {id}, allowed is 0 to {}", self.vocab_size - 1))
            })?;
            rows.extend(
                (0..WIDTH).map(|column| if column % 2 == 1 { std::mem::take(&mut row[column]) } else { 0.0 }),
            );
        }
        // 2. Everything.
        self.held.put(&gradients, &rows, batch.add, buckets)?;
        let backward_seconds = started.elapsed().as_secs_f64() - forward_seconds;
        Ok(PassSummary { loss, finite: loss.is_finite(), forward_seconds, backward_seconds })
    }
}

/// What a token's gradient is multiplied by: 0 where it is dropped.
fn kept(batch: &TokenBatch, place: usize) -> f32 {
    let Some(Dropout { rate, seed, step, first_sample }) = batch.dropout else { return 1.0 };
    let sample = first_sample.wrapping_add((place / batch.block) as u32);
    let counter = [(place % batch.block) as u32, sample, step as u32, 19 << 24];
    let [word, ..] = philox4x32([seed as u32, (seed >> 32) as u32], counter);
    if f64::from(word) / f64::from(u32::MAX) < rate { 0.0 } else { (1.0 / (1.0 - rate)) as f32 }
}

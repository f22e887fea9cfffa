//! A language model of a few lines: a table says for each token where the next one is thought to be.
//!
//! With E the table [vocabulary, WIDTH], b the bias [WIDTH] and P(y) a place that belongs to token y for ever, the loss is
//! the mean over all tokens and columns of (E[x] + b - P(y))² / 2, which training makes smaller. Order of the backward
//! pass: E, b, what was looked up. Dropout drops whole tokens from the gradient, by the text's number and the token's place.
//!
//! As a real model's, the table's gradient has two parts: that of columns with an even number is in the table's buckets, as the head's
//! would be, that of the others in the rows that are looked up.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use ringtune_engine::{
    AlignedFloats, Applied, Bucket, BucketPlan, Buckets, Dropout, EmbeddingRows, EngineError, HeldState,
    LanguageModelInfo, LanguageModelSource, OpenLanguageModel, OptimizerStep, Parameter, ParametersInfo,
    PassSummary, Piece, Shares, StateTensor, TokenBatch, common,
};
use ringtune_random::philox4x32;

use crate::script::HeldReads;

/// Columns of the table.
const WIDTH: usize = 4;
/// What a folder's model has: GPT-2's own numbers, so that real tokenizers fit.
const VOCABULARY: usize = 50_257;
const POSITIONS: usize = 1024;
const TABLE: &str = "transformer.wte.weight";
const BIAS: &str = "transformer.ln_f.bias";
const STATES: [&str; 3] = ["model", "adamw.mean", "adamw.square"];

/// What is open.
#[derive(Debug)]
pub(crate) struct FakeLanguageModel {
    vocab_size: usize,
    n_positions: usize,
    parameters: Vec<Parameter>,
    plan: BucketPlan,
    state: Tensors,
}

/// A state's tensors by their names. Whoever holds them has them too: then they do not change.
type Tensors = BTreeMap<String, Arc<Vec<f32>>>;

/// A state that is held.
#[derive(Debug)]
pub(crate) struct Held {
    tensors: Tensors,
    reads: HeldReads,
    gradients: Arc<AtomicU64>,
}

impl HeldState for Held {
    fn read(&self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<(), EngineError> {
        crate::compute_for(self.reads.take);
        let mut seen = self.reads.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(self.gradients.load(Ordering::Relaxed));
        if self.reads.fail_from.is_some_and(|first| seen.len() >= first) {
            return Err(EngineError::OfNode(format!("read {} fails", seen.len()).into()));
        }
        read(&self.tensors, tensor, offset, into)
    }
}

fn wrong(text: String) -> EngineError {
    EngineError::OfJob(text.into())
}

fn state_name(kind: &str, parameter: &Parameter) -> String {
    format!("{kind}.{}", parameter.name)
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
        let parameters =
            vec![Parameter::new(TABLE, vec![vocab_size, WIDTH]), Parameter::new(BIAS, vec![WIDTH])];
        let mut state = BTreeMap::new();
        for (kind, parameter) in STATES.iter().flat_map(|kind| parameters.iter().map(move |one| (kind, one)))
        {
            state.insert(state_name(kind, parameter), Arc::new(vec![0.0; parameter.elements()]));
        }
        if let Some(table) = state.get_mut(&format!("model.{TABLE}")).and_then(Arc::get_mut) {
            for (number, value) in table.iter_mut().enumerate() {
                let words = philox4x32([seed as u32, (seed >> 32) as u32], [number as u32, 0, 0, 0]);
                *value = words[0] as f32 / u32::MAX as f32 - 0.5;
            }
        }
        let plan = BucketPlan::new(&parameters, &[0, 1], request.buckets);
        Self { vocab_size, n_positions, parameters, plan, state }
    }

    pub(crate) fn info(&self) -> LanguageModelInfo {
        LanguageModelInfo {
            vocab_size: self.vocab_size,
            n_positions: self.n_positions,
            parameters: ParametersInfo {
                list: self.parameters.clone(),
                plan: self.plan.clone(),
                width: WIDTH,
                part: WIDTH,
            },
            config: format!(
                "{{\"model_type\": \"gpt2\", \"vocab_size\": {}, \"n_positions\": {}}}",
                self.vocab_size, self.n_positions
            ),
        }
    }

    fn parameter(&self, name: &str) -> &[f32] {
        self.state.get(&format!("model.{name}")).map_or(&[], |values| values.as_slice())
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
        let (table, bias) = (self.parameter(TABLE), self.parameter(BIAS));
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
        let mut gradients: Vec<Vec<f32>> =
            self.parameters.iter().map(|parameter| vec![0.0; parameter.elements()]).collect();
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
        // 2. As late as a real model may: none is given back before all are taken.
        let put = |into: &mut [f32], made: &[f32]| {
            for (into, made) in into.iter_mut().zip(made) {
                *into = if batch.add { *into + made } else { *made };
            }
        };
        let mut taken = Vec::with_capacity(self.plan.buckets.len() + 1);
        for (number, bucket) in self.plan.buckets.iter().enumerate() {
            let mut memory = buckets.take(number)?;
            for piece in &bucket.pieces {
                let made = &gradients[piece.parameter][piece.first..piece.first + piece.count];
                put(&mut memory[piece.offset..piece.offset + piece.count], made);
            }
            taken.push(memory);
        }
        let mut memory = buckets.take(taken.len())?;
        put(&mut memory, &rows);
        taken.push(memory);
        for (number, memory) in taken.into_iter().enumerate() {
            buckets.give(number, memory)?;
        }
        let backward_seconds = started.elapsed().as_secs_f64() - forward_seconds;
        Ok(PassSummary { loss, finite: loss.is_finite(), forward_seconds, backward_seconds })
    }

    pub(crate) fn apply(
        &mut self,
        step: &OptimizerStep,
        looked_up: &EmbeddingRows,
        buckets: &mut [AlignedFloats],
    ) -> Result<Applied, EngineError> {
        step.check().map_err(|error| EngineError::OfJob(error.into()))?;
        self.may_change()?;
        let all = Shares::of(self.plan.buckets.iter().map(|bucket| [0..bucket.length, 0..bucket.length]));
        let parts = self.squared_norm_parts(looked_up, buckets, &all)?;
        let mut parts = parts.into_iter();
        let of_bucket = |bucket: &Bucket| parts.by_ref().take(bucket.length.div_ceil(WIDTH)).sum::<f64>();
        let squared_norm = self.plan.buckets.iter().map(of_bucket).sum();
        self.apply_share(step, squared_norm, buckets, &all)
    }

    fn check_buckets(&self, buckets: &[AlignedFloats], rows: Option<usize>) -> Result<(), EngineError> {
        let lengths = self.plan.buckets.iter().map(|bucket| bucket.length);
        let lengths: Vec<usize> = lengths.chain(rows).collect();
        let given: Vec<usize> = buckets.iter().map(|bucket| bucket.len()).collect();
        if given != lengths {
            return Err(wrong(format!("buckets are of {given:?} numbers, allowed is {lengths:?}")));
        }
        Ok(())
    }

    fn check_shares(&self, shares: &Shares) -> Result<(), EngineError> {
        let within = |(number, bucket): (usize, &Bucket)| {
            shares.held(number).all(|held| held.end <= bucket.length)
                && shares.own(number).start.is_multiple_of(WIDTH)
        };
        if shares.count() == self.plan.buckets.len() && self.plan.buckets.iter().enumerate().all(within) {
            return Ok(());
        }
        Err(wrong(format!("shares is {shares:?}, allowed are parts of the plan's buckets")))
    }

    pub(crate) fn squared_norm_parts(
        &self,
        looked_up: &EmbeddingRows,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Vec<f64>, EngineError> {
        self.check_buckets(buckets, Some(looked_up.count() * WIDTH))?;
        self.check_shares(shares)?;
        if let Some(id) = looked_up.ids().iter().find(|id| !(0..self.vocab_size as i64).contains(id)) {
            return Err(wrong(format!("looked_up has id {id}, allowed is 0 to {}", self.vocab_size - 1)));
        }
        let (buckets, rows) = buckets.split_at_mut(self.plan.buckets.len());
        for (id, row) in looked_up.ids().iter().zip(rows.iter().flat_map(|rows| rows.chunks_exact(WIDTH))) {
            let first = *id as usize * WIDTH;
            for (bucket, piece) in self.plan.pieces_of(0) {
                if (piece.first..piece.first + piece.count).contains(&first) {
                    let place = piece.offset + first - piece.first;
                    let into = &mut buckets[bucket][place..place + WIDTH];
                    into.iter_mut().zip(row).for_each(|(into, number)| *into += number);
                }
            }
        }
        let own =
            buckets.iter().enumerate().flat_map(|(number, bucket)| bucket[shares.own(number)].chunks(WIDTH));
        Ok(own.map(|part| part.iter().map(|g| f64::from(*g).powi(2)).sum()).collect())
    }

    pub(crate) fn apply_share(
        &mut self,
        step: &OptimizerStep,
        squared_norm: f64,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Applied, EngineError> {
        step.check().map_err(|error| EngineError::OfJob(error.into()))?;
        self.check_buckets(&buckets[..buckets.len().saturating_sub(1)], None)?;
        self.check_shares(shares)?;
        self.may_change()?;
        let share = 1.0 / f64::from(step.divide_by);
        let grad_norm = squared_norm.sqrt() * share;
        if !grad_norm.is_finite() {
            return Ok(Applied { grad_norm, skipped: true });
        }
        let clip = step.max_grad_norm.map_or(1.0, |most| (most / (grad_norm + 1e-6)).min(1.0));
        for (bucket, memory) in buckets.iter_mut().enumerate() {
            for (held, piece) in pieces(&self.plan, bucket, shares.held(bucket)) {
                let parameter = &self.parameters[piece.parameter];
                for place in held {
                    let gradient = f64::from(memory[place]) * share * clip;
                    let number = piece.first + place - piece.offset;
                    memory[place] = move_one(&mut self.state, parameter, number, gradient, step);
                }
            }
        }
        Ok(Applied { grad_norm, skipped: false })
    }

    pub(crate) fn take_parameters(
        &mut self,
        buckets: &[AlignedFloats],
        shares: &Shares,
    ) -> Result<(), EngineError> {
        self.check_buckets(buckets, None)?;
        self.check_shares(shares)?;
        self.may_change()?;
        for (bucket, memory) in buckets.iter().enumerate() {
            for (missing, piece) in pieces(&self.plan, bucket, shares.missing(bucket, memory.len())) {
                let name = state_name("model", &self.parameters[piece.parameter]);
                let first = piece.first + missing.start - piece.offset;
                if let Some(values) = self.state.get_mut(&name).and_then(Arc::get_mut) {
                    values[first..first + missing.len()].copy_from_slice(&memory[missing]);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn keep_moments(&mut self, shares: &Shares) -> Result<(), EngineError> {
        self.check_shares(shares)?;
        self.may_change()?;
        for (bucket, about) in self.plan.buckets.iter().enumerate() {
            for (missing, piece) in pieces(&self.plan, bucket, shares.missing(bucket, about.length)) {
                let first = piece.first + missing.start - piece.offset;
                for kind in ["adamw.mean", "adamw.square"] {
                    let name = state_name(kind, &self.parameters[piece.parameter]);
                    if let Some(values) = self.state.get_mut(&name).and_then(Arc::get_mut) {
                        values[first..first + missing.len()].fill(0.0);
                    }
                }
            }
        }
        Ok(())
    }

    /// Turns one bit of a parameter, high enough for no later rounding to take it back.
    pub(crate) fn spoil(&mut self) {
        let bias = self.state.get_mut(&format!("model.{BIAS}")).and_then(Arc::get_mut);
        if let Some(value) = bias.and_then(|values| values.first_mut()) {
            *value = f32::from_bits(value.to_bits() ^ (1 << 20));
        }
    }

    pub(crate) fn tensors(&self) -> Vec<StateTensor> {
        let shape = |name: &str| {
            let of = self.parameters.iter().find(|parameter| name.ends_with(&parameter.name));
            of.map(|parameter| parameter.shape.clone()).unwrap_or_default()
        };
        self.state.keys().map(|name| StateTensor { name: name.clone(), shape: shape(name) }).collect()
    }

    /// That nobody holds the state.
    fn may_change(&mut self) -> Result<(), EngineError> {
        match self.state.values_mut().all(|values| Arc::get_mut(values).is_some()) {
            true => Ok(()),
            false => Err(EngineError::Held),
        }
    }

    pub(crate) fn hold(&self, reads: HeldReads, gradients: Arc<AtomicU64>) -> Held {
        Held { tensors: self.state.clone(), reads, gradients }
    }

    pub(crate) fn read(&self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<(), EngineError> {
        read(&self.state, tensor, offset, into)
    }

    pub(crate) fn write(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<(), EngineError> {
        let place = place_in(&self.state, tensor, offset, bytes.len())?;
        let values = self.state.get_mut(tensor).and_then(Arc::get_mut).ok_or(EngineError::Held)?;
        for (value, bytes) in values[place].iter_mut().zip(bytes.chunks_exact(4)) {
            *value = f32::from_le_bytes(std::array::from_fn(|place| bytes[place]));
        }
        Ok(())
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

/// Where the numbers of `length` bytes of a tensor are, from byte `offset` on.
fn place_in(state: &Tensors, tensor: &str, offset: u64, length: usize) -> Result<Range<usize>, EngineError> {
    let values = state.get(tensor).ok_or_else(|| wrong(format!("the state has no tensor {tensor}")))?;
    let bytes = values.len() * 4;
    let first = usize::try_from(offset).unwrap_or(usize::MAX);
    let whole = first.is_multiple_of(4) && length.is_multiple_of(4);
    if !whole || first.checked_add(length).is_none_or(|end| end > bytes) {
        let text =
            format!("offset is {offset} for {length} bytes, allowed is whole numbers of {bytes} bytes");
        return Err(wrong(text));
    }
    Ok(first / 4..(first + length) / 4)
}

fn read(state: &Tensors, tensor: &str, offset: u64, into: &mut [u8]) -> Result<(), EngineError> {
    let place = place_in(state, tensor, offset, into.len())?;
    let values = state.get(tensor).into_iter().flat_map(|values| &values[place.clone()]);
    into.chunks_exact_mut(4)
        .zip(values)
        .for_each(|(bytes, value)| bytes.copy_from_slice(&value.to_le_bytes()));
    Ok(())
}

/// What of these places of a bucket belongs to each of its pieces.
fn pieces(
    plan: &BucketPlan,
    bucket: usize,
    places: impl Iterator<Item = Range<usize>>,
) -> Vec<(Range<usize>, Piece)> {
    let pieces = plan.buckets.get(bucket).map_or(&[][..], |bucket| &bucket.pieces);
    let of = |places: Range<usize>| {
        let within =
            move |piece: &Piece| (common(&places, &(piece.offset..piece.offset + piece.count)), *piece);
        pieces.iter().map(within).filter(|(places, _)| !places.is_empty())
    };
    places.flat_map(of).collect()
}

/// AdamW of one number, and what it then is.
fn move_one(
    state: &mut Tensors,
    parameter: &Parameter,
    number: usize,
    gradient: f64,
    step: &OptimizerStep,
) -> f32 {
    let mut changed = |kind: &str, change: &dyn Fn(f64) -> f64| {
        let values = state.get_mut(&state_name(kind, parameter)).and_then(Arc::get_mut);
        let value = values.and_then(|values| values.get_mut(number));
        value.map_or(0.0, |value| {
            *value = change(f64::from(*value)) as f32;
            f64::from(*value)
        })
    };
    let corrected = |beta: f64| 1.0 - beta.powf(step.number as f64);
    let mean = changed("adamw.mean", &|mean| step.beta1 * mean + (1.0 - step.beta1) * gradient);
    let square = changed("adamw.square", &|old| step.beta2 * old + (1.0 - step.beta2) * gradient * gradient);
    let deviation = (square / corrected(step.beta2)).sqrt() + step.epsilon;
    let decay = if parameter.decayed { step.learning_rate * step.weight_decay } else { 0.0 };
    changed("model", &|value| {
        value * (1.0 - decay) - step.learning_rate * mean / corrected(step.beta1) / deviation
    }) as f32
}

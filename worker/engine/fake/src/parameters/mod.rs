//! Parameters that the fake holds, of whatever model: their state, and a plain AdamW.

mod rounds;

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use ringtune_engine::{
    AlignedFloats, Applied, Bucket, BucketPlan, BucketSizes, Buckets, EmbeddingRows, EngineError, HeldState,
    OptimizerStep, Parameter, ParametersInfo, Piece, Shares, Shows, StateTensor, common,
};

use crate::script::HeldReads;

/// Numbers of a row, and of what is summed by itself.
pub(crate) const WIDTH: usize = 4;
const STATES: [&str; 4] = ["model", "adamw.mean", "adamw.square", "average"];
/// What parameters that are trained in rounds have in the state, in the place of moments.
const MOMENTUM: &str = "outer.momentum";

/// What is trained. Order of the backward pass: that of the list, then what was looked up.
#[derive(Debug)]
pub(crate) struct FakeParameters {
    list: Vec<Parameter>,
    plan: BucketPlan,
    /// Rows of the first parameter that can be looked up.
    rows: usize,
    state: Tensors,
    shows: Shows,
    /// What is shown in the parameters' place.
    given: Tensors,
    /// The parameters when a round began, where one is on its way.
    before: Option<Tensors>,
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

pub(crate) fn wrong(text: String) -> EngineError {
    EngineError::OfJob(text.into())
}

fn state_name(kind: &str, parameter: &Parameter) -> String {
    format!("{kind}.{}", parameter.name)
}

impl FakeParameters {
    /// `initial`: the value of a number of a parameter.
    pub(crate) fn new(
        list: Vec<Parameter>,
        rows: usize,
        buckets: BucketSizes,
        [average, rounds]: [bool; 2],
        initial: impl Fn(&Parameter, usize) -> f32,
    ) -> Self {
        let mut state = BTreeMap::new();
        for parameter in &list {
            let more = [("average", average), (MOMENTUM, rounds)];
            let more = more.iter().filter_map(|(kind, wanted)| wanted.then_some(kind));
            for kind in STATES[..3].iter().chain(more) {
                let starts = ["model", "average"].contains(kind);
                let value = |number| if starts { initial(parameter, number) } else { 0.0 };
                let values = (0..parameter.elements()).map(value).collect();
                state.insert(state_name(kind, parameter), Arc::new(values));
            }
        }
        let order: Vec<usize> = (0..list.len()).collect();
        Self {
            plan: BucketPlan::new(&list, &order, buckets),
            list,
            rows,
            state,
            shows: Shows::Parameters,
            given: Tensors::default(),
            before: None,
        }
    }

    pub(crate) fn info(&self) -> ParametersInfo {
        let width = if self.rows > 0 { WIDTH } else { 0 };
        ParametersInfo { list: self.list.clone(), plan: self.plan.clone(), width, part: WIDTH }
    }

    pub(crate) fn parameter(&self, number: usize) -> &[f32] {
        let (kind, state) = match self.shows {
            Shows::Parameters => ("model", &self.state),
            Shows::Average => ("average", &self.state),
            Shows::Given => ("model", &self.given),
        };
        let name = self.list.get(number).map(|parameter| state_name(kind, parameter));
        name.and_then(|name| state.get(&name)).map_or(&[], |values| values.as_slice())
    }

    pub(crate) fn show(&mut self, shows: Shows) -> Result<(), EngineError> {
        if shows == Shows::Average && !self.state.keys().any(|name| name.starts_with("average.")) {
            return Err(wrong("shows is Average, allowed are others: none is kept".to_owned()));
        }
        self.shows = shows;
        Ok(())
    }

    pub(crate) fn give_shown(
        &mut self,
        parameter: &str,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let name = format!("model.{parameter}");
        let length = self.state.get(&name).map_or(0, |own| own.len());
        self.given.entry(name.clone()).or_insert_with(|| Arc::new(vec![0.0; length]));
        write(&mut self.given, &name, offset, bytes)
    }

    /// Puts a gradient, and that of what was looked up, in buckets: as late as a real model may, none is given back before all
    /// are taken.
    pub(crate) fn put(
        &self,
        gradients: &[Vec<f32>],
        rows: &[f32],
        add: bool,
        buckets: &mut dyn Buckets,
    ) -> Result<(), EngineError> {
        let put = |into: &mut [f32], made: &[f32]| {
            for (into, made) in into.iter_mut().zip(made) {
                *into = if add { *into + made } else { *made };
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
        put(&mut memory, rows);
        taken.push(memory);
        for (number, memory) in taken.into_iter().enumerate() {
            buckets.give(number, memory)?;
        }
        Ok(())
    }

    pub(crate) fn apply(
        &mut self,
        step: &OptimizerStep,
        looked_up: &EmbeddingRows,
        buckets: &mut [AlignedFloats],
    ) -> Result<Applied, EngineError> {
        step.check().map_err(|error| EngineError::OfJob(error.into()))?;
        self.may_change()?;
        let all = self.plan.everything();
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
        self.check_buckets(buckets, Some(self.info().looked_up_length(looked_up)))?;
        self.check_shares(shares)?;
        if let Some(id) = looked_up.ids().iter().find(|id| !(0..self.rows as i64).contains(id)) {
            return Err(wrong(format!("looked_up has id {id}, allowed are ids below {}", self.rows)));
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
                let first = piece.first + held.start - piece.offset;
                let memory = &mut memory[held];
                move_part(&mut self.state, &self.list[piece.parameter], first, memory, [share, clip], step);
            }
        }
        Ok(Applied { grad_norm, skipped: false })
    }

    pub(crate) fn take_parameters(
        &mut self,
        buckets: &[AlignedFloats],
        shares: &Shares,
        average_decay: Option<f64>,
    ) -> Result<(), EngineError> {
        self.check_buckets(buckets, None)?;
        self.check_shares(shares)?;
        self.may_change()?;
        for (bucket, memory) in buckets.iter().enumerate() {
            for (missing, piece) in pieces(&self.plan, bucket, shares.missing(bucket, memory.len())) {
                let parameter = &self.list[piece.parameter];
                let first = piece.first + missing.start - piece.offset;
                let places = first..first + missing.len();
                let memory = &memory[missing];
                if let Some(values) = part_of(&mut self.state, "model", parameter, &places) {
                    values.copy_from_slice(memory);
                }
                let averages = part_of(&mut self.state, "average", parameter, &places);
                if let (Some(decay), Some(averages)) = (average_decay, averages) {
                    averages
                        .iter_mut()
                        .zip(memory)
                        .for_each(|(average, moved)| follow(average, *moved, decay));
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
                    let name = state_name(kind, &self.list[piece.parameter]);
                    if let Some(values) = self.state.get_mut(&name).and_then(Arc::get_mut) {
                        values[first..first + missing.len()].fill(0.0);
                    }
                }
            }
        }
        Ok(())
    }

    /// Turns one bit of the last parameter, high enough for no later rounding to take it back.
    pub(crate) fn spoil(&mut self) {
        let Some(last) = self.list.last().map(|parameter| state_name("model", parameter)) else { return };
        let last = self.state.get_mut(&last).and_then(Arc::get_mut);
        if let Some(value) = last.and_then(|values| values.first_mut()) {
            *value = f32::from_bits(value.to_bits() ^ (1 << 20));
        }
    }

    pub(crate) fn tensors(&self) -> Vec<StateTensor> {
        let shape = |name: &str| {
            let of = self.list.iter().find(|parameter| name.ends_with(&parameter.name));
            of.map(|parameter| parameter.shape.clone()).unwrap_or_default()
        };
        let is_kept = |name: &&String| !(self.has_rounds() && name.starts_with("adamw."));
        let kept = self.state.keys().filter(is_kept);
        kept.map(|name| StateTensor { name: name.clone(), shape: shape(name) }).collect()
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
        write(&mut self.state, tensor, offset, bytes)
    }
}

fn write(tensors: &mut Tensors, tensor: &str, offset: u64, bytes: &[u8]) -> Result<(), EngineError> {
    let place = place_in(tensors, tensor, offset, bytes.len())?;
    let values = tensors.get_mut(tensor).and_then(Arc::get_mut).ok_or(EngineError::Held)?;
    for (value, bytes) in values[place].iter_mut().zip(bytes.chunks_exact(4)) {
        *value = f32::from_le_bytes(std::array::from_fn(|place| bytes[place]));
    }
    Ok(())
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

/// Moves a part of a parameter by plain AdamW: its numbers from `first` on, whose gradients times both `factors` are in `memory`,
/// which then has what they are moved to.
fn move_part(
    state: &mut Tensors,
    parameter: &Parameter,
    first: usize,
    memory: &mut [f32],
    factors: [f64; 2],
    step: &OptimizerStep,
) {
    let corrected = [step.beta1, step.beta2].map(|beta| 1.0 - beta.powf(step.number as f64));
    let rate = step.rate(parameter.rate);
    let decay = if parameter.decayed { rate * step.weight_decay } else { 0.0 };
    let changed = |value: &mut f32, to: f64| {
        *value = to as f32;
        f64::from(*value)
    };
    // Out of the map meanwhile: a name is not looked up for each number.
    let mut taken = STATES.map(|kind| state.remove(&state_name(kind, parameter)));
    let all = first..first + memory.len();
    let [model, mean, square, average] = taken.each_mut().map(|values| {
        values
            .as_mut()
            .and_then(Arc::get_mut)
            .and_then(|values| values.get_mut(all.clone()))
            .unwrap_or_default()
    });
    let mut averages = average.iter_mut();
    for (((memory, model), mean), square) in memory.iter_mut().zip(model).zip(mean).zip(square) {
        let gradient = f64::from(*memory) * factors[0] * factors[1];
        let old = f64::from(*mean);
        let mean = changed(mean, step.beta1 * old + (1.0 - step.beta1) * gradient);
        let old = f64::from(*square);
        let square = changed(square, step.beta2 * old + (1.0 - step.beta2) * gradient * gradient);
        let deviation = (square / corrected[1]).sqrt() + step.epsilon;
        let old = f64::from(*model);
        let moved = changed(model, old * (1.0 - decay) - rate * mean / corrected[0] / deviation);
        if let (Some(kept), Some(average)) = (step.average_decay, averages.next()) {
            follow(average, moved as f32, kept);
        }
        *memory = moved as f32;
    }
    for (kind, values) in STATES.into_iter().zip(taken) {
        state.extend(values.map(|values| (state_name(kind, parameter), values)));
    }
}

/// Moves an average to where its parameter has gone. `kept`: its own share.
fn follow(average: &mut f32, moved: f32, kept: f64) {
    let old = f64::from(*average);
    *average = (old - (1.0 - kept) * (old - f64::from(moved))) as f32;
}

/// A part of a parameter, or of what goes with it, where nobody reads it.
fn part_of<'a>(
    state: &'a mut Tensors,
    kind: &str,
    parameter: &Parameter,
    places: &Range<usize>,
) -> Option<&'a mut [f32]> {
    let values = state.get_mut(&state_name(kind, parameter)).and_then(Arc::get_mut)?;
    values.get_mut(places.clone())
}

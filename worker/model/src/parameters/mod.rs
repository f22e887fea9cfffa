//! Parameters that are trained, of whatever model: in fp32, with the optimizer's moments and copies to compute with. Their gradients
//! come in the caller's buckets.

mod gradients;
mod held;
pub(crate) mod native;
mod normals;
mod optimizer;
mod rounds;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringtune_engine::{
    BucketPlan, BucketSizes, Buckets, EmbeddingRows, Parameter, ParametersInfo, Shows, StateTensor,
};
use tch::{Device, Kind, Tensor};

pub(crate) use gradients::{Gradients, product};
pub use held::HeldTensors;
use held::{Holds, whole_numbers};
use native::Moved;
pub(crate) use normals::Draw;
use rounds::RoundValues;

use crate::error::{Error, Result};
use crate::mapped_file;
use crate::trained::{TrainedTensor, Watch};

/// One parameter.
#[derive(Debug)]
struct Values {
    master: Tensor,
    /// The optimizer's moments.
    mean: Tensor,
    square: Tensor,
    /// The running average of the parameter, where one is kept.
    average: Option<Tensor>,
    /// Of parameters that are trained in rounds.
    round: Option<RoundValues>,
    /// What products take, where that is not the parameter itself: rounded to bf16, or whatever is shown.
    low: Option<Tensor>,
    /// The copy is not what it is to be any more.
    stale: bool,
}

/// All parameters of a model.
#[derive(Debug)]
pub struct Parameters {
    info: ParametersInfo,
    /// The number of the token table, of a model that trains one.
    table: Option<usize>,
    values: Vec<Values>,
    /// What the copies are of.
    shows: Shows,
    /// For layers that look themselves.
    watch: Arc<Watch>,
    /// Moments and averages are mapped files.
    of_files: bool,
    /// A round is on its way.
    in_round: bool,
    holds: Holds,
}

/// What a model trains.
#[derive(Debug)]
pub(crate) struct Trained {
    /// Its parameters, in the order of the model's file.
    pub(crate) list: Vec<Parameter>,
    /// Their numbers, as the backward pass ends their gradients: of the token table the part that is no embedding's.
    pub(crate) order: Vec<usize>,
    /// How their gradients are cut.
    pub(crate) buckets: BucketSizes,
    /// The number of the token table, if it is trained.
    pub(crate) table: Option<usize>,
    /// Whether their average is kept.
    pub(crate) average: bool,
    /// Whether ranks take steps by themselves.
    pub(crate) rounds: bool,
    /// How products come to what is shown.
    pub(crate) showing: Showing,
    /// Where moments and averages are mapped files; none: they are memory.
    pub(crate) folder: Option<PathBuf>,
}

/// How products come to the values that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Showing {
    /// They take parameters as they are, or copies of the averages where these are kept.
    Averages,
    /// They take copies, of whatever is shown.
    Anything,
    /// Layers look at parameters or averages themselves ([`TrainedTensor`]).
    Layers,
}

/// The parts of the state, as they are named.
const STATES: [&str; 5] = ["model", "adamw.mean", "adamw.square", "outer.momentum", "average"];

/// What a tensor of the state can be called.
const TENSORS: &str = "model., adamw.mean., adamw.square., in rounds outer.momentum. instead of these two, or, where one is kept, \
                       average. and the name of a parameter";

impl Parameters {
    /// With the values that `initial` gives for each, which are copied; moments of zero. `copied`: those that are multiplied by in bf16.
    pub(crate) fn new(
        trained: Trained,
        copied: impl Fn(usize) -> bool,
        mut initial: impl FnMut(usize) -> Result<Tensor>,
    ) -> Result<Self> {
        let Trained { list, order, buckets, table, average: keeps_average, rounds, showing, folder } =
            trained;
        let has_copies = showing == Showing::Anything || keeps_average && showing == Showing::Averages;
        let mut values = Vec::with_capacity(list.len());
        for number in 0..list.len() {
            let first = initial(number)?;
            let mut master = first.f_empty_like()?;
            master.f_copy_(&first)?;
            // The parameter itself cannot be shown as anything else.
            let kind = [(copied(number), Kind::BFloat16), (has_copies, Kind::Float)];
            let kind = kind.into_iter().find_map(|(wanted, kind)| wanted.then_some(kind));
            let low = kind.map(|kind| Tensor::f_empty(master.size(), (kind, Device::Cpu))).transpose()?;
            let zeros = || zeros(&master, folder.as_deref());
            let average = keeps_average.then(zeros).transpose()?;
            let average = average.map(|mut average| average.f_copy_(&first).map(|()| average)).transpose()?;
            let (mean, square) = (zeros()?, zeros()?);
            let round = || Ok::<_, Error>(RoundValues { momentum: zeros()?, before: zeros()? });
            let round = rounds.then(round).transpose()?;
            values.push(Values { master, mean, square, average, round, stale: low.is_some(), low });
        }
        let plan = BucketPlan::new(&list, &order, buckets);
        let width = table.and_then(|table| list[table].shape.get(1).copied()).unwrap_or(0);
        let info = ParametersInfo { list, plan, width, part: native::part() };
        let mut parameters = Parameters {
            info,
            table,
            values,
            shows: Shows::Parameters,
            watch: Arc::default(),
            of_files: folder.is_some(),
            in_round: false,
            holds: Holds::default(),
        };
        parameters.refresh()?;
        Ok(parameters)
    }

    /// What a job has to know of them.
    pub fn info(&self) -> &ParametersInfo {
        &self.info
    }

    /// Where a backward pass puts gradients, if with `add` to what is there.
    pub(crate) fn gradients<'a>(&'a self, owner: &'a mut dyn Buckets, add: bool) -> Gradients<'a> {
        Gradients::new(&self.info, owner, add)
    }

    /// A parameter as a layer sees it, whose gradient is of this kind.
    pub(crate) fn tensor(&self, number: usize, kind: Kind) -> Result<TrainedTensor> {
        let Values { master, average, .. } = &self.values[number];
        TrainedTensor::new(master, average.as_ref(), kind, &self.watch)
    }

    /// The parameter itself, fp32.
    pub(crate) fn master(&self, number: usize) -> &Tensor {
        &self.values[number].master
    }

    /// What products take: the copy in bf16, where there is one.
    pub(crate) fn factor(&self, number: usize) -> &Tensor {
        let values = &self.values[number];
        values.low.as_ref().unwrap_or(&values.master)
    }

    /// Rounds anew what was written to since.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        if self.shows == Shows::Given {
            return Ok(());
        }
        for values in self.values.iter_mut().filter(|values| values.stale) {
            if let Some(low) = &mut values.low {
                low.f_copy_(
                    values
                        .average
                        .as_ref()
                        .filter(|_| self.shows == Shows::Average)
                        .unwrap_or(&values.master),
                )?;
            }
            values.stale = false;
        }
        Ok(())
    }

    /// What products take from then on.
    ///
    /// # Errors
    /// No average is kept; of some parameter there is no copy that could hold another value.
    pub fn show(&mut self, shows: Shows) -> Result<()> {
        let lacks = |values: &Values| match shows {
            Shows::Parameters => false,
            Shows::Average => values.average.is_none(),
            Shows::Given => values.low.is_none(),
        };
        if self.values.iter().any(lacks) {
            let allowed = "what was asked for when the parameters were opened";
            return Err(Error::argument("shows", format!("{shows:?}"), allowed));
        }
        if shows != self.shows {
            self.shows = shows;
            self.watch.show_average(shows == Shows::Average);
            self.values.iter_mut().for_each(|values| values.stale = true);
        }
        Ok(())
    }

    /// Writes the bytes of a part of what is shown in a parameter's place.
    ///
    /// # Errors
    /// [`Shows::Given`] is not what is shown; no such parameter or place.
    pub fn give_shown(&mut self, parameter: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.shows != Shows::Given {
            return Err(Error::argument("shows", format!("{:?}", self.shows), "Given"));
        }
        let number = self.info.list.iter().position(|one| one.name == parameter);
        let low = number.and_then(|number| self.values[number].low.as_ref());
        let low = low.ok_or_else(|| Error::argument("parameter", parameter, "a parameter that is open"))?;
        write(low, parameter, offset, bytes)
    }

    /// That the token table has a row for each of these ids.
    pub(crate) fn check_looked_up(&self, looked_up: &EmbeddingRows) -> Result<()> {
        let rows =
            self.table.and_then(|table| self.info.list[table].shape.first().copied()).unwrap_or(0) as i64;
        match looked_up.ids().iter().find(|id| !(0..rows).contains(*id)) {
            None => Ok(()),
            Some(id) => Err(Error::argument("looked_up", id, format!("ids from 0 to {}", rows - 1))),
        }
    }

    /// The state as it is, for other threads to read: until what this gives is dropped, nothing may change it.
    ///
    /// # Errors
    /// libtorch's.
    pub fn hold_state(&self) -> Result<HeldTensors> {
        let mut tensors = Vec::with_capacity(STATES.len() * self.values.len());
        for tensor in self.state_tensors() {
            let (number, kind) = self.find(&tensor.name)?;
            tensors.push((tensor.name, self.values[number].of(kind)?.f_detach()?));
        }
        Ok(HeldTensors::new(&self.holds, tensors.into_iter()))
    }

    /// A part of a parameter, to move: `count` of its numbers from `first` on.
    ///
    /// # Errors
    /// The state is held.
    fn part(&mut self, number: usize, first: usize, count: usize) -> Result<Part> {
        self.holds.none()?;
        self.watch.changed();
        let values = &self.values[number];
        let part = |tensor: &Tensor| tensor.f_view([-1])?.f_narrow(0, first as i64, count as i64);
        Ok(Part {
            parameter: part(&values.master)?,
            mean: part(&values.mean)?,
            square: part(&values.square)?,
            average: values.average.as_ref().map(part).transpose()?,
            momentum: values.round.as_ref().map(|round| part(&round.momentum)).transpose()?,
            low: values.low.as_ref().map(part).transpose()?,
            of_file: self.of_files,
        })
    }

    /// The state's tensors, all fp32, by name.
    pub fn state_tensors(&self) -> Vec<StateTensor> {
        let of = |kind: &str, parameter: &Parameter| StateTensor {
            name: format!("{kind}.{}", parameter.name),
            shape: parameter.shape.clone(),
        };
        let has = |kind: &usize| self.values.first().is_some_and(|values| values.of(*kind).is_ok());
        (0..STATES.len())
            .filter(has)
            .flat_map(|kind| self.info.list.iter().map(move |parameter| of(STATES[kind], parameter)))
            .collect()
    }

    /// Copies the bytes of a state's tensor from `offset` on into `into`.
    ///
    /// # Errors
    /// No such tensor or place.
    pub fn read_state(&self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        let (number, kind) = self.find(tensor)?;
        let part = slice(self.values[number].of(kind)?, tensor, offset, into.len())?;
        if !into.is_empty() {
            part.f_copy_data_u8(into, into.len() / 4)?;
        }
        Ok(())
    }

    /// Writes the bytes of a part of a state's tensor; what is computed from then on goes by them.
    ///
    /// # Errors
    /// As [`Parameters::read_state`]'s; the state is held.
    pub fn write_state(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        self.holds.none()?;
        let (number, kind) = self.find(tensor)?;
        let values = &mut self.values[number];
        write(values.of(kind)?, tensor, offset, bytes)?;
        values.stale |= kind == 0 || kind == 4;
        self.watch.changed();
        Ok(())
    }

    /// The number of a state tensor's parameter, and of its kind among [`STATES`].
    fn find(&self, tensor: &str) -> Result<(usize, usize)> {
        let found = STATES.iter().enumerate().find_map(|(kind, prefix)| {
            let name = tensor.strip_prefix(prefix)?.strip_prefix('.')?;
            let number = self.info.list.iter().position(|parameter| parameter.name == name)?;
            Some((number, kind))
        });
        found.ok_or_else(|| Error::argument("tensor", tensor, TENSORS))
    }
}

impl Values {
    fn of(&self, kind: usize) -> Result<&Tensor> {
        let Values { master, mean, square, average, round, .. } = self;
        // The moments of a round are forgotten with it.
        let moments = |tensor| Some(tensor).filter(|_| round.is_none());
        let momentum = round.as_ref().map(|round| &round.momentum);
        let of = [Some(master), moments(mean), moments(square), momentum, average.as_ref()];
        let named = || STATES.get(kind).copied().unwrap_or_default();
        of.get(kind).copied().flatten().ok_or_else(|| Error::argument("tensor", named(), TENSORS))
    }
}

/// Views of one part of a parameter and of all that goes with it.
#[derive(Debug)]
struct Part {
    parameter: Tensor,
    mean: Tensor,
    square: Tensor,
    average: Option<Tensor>,
    /// Of rounds.
    momentum: Option<Tensor>,
    low: Option<Tensor>,
    of_file: bool,
}

impl Part {
    /// What it is now.
    fn parameter(&self) -> &Tensor {
        &self.parameter
    }

    /// Makes it `values`.
    fn set(&mut self, values: &Tensor) -> Result<()> {
        self.parameter.f_copy_(values)?;
        if let Some(low) = &mut self.low {
            low.f_copy_(values)?;
        }
        Ok(())
    }

    /// Makes zeros of its moments, whose memory is the system's again, if it is no file's.
    fn forget(&mut self) -> Result<()> {
        if self.of_file {
            let (_mean, _square) = (self.mean.f_zero_()?, self.square.f_zero_()?);
            return Ok(());
        }
        native::forget(&mut self.mean)?;
        native::forget(&mut self.square)
    }

    fn moved(&mut self) -> Moved<'_> {
        let Part { parameter, mean, square, low, .. } = self;
        Moved { parameter, mean, square, low: low.as_mut().filter(|low| low.kind() == Kind::BFloat16) }
    }

    /// What else follows where the parameter has moved.
    fn follow(&mut self, average_decay: Option<f64>) -> Result<()> {
        if let Some(low) = self.low.as_mut().filter(|low| low.kind() == Kind::Float) {
            low.f_copy_(&self.parameter)?;
        }
        self.move_average(average_decay)
    }

    /// Source of the rounding: diffusers, EMAModel.step.
    fn move_average(&mut self, average_decay: Option<f64>) -> Result<()> {
        let Part { parameter, average, .. } = self;
        if let (Some(average), Some(decay)) = (average, average_decay) {
            let moved = average.f_sub(parameter)?.f_mul_scalar(1.0 - decay)?;
            let _ = average.f_sub_(&moved)?;
        }
        Ok(())
    }
}

/// Zeros of a parameter's shape that take no memory before they are written to: a rank may have a part of them alone. In a mapped
/// file of `folder`, all of whose place on the disk is taken at once.
fn zeros(like: &Tensor, folder: Option<&Path>) -> Result<Tensor> {
    match folder {
        Some(folder) => mapped_file::zeros(folder, &like.size()),
        None => {
            let mut zeros = like.f_empty_like()?;
            native::forget(&mut zeros)?;
            Ok(zeros)
        }
    }
}

/// Writes fp32 numbers over those that their bytes from `offset` on would be.
fn write(values: &Tensor, name: &str, offset: u64, bytes: &[u8]) -> Result<()> {
    let mut part = slice(values, name, offset, bytes.len())?;
    if !bytes.is_empty() {
        part.f_copy_(&Tensor::f_from_data_size(bytes, &[bytes.len() as i64 / 4], Kind::Float)?)?;
    }
    Ok(())
}

/// A view of the numbers that `length` bytes from `offset` on are.
fn slice(values: &Tensor, name: &str, offset: u64, length: usize) -> Result<Tensor> {
    let place = whole_numbers(name, values.numel() * 4, offset, length)?;
    Ok(values.f_view([-1])?.f_narrow(0, (place / 4) as i64, (length / 4) as i64)?)
}

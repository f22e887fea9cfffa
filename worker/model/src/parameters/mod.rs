//! Parameters that are trained, of whatever model: in fp32, with the optimizer's moments and copies to compute with. Their gradients
//! come in the caller's buckets.

mod gradients;
mod held;
pub(crate) mod native;
mod optimizer;

use ringtune_engine::{
    BucketPlan, BucketSizes, Buckets, EmbeddingRows, Parameter, ParametersInfo, StateTensor,
};
use tch::{Device, Kind, Tensor};

pub(crate) use gradients::{Gradients, product};
pub use held::HeldTensors;
use held::{Holds, whole_numbers};
use native::Moved;

use crate::error::{Error, Result};

/// One parameter.
#[derive(Debug)]
struct Values {
    master: Tensor,
    /// The optimizer's moments.
    mean: Tensor,
    square: Tensor,
    /// Rounded to bf16, of what is multiplied by in bf16.
    low: Option<Tensor>,
    /// The copy is not the parameter's any more.
    stale: bool,
}

/// All parameters of a model.
#[derive(Debug)]
pub struct Parameters {
    info: ParametersInfo,
    /// The number of the token table, of a model that trains one.
    table: Option<usize>,
    values: Vec<Values>,
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
}

/// The parts of the state, as they are named.
const STATES: [&str; 3] = ["model", "adamw.mean", "adamw.square"];

impl Parameters {
    /// With the values that `initial` gives for each, which are copied; moments of zero. `copied`: those that are multiplied by in bf16.
    pub(crate) fn new(
        trained: Trained,
        copied: impl Fn(usize) -> bool,
        mut initial: impl FnMut(usize) -> Result<Tensor>,
    ) -> Result<Self> {
        let Trained { list, order, buckets, table } = trained;
        let mut values = Vec::with_capacity(list.len());
        for number in 0..list.len() {
            let first = initial(number)?;
            let mut master = first.f_empty_like()?;
            master.f_copy_(&first)?;
            let low = if copied(number) {
                Some(Tensor::f_empty(master.size(), (Kind::BFloat16, Device::Cpu))?)
            } else {
                None
            };
            // Not touched before the optimizer does: a rank may have a part of them alone.
            let (mut mean, mut square) = (master.f_empty_like()?, master.f_empty_like()?);
            native::forget(&mut mean)?;
            native::forget(&mut square)?;
            values.push(Values { master, mean, square, stale: low.is_some(), low });
        }
        let plan = BucketPlan::new(&list, &order, buckets);
        let width = table.and_then(|table| list[table].shape.get(1).copied()).unwrap_or(0);
        let info = ParametersInfo { list, plan, width, part: native::part() };
        let mut parameters = Parameters { info, table, values, holds: Holds::default() };
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
        for values in self.values.iter_mut().filter(|values| values.stale) {
            if let Some(low) = &mut values.low {
                low.f_copy_(&values.master)?;
            }
            values.stale = false;
        }
        Ok(())
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
            tensors.push((tensor.name, self.values[number].of(kind).f_detach()?));
        }
        Ok(HeldTensors::new(&self.holds, tensors.into_iter()))
    }

    /// A part of a parameter, to move: `count` of its numbers from `first` on.
    ///
    /// # Errors
    /// The state is held.
    fn part(&mut self, number: usize, first: usize, count: usize) -> Result<Part> {
        self.holds.none()?;
        let values = &self.values[number];
        let part = |tensor: &Tensor| tensor.f_view([-1])?.f_narrow(0, first as i64, count as i64);
        Ok(Part {
            parameter: part(&values.master)?,
            mean: part(&values.mean)?,
            square: part(&values.square)?,
            low: values.low.as_ref().map(part).transpose()?,
        })
    }

    /// The state's tensors, all fp32, by name.
    pub fn state_tensors(&self) -> Vec<StateTensor> {
        let of = |kind: &str, parameter: &Parameter| StateTensor {
            name: format!("{kind}.{}", parameter.name),
            shape: parameter.shape.clone(),
        };
        STATES
            .iter()
            .flat_map(|kind| self.info.list.iter().map(move |parameter| of(kind, parameter)))
            .collect()
    }

    /// Copies the bytes of a state's tensor from `offset` on into `into`.
    ///
    /// # Errors
    /// No such tensor or place.
    pub fn read_state(&self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        let (number, kind) = self.find(tensor)?;
        let part = slice(self.values[number].of(kind), tensor, offset, into.len())?;
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
        let mut part = slice(values.of(kind), tensor, offset, bytes.len())?;
        if !bytes.is_empty() {
            part.f_copy_(&Tensor::f_from_data_size(bytes, &[bytes.len() as i64 / 4], Kind::Float)?)?;
        }
        values.stale |= kind == 0;
        Ok(())
    }

    /// The number of a state tensor's parameter, and of its kind among [`STATES`].
    fn find(&self, tensor: &str) -> Result<(usize, usize)> {
        let found = STATES.iter().enumerate().find_map(|(kind, prefix)| {
            let name = tensor.strip_prefix(prefix)?.strip_prefix('.')?;
            let number = self.info.list.iter().position(|parameter| parameter.name == name)?;
            Some((number, kind))
        });
        found.ok_or_else(|| {
            let allowed = "model., adamw.mean. or adamw.square. and the name of a parameter";
            Error::argument("tensor", tensor, allowed)
        })
    }
}

impl Values {
    fn of(&self, kind: usize) -> &Tensor {
        [&self.master, &self.mean, &self.square][kind.min(2)]
    }
}

/// Views of one part of a parameter and of all that goes with it.
#[derive(Debug)]
struct Part {
    parameter: Tensor,
    mean: Tensor,
    square: Tensor,
    low: Option<Tensor>,
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

    /// Makes zeros of its moments, whose memory is the system's again.
    fn forget(&mut self) -> Result<()> {
        native::forget(&mut self.mean)?;
        native::forget(&mut self.square)
    }

    fn moved(&mut self) -> Moved<'_> {
        let Part { parameter, mean, square, low } = self;
        Moved { parameter, mean, square, low: low.as_mut() }
    }
}

/// A view of the numbers that `length` bytes from `offset` on are.
fn slice(values: &Tensor, name: &str, offset: u64, length: usize) -> Result<Tensor> {
    let place = whole_numbers(name, values.numel() * 4, offset, length)?;
    Ok(values.f_view([-1])?.f_narrow(0, (place / 4) as i64, (length / 4) as i64)?)
}

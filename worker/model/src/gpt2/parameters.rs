//! What a GPT-2 that is trained consists of: fp32 parameters, the optimizer's moments, and copies to compute with.

use ringtune_engine::{Parameter, Precision, StateTensor};
use tch::{Device, Kind, Tensor};

use super::config::Gpt2Config;
use super::held::{HeldTensors, Holds, whole_numbers};
use super::layout::Layout;
use super::native::{self, Moved};
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
pub(crate) struct Parameters {
    pub(crate) config: Gpt2Config,
    pub(crate) layout: Layout,
    precision: Precision,
    values: Vec<Values>,
    holds: Holds,
}

/// The parts of the state, as they are named.
const STATES: [&str; 3] = ["model", "adamw.mean", "adamw.square"];

impl Parameters {
    /// With the values that `initial` gives for each, which are copied; moments of zero.
    pub(crate) fn new(
        config: Gpt2Config,
        layout: Layout,
        precision: Precision,
        mut initial: impl FnMut(usize) -> Result<Tensor>,
    ) -> Result<Self> {
        let mut values = Vec::with_capacity(layout.parameters.len());
        for number in 0..layout.parameters.len() {
            let first = initial(number)?;
            let mut master = first.f_empty_like()?;
            master.f_copy_(&first)?;
            let low = precision == Precision::Bf16 && layout.in_products(number);
            let low =
                if low { Some(Tensor::f_empty(master.size(), (Kind::BFloat16, Device::Cpu))?) } else { None };
            // Not touched before the optimizer does: a rank may have a part of them alone.
            let (mut mean, mut square) = (master.f_empty_like()?, master.f_empty_like()?);
            native::forget(&mut mean)?;
            native::forget(&mut square)?;
            values.push(Values { master, mean, square, stale: low.is_some(), low });
        }
        let mut parameters = Parameters { config, layout, precision, values, holds: Holds::default() };
        parameters.refresh()?;
        Ok(parameters)
    }

    /// Whether activations are bf16.
    pub(crate) fn is_low(&self) -> bool {
        self.precision == Precision::Bf16
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

    /// That the state may change.
    ///
    /// # Errors
    /// It is held.
    pub(crate) fn may_move(&mut self) -> Result<()> {
        self.holds.none()
    }

    /// The state as it is, until what this gives is dropped.
    ///
    /// # Errors
    /// libtorch's.
    pub(crate) fn hold(&self) -> Result<HeldTensors> {
        let mut tensors = Vec::with_capacity(STATES.len() * self.values.len());
        for tensor in self.tensors() {
            let (number, kind) = self.find(&tensor.name)?;
            tensors.push((tensor.name, self.values[number].of(kind).f_detach()?));
        }
        Ok(HeldTensors::new(&self.holds, tensors.into_iter()))
    }

    /// A part of a parameter, to move: `count` of its numbers from `first` on.
    ///
    /// # Errors
    /// The state is held.
    pub(crate) fn part(&mut self, number: usize, first: usize, count: usize) -> Result<Part> {
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

    /// The state's tensors, by name.
    pub(crate) fn tensors(&self) -> Vec<StateTensor> {
        let of = |kind: &str, parameter: &Parameter| StateTensor {
            name: format!("{kind}.{}", parameter.name),
            shape: parameter.shape.clone(),
        };
        STATES
            .iter()
            .flat_map(|kind| self.layout.parameters.iter().map(move |parameter| of(kind, parameter)))
            .collect()
    }

    /// Copies a part of a state's tensor out.
    ///
    /// # Errors
    /// No such tensor or place.
    pub(crate) fn read(&self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        let (number, kind) = self.find(tensor)?;
        let part = slice(self.values[number].of(kind), tensor, offset, into.len())?;
        if !into.is_empty() {
            part.f_copy_data_u8(into, into.len() / 4)?;
        }
        Ok(())
    }

    /// The other way round; call [`Parameters::refresh`] before anything is computed. Errors: the same; the state is held.
    pub(crate) fn write(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<()> {
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
            let number = self.layout.parameters.iter().position(|parameter| parameter.name == name)?;
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
pub(crate) struct Part {
    parameter: Tensor,
    mean: Tensor,
    square: Tensor,
    low: Option<Tensor>,
}

impl Part {
    /// What it is now.
    pub(crate) fn parameter(&self) -> &Tensor {
        &self.parameter
    }

    /// Makes it `values`.
    pub(crate) fn set(&mut self, values: &Tensor) -> Result<()> {
        self.parameter.f_copy_(values)?;
        if let Some(low) = &mut self.low {
            low.f_copy_(values)?;
        }
        Ok(())
    }

    /// Makes zeros of its moments, whose memory is the system's again.
    pub(crate) fn forget(&mut self) -> Result<()> {
        native::forget(&mut self.mean)?;
        native::forget(&mut self.square)
    }

    pub(crate) fn moved(&mut self) -> Moved<'_> {
        let Part { parameter, mean, square, low } = self;
        Moved { parameter, mean, square, low: low.as_mut() }
    }
}

/// A view of the numbers that `length` bytes from `offset` on are.
fn slice(values: &Tensor, name: &str, offset: u64, length: usize) -> Result<Tensor> {
    let place = whole_numbers(name, values.numel() * 4, offset, length)?;
    Ok(values.f_view([-1])?.f_narrow(0, (place / 4) as i64, (length / 4) as i64)?)
}

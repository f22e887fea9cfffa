//! Parameters and moments, held for other threads to read while passes are computed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ringtune_engine::{EngineError, HeldState};
use tch::Tensor;

use crate::error::{Error, Result};

/// Whether a state is held. Its owner changes nothing while [`Holds::none`] says no.
#[derive(Debug, Default)]
pub(crate) struct Holds(Arc<()>);

impl Holds {
    /// That nobody holds the state, and that whoever did has read it: what they read comes before whatever is written next.
    ///
    /// # Errors
    /// Somebody does.
    pub(crate) fn none(&mut self) -> Result<()> {
        Arc::get_mut(&mut self.0).map(drop).ok_or(Error::Held)
    }
}

/// All tensors of a state by their names, as they are until this is dropped.
pub struct HeldTensors {
    tensors: BTreeMap<String, Memory>,
    /// Goes last: then nothing of the memory is read any more.
    _hold: Arc<()>,
}

/// The numbers of a tensor, and what keeps them there.
struct Memory {
    start: *const u8,
    bytes: usize,
    _tensor: Tensor,
}

// SAFETY: the memory is plain numbers, which stay allocated with the tensor and are only read here; libtorch counts its
// references atomically, and the tensor is not touched but to be dropped.
unsafe impl Send for Memory {}
// SAFETY: as above. Nobody writes the numbers while they are held: `Parameters` asks `Holds` before it lends any to what
// writes, on the one thread that may do both.
unsafe impl Sync for Memory {}

impl HeldTensors {
    /// `tensors`: contiguous fp32, by their names, of the owner of `holds`.
    pub(crate) fn new(holds: &Holds, tensors: impl Iterator<Item = (String, Tensor)>) -> Self {
        let memory = |tensor: Tensor| Memory {
            start: tensor.data_ptr().cast_const().cast(),
            bytes: tensor.numel() * 4,
            _tensor: tensor,
        };
        let tensors = tensors.map(|(name, tensor)| (name, memory(tensor))).collect();
        HeldTensors { tensors, _hold: Arc::clone(&holds.0) }
    }

    fn copy(&self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        let memory = self.tensors.get(tensor).ok_or_else(|| {
            Error::argument(
                "tensor",
                tensor,
                "model., adamw.mean. or adamw.square. and the name of a parameter",
            )
        })?;
        let place = whole_numbers(tensor, memory.bytes, offset, into.len())?;
        // SAFETY: the place is within the tensor's memory, which is held; `into` is somebody else's.
        unsafe { memory.start.add(place).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }
}

/// The place of `length` bytes from `offset` on in a tensor of so many, that has to be whole numbers of it.
///
/// # Errors
/// It is not, or not within.
pub(crate) fn whole_numbers(name: &str, bytes: usize, offset: u64, length: usize) -> Result<usize> {
    let place =
        usize::try_from(offset).ok().filter(|place| place.is_multiple_of(4) && length.is_multiple_of(4));
    let place = place.filter(|place| place.checked_add(length).is_some_and(|end| end <= bytes));
    place.ok_or_else(|| {
        let allowed = format!("whole numbers within the {bytes} bytes of {name}");
        Error::argument("offset", format!("{offset} for {length} bytes"), allowed)
    })
}

impl HeldState for HeldTensors {
    fn read(&self, tensor: &str, offset: u64, into: &mut [u8]) -> std::result::Result<(), EngineError> {
        self.copy(tensor, offset, into).map_err(|error| EngineError::OfJob(Box::new(error)))
    }
}

impl fmt::Debug for HeldTensors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HeldTensors").field("tensors", &self.tensors.len()).finish_non_exhaustive()
    }
}

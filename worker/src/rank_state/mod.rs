//! A rank's state after a step: how it leaves the rank, and how it comes to one.
//!
//! What is small is in memory ([`SavedState`]); weights and their moments live with the engine and are lent, a chunk at a
//! time ([`LargeTensors`]), so that no copy of them is ever made. Both together are one state: one list of tensors, one
//! encoding, one hash.

mod holds;
mod taken;

use std::{collections::BTreeMap, fmt, io::Write, sync::Arc};

use ringtune_shared::{
    ids::ContentHash,
    state::{
        ChunkPlace, Encoded, Encoder, FromTensors, LARGEST_HEADER, State, StateError, StateSource,
        TensorInfo, TensorList, transfer,
    },
};

pub use self::{
    holds::{Hold, Holds},
    taken::TakenState,
};
use crate::train::{SavedState, saved};

/// Tensors that their owner lends. They stay as they are until the next step changes them, and may be read as often as
/// need be until then; holding them keeps them longer.
pub trait LargeTensors: fmt::Debug + Send + Sync {
    /// Its tensors.
    fn tensors(&self) -> &[TensorInfo];

    /// Copies the bytes of tensor number `tensor` from `offset` on into all of `into`. Blocks.
    ///
    /// # Errors
    /// They cannot be read.
    fn fill(&self, tensor: usize, offset: u64, into: &mut [u8]) -> Result<(), StateError>;

    /// The same tensors, which stay as they are until what this gives is dropped: the next step waits before it changes
    /// them. Nothing is copied. Blocks.
    ///
    /// # Errors
    /// Their owner does not give them.
    fn hold(&self) -> Result<Arc<dyn LargeTensors>, StateError>;
}

/// A rank's state after a step. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RankState {
    small: Arc<SavedState>,
    large: Option<Arc<dyn LargeTensors>>,
}

impl RankState {
    /// A state that is all in memory.
    pub fn small(small: SavedState) -> Self {
        Self { small: Arc::new(small), large: None }
    }

    /// A state of which most is with somebody else.
    pub fn large(small: SavedState, large: Arc<dyn LargeTensors>) -> Self {
        Self { small: Arc::new(small), large: Some(large) }
    }

    /// Whether parts of it are only lent: it is not to be copied, and is gone when the next step changes it.
    pub fn is_lent(&self) -> bool {
        self.large.is_some()
    }

    /// Holds the state unchanged until it is dropped, whatever steps are computed meanwhile. Blocks.
    ///
    /// # Errors
    /// An owner of a part does not give it.
    pub fn hold(&self) -> Result<Self, StateError> {
        let large = self.large.as_ref().map(|large| large.hold()).transpose()?;
        Ok(Self { small: Arc::clone(&self.small), large })
    }

    /// The counters.
    pub fn numbers(&self) -> &BTreeMap<String, u64> {
        &self.small.numbers
    }

    /// Bytes that its encoding has at most.
    pub fn most_bytes(&self) -> u64 {
        let small = self.small.tensors.values().map(|tensor| tensor.len() as u64 * 4);
        let large = self.large.iter().flat_map(|large| large.tensors()).map(TensorInfo::bytes);
        small.chain(large).fold(LARGEST_HEADER + 8, u64::saturating_add)
    }

    /// The hash of the canonical encoding, counters included: equal states have equal ones, whatever ring made them.
    /// Blocks.
    ///
    /// # Errors
    /// See [`RankState::write`].
    pub fn hash(&self) -> Result<ContentHash, StateError> {
        Ok(Encoder::hash(saved::metadata(self.numbers())?, &mut *self.source()?)?.sha256)
    }

    /// Writes the canonical encoding, and says what it is. Blocks.
    ///
    /// # Errors
    /// The writer's; tensors that cannot be read; names or counters that no encoding can have.
    pub fn write(&self, writer: impl Write) -> Result<Encoded, StateError> {
        let mut encoder = Encoder::new(saved::metadata(self.numbers())?, writer);
        transfer(&mut *self.source()?, &mut encoder)?;
        encoder.encoded().ok_or_else(|| StateError::refused("its encoding came to no end"))
    }
}

/// Origin of a tensor of the whole list.
enum Origin<'a> {
    Small(&'a [f32]),
    Large(usize),
}

impl State for RankState {
    /// A source of all tensors in the encoding's order, wherever they are.
    fn source(&self) -> Result<Box<dyn StateSource + '_>, StateError> {
        let Some(large) = &self.large else { return self.small.source() };
        let mut origins = BTreeMap::new();
        for (name, numbers) in &self.small.tensors {
            origins.insert(name.as_str(), Origin::Small(numbers));
        }
        let mut tensors = self.small.infos()?;
        for (number, tensor) in large.tensors().iter().enumerate() {
            // Two of one name are refused with the list.
            origins.insert(tensor.name(), Origin::Large(number));
            tensors.push(tensor.clone());
        }
        let list = TensorList::new(tensors)?;
        let mut ordered = Vec::with_capacity(list.tensors().len());
        for tensor in list.tensors() {
            let origin = origins.remove(tensor.name());
            ordered.push(origin.ok_or_else(|| StateError::refused("a tensor comes from nowhere"))?);
        }
        let fill = move |place: ChunkPlace, into: &mut [u8]| match ordered.get(place.tensor) {
            Some(Origin::Small(numbers)) => {
                saved::fill(numbers, place.offset, into);
                Ok(())
            }
            Some(Origin::Large(number)) => large.fill(*number, place.offset, into),
            None => Err(StateError::refused("a chunk belongs to no tensor")),
        };
        Ok(Box::new(FromTensors::new(list, fill)))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use ringtune_shared::state::Dtype;

    use super::*;

    #[derive(Debug)]
    struct Lent(Vec<TensorInfo>, Vec<Vec<u8>>);

    impl LargeTensors for Lent {
        fn tensors(&self) -> &[TensorInfo] {
            &self.0
        }

        fn fill(&self, tensor: usize, offset: u64, into: &mut [u8]) -> Result<(), StateError> {
            let bytes = self.1.get(tensor).ok_or_else(|| StateError::Io(io::Error::other("gone")))?;
            into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
            Ok(())
        }

        fn hold(&self) -> Result<Arc<dyn LargeTensors>, StateError> {
            if self.1.is_empty() {
                return Err(StateError::Io(io::Error::other("gone")));
            }
            Ok(Arc::new(Self(self.0.clone(), self.1.clone())))
        }
    }

    fn numbers(count: usize, first: f32) -> Vec<f32> {
        (0..count).map(|number| first + number as f32).collect()
    }

    /// Its tensors' names lie before, between and behind the others.
    fn small() -> SavedState {
        let mut small = SavedState::default();
        small.put_number("count", 3);
        small.put_tensor("a", numbers(3, 0.5));
        small.put_tensor("m", numbers(300_000, 7.0));
        small.put_tensor("z", Vec::new());
        small
    }

    /// A state with lent tensors has the bytes, and so the hash, of one that is all in memory.
    #[test]
    fn whoever_has_its_tensors_a_state_has_one_encoding() {
        let (first, second) = (numbers(5, -1.0), numbers(600_000, 0.25));
        let mut whole = small();
        whole.put_tensor("b", first.clone());
        whole.put_tensor("n", second.clone());
        let bytes = |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let info =
            |name, numbers: &[f32]| TensorInfo::new(name, Dtype::F32, vec![numbers.len() as u64]).unwrap();
        // In another order than that of their names.
        let lent = Lent(vec![info("n", &second), info("b", &first)], vec![bytes(&second), bytes(&first)]);
        let parted = RankState::large(small(), Arc::new(lent));
        let (mut one, mut other) = (Vec::new(), Vec::new());
        let whole = RankState::small(whole);
        assert_eq!(parted.write(&mut one).unwrap(), whole.write(&mut other).unwrap());
        assert!(one == other && (one.len() as u64) < parted.most_bytes());
        assert_eq!(parted.hash().unwrap(), whole.hash().unwrap());
        assert_eq!(parted.hold().unwrap().hash().unwrap(), whole.hold().unwrap().hash().unwrap());
    }

    #[test]
    fn what_cannot_be_read_and_two_of_one_name_are_errors() {
        let info = |name| TensorInfo::new(name, Dtype::F32, vec![1]).unwrap();
        let gone = RankState::large(small(), Arc::new(Lent(vec![info("q")], Vec::new())));
        assert!(gone.hash().unwrap_err().to_string().contains("gone"));
        assert!(gone.hold().unwrap_err().to_string().contains("gone"));
        let twice = RankState::large(small(), Arc::new(Lent(vec![info("a")], vec![vec![0; 4]])));
        assert!(twice.hash().is_err());
    }
}

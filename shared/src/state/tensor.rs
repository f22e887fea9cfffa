//! A tensor's name, type and shape; and the list of a state's tensors.

use std::{collections::BTreeSet, sync::Arc};

/// The types of the safetensors format, in its order: narrow ones first.
pub use safetensors::Dtype;

use super::{LONGEST_NAME, MOST_DIMENSIONS, MOST_TENSORS, StateError, TensorProblem};

/// The format's key of metadata.
pub(super) const METADATA_KEY: &str = "__metadata__";

/// A tensor without its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    bytes: u64,
}

impl TensorInfo {
    /// `shape`: the last dimension runs fastest; empty for a single number.
    ///
    /// # Errors
    /// An invalid name, too many dimensions, a size that is not a whole number of bytes or no 64-bit number.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: Vec<u64>) -> Result<Self, StateError> {
        let name = name.into();
        let wrong = |problem| StateError::tensor(&name, problem);
        if name.is_empty() || name.len() > LONGEST_NAME || name == METADATA_KEY {
            return Err(wrong(TensorProblem::Name));
        }
        if shape.len() > MOST_DIMENSIONS {
            return Err(wrong(TensorProblem::Dimensions { given: shape.len() }));
        }
        let bits = shape.iter().try_fold(dtype.bitsize() as u64, |size, side| size.checked_mul(*side));
        let bits = bits.ok_or_else(|| wrong(TensorProblem::Overflow))?;
        if !bits.is_multiple_of(8) {
            return Err(wrong(TensorProblem::PartOfByte { bits }));
        }
        Ok(Self { name, dtype, shape, bytes: bits / 8 })
    }

    /// Its name, which no other tensor of its list has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its numbers.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its sides; the last dimension runs fastest.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Bytes that its numbers take.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Wide types first, so that every tensor is aligned; then by name. As in the format's own writer
    /// (`safetensors/src/tensor.rs`, `prepare`).
    pub fn canonical_order(&self, other: &Self) -> std::cmp::Ordering {
        other.dtype.cmp(&self.dtype).then_with(|| self.name.cmp(&other.name))
    }
}

/// The tensors of a state, in the order of their bytes; no name is there twice. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorList {
    tensors: Arc<[TensorInfo]>,
    bytes: u64,
}

impl Default for TensorList {
    fn default() -> Self {
        Self { tensors: Arc::new([]), bytes: 0 }
    }
}

impl TensorList {
    /// Sorts into canonical order.
    ///
    /// # Errors
    /// A name twice, more than [`MOST_TENSORS`], a size of all that is not a 64-bit number.
    pub fn new(mut tensors: Vec<TensorInfo>) -> Result<Self, StateError> {
        tensors.sort_by(TensorInfo::canonical_order);
        Self::in_this_order(tensors)
    }

    /// Keeps the given order.
    pub(super) fn in_this_order(tensors: Vec<TensorInfo>) -> Result<Self, StateError> {
        if tensors.len() > MOST_TENSORS {
            let (given, limit) = (tensors.len() as u64, MOST_TENSORS as u64);
            return Err(StateError::TooMany { what: "tensors", given, limit });
        }
        let (mut names, mut bytes) = (BTreeSet::new(), 0u64);
        for tensor in &tensors {
            if !names.insert(tensor.name.as_str()) {
                return Err(StateError::tensor(&tensor.name, TensorProblem::Twice));
            }
            let sum = bytes.checked_add(tensor.bytes);
            bytes = sum.ok_or_else(|| StateError::tensor(&tensor.name, TensorProblem::Overflow))?;
        }
        Ok(Self { tensors: tensors.into(), bytes })
    }

    /// The tensors.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Checks for canonical order.
    ///
    /// # Errors
    /// They are not; names the first that is out of order.
    pub fn check_order(&self) -> Result<(), StateError> {
        let wrong = |pair: &&[TensorInfo]| pair[0].canonical_order(&pair[1]).is_gt();
        match self.tensors.windows(2).find(wrong) {
            None => Ok(()),
            Some(pair) => Err(StateError::Order { name: super::error::cut(&pair[1].name) }),
        }
    }
}

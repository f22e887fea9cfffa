//! Errors of a state's stream. Callers add the file or neighbour that it came from.

use std::io;

use super::{LONGEST_NAME, MOST_DIMENSIONS};
use crate::{files::FileError, ids::ContentHash};

/// A state that cannot be read, written or taken in.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The length in front of the header is invalid.
    #[error("its header has {given} bytes; allowed: 2 to {limit}")]
    HeaderLength {
        /// The given length.
        given: u64,
        /// Bytes at most.
        limit: u64,
    },
    /// The header is not what the format wants.
    #[error("its header cannot be read: {problem}")]
    Header {
        /// The JSON reader's message.
        problem: String,
    },
    /// More of something than is allowed.
    #[error("it has {given} {what}; allowed: at most {limit}")]
    TooMany {
        /// "tensors" and the like.
        what: &'static str,
        /// Their number; a reader stops at the first above the limit.
        given: u64,
        /// The limit.
        limit: u64,
    },
    /// A metadata entry that is there twice.
    #[error("its metadata has the entry {key:?} twice")]
    MetadataTwice {
        /// The entry, cut to 100 characters.
        key: String,
    },
    /// A tensor that cannot be.
    #[error("tensor {name:?}: {problem}")]
    Tensor {
        /// Its name, cut to 100 characters.
        name: String,
        /// The problem.
        problem: TensorProblem,
    },
    /// Tensors in another order than the canonical one: what is to be written has one spelling only.
    #[error("tensor {name:?} comes after one that it should come before (wider types first, then by name)")]
    Order {
        /// The first that is out of order.
        name: String,
    },
    /// It ends too early.
    #[error("it ends after {found} bytes; it should have at least {expected}")]
    Truncated {
        /// Bytes that its header, or its header's length, asks for.
        expected: u64,
        /// Bytes that were there.
        found: u64,
    },
    /// Something follows that belongs to no tensor.
    #[error("it has bytes after the {expected} that it should have")]
    Trailing {
        /// Bytes of header and tensors.
        expected: u64,
    },
    /// Other bytes than those that were named.
    #[error("its bytes have the hash {found} instead of {expected}")]
    Hash {
        /// The right one.
        expected: ContentHash,
        /// Hash of the received state.
        found: ContentHash,
    },
    /// A source and a sink that do not keep to what was agreed: a fault of the program.
    #[error("a state's stream went wrong: {problem}")]
    Contract {
        /// The violated rule.
        problem: String,
    },
    /// The state's owner does not give it, or its recipient does not take it.
    #[error("{problem}")]
    Refused {
        /// Why.
        problem: String,
    },
    /// Reading or writing.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A file that cannot be made or named.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Problems of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorProblem {
    /// Not what a name may be.
    #[error("a name has 1 to {LONGEST_NAME} bytes and is not \"__metadata__\"")]
    Name,
    /// Its name is another one's, too.
    #[error("the name comes twice")]
    Twice,
    /// A type that the format does not have.
    #[error("the type {given:?} is unknown")]
    Type {
        /// The given type, cut to 100 characters.
        given: String,
    },
    /// Too many dimensions.
    #[error("it has {given} dimensions; allowed: at most {MOST_DIMENSIONS}")]
    Dimensions {
        /// Their number.
        given: usize,
    },
    /// Its size, or that of all so far, is not a 64-bit number.
    #[error("its size is too large to be computed")]
    Overflow,
    /// Numbers narrower than a byte that do not fill the last one.
    #[error("its {bits} bits are not a whole number of bytes")]
    PartOfByte {
        /// Bits.
        bits: u64,
    },
    /// Its size is not that of its type and shape.
    #[error("it has {given} bytes; its type and shape take {expected}")]
    Length {
        /// By type and shape.
        expected: u64,
        /// By its offsets.
        given: u64,
    },
    /// It ends before it begins.
    #[error("it begins at byte {begin} and ends at {end}")]
    Backwards {
        /// Its first offset.
        begin: u64,
        /// Its second.
        end: u64,
    },
    /// The bytes before it belong to no tensor.
    #[error("it begins at byte {begin}, but the tensor before it ends at {expected}")]
    Gap {
        /// End of the tensor before it.
        expected: u64,
        /// Its begin.
        begin: u64,
    },
    /// Its bytes are another one's, too.
    #[error("it begins at byte {begin}, within a tensor that ends at {expected}")]
    Overlap {
        /// End of the tensor before it.
        expected: u64,
        /// Its begin.
        begin: u64,
    },
}

impl StateError {
    /// A problem of the tensor `name`.
    pub(super) fn tensor(name: &str, problem: TensorProblem) -> Self {
        Self::Tensor { name: cut(name), problem }
    }

    /// Something that was not kept to.
    pub(super) fn contract(problem: impl Into<String>) -> Self {
        Self::Contract { problem: problem.into() }
    }

    /// A state that is not what its owner has, or its taker can take.
    pub fn refused(problem: impl Into<String>) -> Self {
        Self::Refused { problem: problem.into() }
    }
}

/// A text from elsewhere, short enough for a message.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(100).collect()
}

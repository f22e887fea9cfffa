//! The pickles that torch.save writes, read without Python.
//!
//! A pickle is a program for a stack machine, and three of its opcodes call whatever the file names. This machine
//! knows the opcodes of protocol 2 that torch.save uses, and calls nothing: the few names that embeddings need are told
//! apart here ([`Global`]), and every other name ends the reading. Values lie in a list and refer to each other by
//! number, so that a file cannot make them deep, large or circular to anybody's harm.
//! Source: CPython, Lib/pickletools.py; PyTorch, torch/_utils.py, torch/serialization.py.

mod calls;
mod machine;
mod stop;

pub(super) use machine::run;

use super::EmbeddingError;
use crate::floats::FloatKind;

/// Bytes of a pickle at most: an embedding's has about a thousand.
const MOST_BYTES: usize = 1 << 20;
/// Values that a pickle makes at most.
const MOST_VALUES: usize = 50_000;
/// Values on the stack at most.
const MOST_STACKED: usize = 10_000;
/// Values in the memo, and numbers of these, at most.
const MOST_REMEMBERED: usize = 50_000;
/// Marks at most: lists and tuples within each other.
const MOST_MARKS: usize = 100;
/// Dimensions of a tensor at most.
const MOST_DIMENSIONS: usize = 8;

/// A value's number on the [`Heap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(usize);

/// Something that a pickle has made.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value<'a> {
    /// None, a Boolean or a float: nothing looks at which.
    Plain,
    Integer(i64),
    Text(&'a str),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    /// In the order of their coming; a later one replaces an earlier one of the same name.
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Storage<'a>),
    Tensor(Tensor<'a>),
    /// torch.nn.ParameterDict, with its `__dict__` once that is known.
    ParameterDict(Option<Id>),
}

/// A name that embeddings' files need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    RebuildTensor,
    RebuildParameter,
    OrderedDict,
    ParameterDict,
    Set,
    Storage(StorageKind),
}

/// The type of a storage's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StorageKind {
    Float(FloatKind),
    /// No embedding; or the number of a token, which is not looked at.
    Other(&'static str),
}

/// Numbers in an entry of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Storage<'a> {
    pub(super) kind: StorageKind,
    /// The entry's name, below "data/".
    pub(super) key: &'a str,
    /// Number of elements.
    pub(super) numbers: usize,
}

/// A view of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor<'a> {
    pub(super) storage: Storage<'a>,
    /// Numbers before its first.
    pub(super) offset: usize,
    /// As many as strides.
    pub(super) shape: Vec<usize>,
    pub(super) stride: Vec<usize>,
}

/// All values of a pickle.
#[derive(Debug, Default)]
pub(super) struct Heap<'a> {
    values: Vec<Value<'a>>,
}

impl StorageKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Float(FloatKind::F32) => "FloatStorage",
            Self::Float(FloatKind::F16) => "HalfStorage",
            Self::Float(FloatKind::Bf16) => "BFloat16Storage",
            Self::Other(name) => name,
        }
    }
}

impl Global {
    /// # Errors
    /// It is not one of those that embeddings need.
    fn named(module: &str, name: &str) -> Result<Self, EmbeddingError> {
        Ok(match (module, name) {
            ("torch._utils", "_rebuild_tensor_v2") => Self::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Self::RebuildParameter,
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("torch.nn.modules.container", "ParameterDict") => Self::ParameterDict,
            ("__builtin__", "set") => Self::Set,
            ("torch", "FloatStorage") => Self::Storage(StorageKind::Float(FloatKind::F32)),
            ("torch", "HalfStorage") => Self::Storage(StorageKind::Float(FloatKind::F16)),
            ("torch", "BFloat16Storage") => Self::Storage(StorageKind::Float(FloatKind::Bf16)),
            ("torch", "DoubleStorage") => Self::Storage(StorageKind::Other("DoubleStorage")),
            ("torch", "LongStorage") => Self::Storage(StorageKind::Other("LongStorage")),
            ("torch", "IntStorage") => Self::Storage(StorageKind::Other("IntStorage")),
            _ => {
                let name = format!("{module}.{name}").chars().take(120).collect();
                return Err(EmbeddingError::Code { name });
            }
        })
    }
}

impl<'a> Heap<'a> {
    /// Ids are given out by the heap alone, and nothing is ever taken from it.
    pub(super) fn get(&self, id: Id) -> &Value<'a> {
        self.values.get(id.0).unwrap_or(&Value::Plain)
    }

    /// The items of a dictionary, or the parameters of a ParameterDict.
    pub(super) fn parameters<'h>(&'h self, value: &'h Value<'a>) -> Option<&'h [(Id, Id)]> {
        let items = match value {
            Value::Dict(items) => return Some(items),
            Value::ParameterDict(Some(state)) => match self.get(*state) {
                Value::Dict(items) => items,
                _ => return None,
            },
            _ => return None,
        };
        let named = |name: &Id| matches!(self.get(*name), Value::Text("_parameters"));
        let (_, parameters) = items.iter().rev().find(|(name, _)| named(name))?;
        match self.get(*parameters) {
            Value::Dict(items) => Some(items),
            _ => None,
        }
    }
}

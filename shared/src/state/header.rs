//! The header of the encoding: written in one spelling, and not trusted when it is read.

use std::{collections::BTreeMap, fmt, io::Read};

use safetensors::Dtype;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor, value::StrDeserializer},
};
use serde_json::Value;

use super::{
    MOST_DIMENSIONS, MOST_TENSORS, StateError, TensorInfo, TensorList, TensorProblem,
    error::cut,
    fill::fill,
    limits::{LARGEST_HEADER, MOST_METADATA},
    tensor::METADATA_KEY,
};

/// Of the length in front of the header.
const LENGTH_BYTES: u64 = 8;
/// The header's length is padded to a multiple of this, so that tensors are aligned in a mapped file.
const ALIGNMENT: usize = 8;

/// Texts of a header by their keys.
pub type Metadata = BTreeMap<String, String>;

/// A header that was read: its tensors lie one behind the other, without gap or overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its metadata.
    pub metadata: Metadata,
    /// In the order of their bytes.
    pub tensors: TensorList,
    /// Its bytes, with the length in front of it.
    pub bytes: u64,
}

impl Header {
    /// Reads a header and nothing behind it. `size`: of everything, where it is known.
    ///
    /// # Errors
    /// It is malformed or beyond the limits, or does not fit the size.
    pub fn read(reader: &mut impl Read, size: Option<u64>) -> Result<Self, StateError> {
        // 1. Its length, before anything is allocated.
        let mut length = [0; LENGTH_BYTES as usize];
        let found = fill(reader, &mut length)? as u64;
        if found < LENGTH_BYTES {
            return Err(StateError::Truncated { expected: LENGTH_BYTES, found });
        }
        let length = u64::from_le_bytes(length);
        if !(2..=LARGEST_HEADER).contains(&length) {
            return Err(StateError::HeaderLength { given: length, limit: LARGEST_HEADER });
        }
        let expected = LENGTH_BYTES + length;
        if let Some(found) = size.filter(|size| *size < expected) {
            return Err(StateError::Truncated { expected, found });
        }
        // 2. Its text, which grows as it comes.
        let mut text = Vec::new();
        reader.by_ref().take(length).read_to_end(&mut text)?;
        if (text.len() as u64) < length {
            return Err(StateError::Truncated { expected, found: LENGTH_BYTES + text.len() as u64 });
        }
        let header = parse(&text, expected)?;
        // 3. The announced size.
        let expected = header.size();
        match size {
            Some(found) if found < expected => Err(StateError::Truncated { expected, found }),
            Some(found) if found > expected => Err(StateError::Trailing { expected }),
            _ => Ok(header),
        }
    }

    /// Bytes of everything that belongs to it, itself included.
    pub fn size(&self) -> u64 {
        // Checked when it was read.
        self.bytes.saturating_add(self.tensors.bytes())
    }
}

/// The header's bytes, with the length in front: the same for the same metadata and list.
pub(super) fn encode(metadata: &Metadata, list: &TensorList) -> Result<Vec<u8>, StateError> {
    check_metadata(metadata.len())?;
    let mut entries = Vec::new();
    if !metadata.is_empty() {
        let texts: Vec<String> =
            metadata.iter().map(|(key, text)| format!("{}:{}", quoted(key), quoted(text))).collect();
        entries.push(format!("{}:{{{}}}", quoted(METADATA_KEY), texts.join(",")));
    }
    let mut begin = 0;
    for tensor in list.tensors() {
        let (name, dtype, end) = (quoted(tensor.name()), tensor.dtype(), begin + tensor.bytes());
        let shape: Vec<String> = tensor.shape().iter().map(u64::to_string).collect();
        let shape = shape.join(",");
        entries.push(format!(
            "{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{begin},{end}]}}"
        ));
        begin = end;
    }
    let mut text = format!("{{{}}}", entries.join(",")).into_bytes();
    text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
    let length = text.len() as u64;
    // An unreadable header is not written.
    if length > LARGEST_HEADER {
        return Err(StateError::HeaderLength { given: length, limit: LARGEST_HEADER });
    }
    Ok([&length.to_le_bytes(), text.as_slice()].concat())
}

/// A text in JSON.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn check_metadata(given: usize) -> Result<(), StateError> {
    if given > MOST_METADATA {
        let (given, limit) = (given as u64, MOST_METADATA as u64);
        return Err(StateError::TooMany { what: "metadata entries", given, limit });
    }
    Ok(())
}

fn parse(text: &[u8], bytes: u64) -> Result<Header, StateError> {
    if text.first() != Some(&b'{') {
        return Err(StateError::Header { problem: "it does not begin with {".to_owned() });
    }
    // 1. Parse it.
    let mut problem = None;
    let mut reader = serde_json::Deserializer::from_slice(text);
    let read = Entries { problem: &mut problem }.deserialize(&mut reader);
    let read = read.and_then(|entries| reader.end().map(|()| entries));
    let unreadable = |error: serde_json::Error| StateError::Header { problem: error.to_string() };
    let (metadata, mut stored) = read.map_err(|error| problem.unwrap_or_else(|| unreadable(error)))?;
    // 2. In the order of the bytes; those without any stay where they are.
    stored.sort_by_key(|(_, tensor)| tensor.data_offsets);
    let mut tensors = Vec::with_capacity(stored.len());
    let mut expected = 0;
    for (name, Stored { dtype, shape: Shape(shape), data_offsets: (begin, end) }) in stored {
        let wrong = |problem| StateError::tensor(&name, problem);
        let given = || TensorProblem::Type { given: cut(&dtype) };
        let dtype = read_dtype(&dtype).ok_or_else(|| wrong(given()))?;
        let tensor = TensorInfo::new(name.clone(), dtype, shape)?;
        if end < begin {
            return Err(wrong(TensorProblem::Backwards { begin, end }));
        } else if begin > expected {
            return Err(wrong(TensorProblem::Gap { expected, begin }));
        } else if begin < expected {
            return Err(wrong(TensorProblem::Overlap { expected, begin }));
        } else if end - begin != tensor.bytes() {
            return Err(wrong(TensorProblem::Length { expected: tensor.bytes(), given: end - begin }));
        }
        expected = end;
        tensors.push(tensor);
    }
    if bytes.checked_add(expected).is_none() {
        return Err(StateError::TooMany { what: "bytes", given: u64::MAX, limit: u64::MAX - bytes });
    }
    Ok(Header { metadata, tensors: TensorList::in_this_order(tensors)?, bytes })
}

fn read_dtype(name: &str) -> Option<Dtype> {
    Dtype::deserialize(StrDeserializer::<serde::de::value::Error>::new(name)).ok()
}

/// A tensor as it stands in the header.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// Reads all entries; errors other than JSON's are put into `problem`.
struct Entries<'a> {
    problem: &'a mut Option<StateError>,
}

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = (Metadata, Vec<(String, Stored)>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = (Metadata, Vec<(String, Stored)>);

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut metadata, mut tensors) = (None, Vec::new());
        let stopped = |problem: &mut Option<StateError>, error| {
            *problem = Some(error);
            A::Error::custom("stopped")
        };
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA_KEY {
                let texts = map.next_value_seed(Texts { problem: &mut *self.problem })?;
                if metadata.replace(texts).is_some() {
                    return Err(stopped(self.problem, StateError::MetadataTwice { key: name }));
                }
                continue;
            }
            if tensors.len() == MOST_TENSORS {
                let (given, limit) = (MOST_TENSORS as u64 + 1, MOST_TENSORS as u64);
                return Err(stopped(self.problem, StateError::TooMany { what: "tensors", given, limit }));
            }
            tensors.push((name, map.next_value()?));
        }
        Ok((metadata.unwrap_or_default(), tensors))
    }
}

/// Reads the metadata.
struct Texts<'a> {
    problem: &'a mut Option<StateError>,
}

impl<'de> DeserializeSeed<'de> for Texts<'_> {
    type Value = Metadata;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Metadata, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Texts<'_> {
    type Value = Metadata;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
        let mut texts = Metadata::new();
        while let Some((key, text)) = map.next_entry::<String, String>()? {
            let shown = cut(&key);
            let twice = texts.insert(key, text).is_some();
            let wrong = if twice {
                Err(StateError::MetadataTwice { key: shown })
            } else {
                check_metadata(texts.len())
            };
            if let Err(error) = wrong {
                *self.problem = Some(error);
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(texts)
    }
}

/// The sides of a tensor: reading stops at the first that is too many.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sides;

        impl<'de> Visitor<'de> for Sides {
            type Value = Shape;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sides: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(side) = sides.next_element()? {
                    if shape.len() == MOST_DIMENSIONS {
                        return Err(A::Error::custom(format!("more than {MOST_DIMENSIONS} dimensions")));
                    }
                    shape.push(side);
                }
                Ok(Shape(shape))
            }
        }

        deserializer.deserialize_seq(Sides)
    }
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;

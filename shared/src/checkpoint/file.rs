//! The bytes of a checkpoint. Nothing in them is trusted: they may come from anywhere.

use serde::{Deserialize, Serialize};

use safetensors::{Dtype, SafeTensors};

use super::{About, Checkpoint, FORMAT};
use crate::ids::ContentHash;

/// The only entry of the file's metadata.
pub const ENTRY: &str = "ringtune.checkpoint";
/// Bytes of a checkpoint at most: far more than the state of any job that is allowed.
pub const LARGEST_FILE: u64 = 256 << 20;
/// Bytes of its header at most: a job's prompts are in it.
const LARGEST_HEADER: u64 = 16 << 20;
/// Vectors and counters of a state at most.
const MOST_ENTRIES: usize = 1000;

/// A file that is no checkpoint, or none that this version reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Too large to be one.
    #[error("it has {size} bytes; a checkpoint has at most {LARGEST_FILE}")]
    TooLarge {
        /// Its bytes.
        size: u64,
    },
    /// Not whole, or not what a checkpoint looks like.
    #[error("it is no checkpoint: {0}")]
    Broken(String),
    /// Written by another version.
    #[error("it is a checkpoint of format {found}; this version reads format {FORMAT}")]
    Format {
        /// The file's.
        found: u32,
    },
}

/// The metadata entry.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    format: u32,
    about: About,
    numbers: std::collections::BTreeMap<String, u64>,
    /// Of everything behind the header.
    tensors_sha256: String,
}

/// What is read first: other formats may have anything else.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

impl Checkpoint {
    /// The text of the file's metadata entry [`ENTRY`]. Equal checkpoints have equal texts.
    ///
    /// # Errors
    /// A value that JSON cannot hold.
    pub fn entry(&self) -> Result<String, CheckpointError> {
        let mut data = Vec::new();
        for tensor in self.tensors.values() {
            data.extend(tensor.iter().flat_map(|number| number.to_le_bytes()));
        }
        let entry = Entry {
            format: FORMAT,
            about: self.about.clone(),
            numbers: self.numbers.clone(),
            tensors_sha256: ContentHash::of(&data).to_string(),
        };
        serde_json::to_string(&entry).map_err(|error| CheckpointError::Broken(error.to_string()))
    }

    /// Reads a file's bytes: whole, of this format, with the hash that it says its tensors have.
    ///
    /// # Errors
    /// It is something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let broken = |problem: String| CheckpointError::Broken(problem);
        // 1. The container. Its reader refuses overlaps, gaps and what goes beyond the end.
        if bytes.len() as u64 > LARGEST_FILE {
            return Err(CheckpointError::TooLarge { size: bytes.len() as u64 });
        }
        let length = bytes.first_chunk().map(|length| u64::from_le_bytes(*length));
        match length {
            None => return Err(broken(format!("{} bytes are no safetensors file", bytes.len()))),
            Some(length) if length > LARGEST_HEADER => {
                return Err(broken(format!("its header has {length} bytes, more than {LARGEST_HEADER}")));
            }
            Some(_) => (),
        }
        let (header_length, header) =
            SafeTensors::read_metadata(bytes).map_err(|error| broken(error.to_string()))?;
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| broken(error.to_string()))?;
        let data = bytes.get(8 + header_length..).unwrap_or_default();
        // 2. The entry.
        let text = header.metadata().as_ref().and_then(|metadata| metadata.get(ENTRY));
        let text = text.ok_or_else(|| broken(format!("its metadata has no entry {ENTRY:?}")))?;
        let unreadable = |error: serde_json::Error| broken(format!("its entry {ENTRY:?}: {error}"));
        let FormatOnly { format } = serde_json::from_str(text).map_err(unreadable)?;
        if format != FORMAT {
            return Err(CheckpointError::Format { found: format });
        }
        let entry: Entry = serde_json::from_str(text).map_err(unreadable)?;
        if entry.tensors_sha256 != ContentHash::of(data).to_string() {
            return Err(broken("its tensors are not those that were written".to_owned()));
        }
        if tensors.len() > MOST_ENTRIES || entry.numbers.len() > MOST_ENTRIES {
            return Err(broken(format!("it has more than {MOST_ENTRIES} tensors or numbers")));
        }
        // 3. The state.
        let mut checkpoint =
            Self { about: entry.about, numbers: entry.numbers, tensors: std::collections::BTreeMap::new() };
        for (name, tensor) in tensors.iter() {
            let (kind, shape) = (tensor.dtype(), tensor.shape());
            if kind != Dtype::F32 || shape.len() != 1 {
                return Err(broken(format!(
                    "tensor {name:?} is {kind:?} {shape:?}, not F32 of one dimension"
                )));
            }
            let (numbers, _) = tensor.data().as_chunks::<4>();
            let numbers = numbers.iter().map(|number| f32::from_le_bytes(*number)).collect();
            checkpoint.tensors.insert(name.to_owned(), numbers);
        }
        Ok(checkpoint)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::{BTreeMap, HashMap};

    use safetensors::tensor::TensorView;
    use serde_json::json;

    use super::{super::Numerics, *};

    pub(in super::super) fn example() -> Checkpoint {
        Checkpoint {
            about: About {
                step: 7,
                version: "0.1.0".to_owned(),
                model_hash: "m".to_owned(),
                data_hash: "d".to_owned(),
                options: BTreeMap::from([("train.seed".to_owned(), json!(7))]),
                numerics: Numerics { class: "c".to_owned(), threads_per_rank: 2, precision: "no".to_owned() },
                provenance: "c/threads-2".to_owned(),
            },
            numbers: BTreeMap::from([("count".to_owned(), u64::MAX)]),
            tensors: BTreeMap::from([
                ("a".to_owned(), vec![1.5, -0.0, f32::MIN_POSITIVE]),
                ("b".to_owned(), vec![f32::INFINITY, 1e-45]),
            ]),
        }
    }

    /// The file as the format's own writer makes it.
    fn written(checkpoint: &Checkpoint, entry: &str) -> Vec<u8> {
        let bytes: Vec<(String, Vec<u8>)> = checkpoint
            .tensors
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.iter().flat_map(|one| one.to_le_bytes()).collect()))
            .collect();
        let views = bytes
            .iter()
            .map(|(name, data)| (name, TensorView::new(Dtype::F32, vec![data.len() / 4], data).unwrap()));
        let metadata = HashMap::from([(ENTRY.to_owned(), entry.to_owned())]);
        safetensors::serialize(views, Some(metadata)).unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        let checkpoint = example();
        let bytes = written(&checkpoint, &checkpoint.entry().unwrap());
        assert_eq!(Checkpoint::from_bytes(&bytes), Ok(checkpoint));
    }

    #[test]
    fn whatever_is_changed_is_found() {
        let checkpoint = example();
        let entry = checkpoint.entry().unwrap();
        let bytes = written(&checkpoint, &entry);
        for cut in [0, 7, 8, 100, bytes.len() - 1] {
            assert!(Checkpoint::from_bytes(&bytes[..cut]).is_err(), "{cut}");
        }
        // One bit anywhere in the tensors or in the header's length.
        for place in (0..8).chain(bytes.len() - 20..bytes.len()) {
            let mut changed = bytes.clone();
            changed[place] ^= 0x10;
            assert!(Checkpoint::from_bytes(&changed).is_err(), "{place}");
        }
        let other = written(&checkpoint, &entry.replace("\"format\":1", "\"format\":2,\"new\":[]"));
        assert_eq!(Checkpoint::from_bytes(&other), Err(CheckpointError::Format { found: 2 }));
        for entry in ["", "[]", "{\"format\":1}", &entry.replace("\"step\":7", "\"step\":-7")] {
            assert!(matches!(
                Checkpoint::from_bytes(&written(&checkpoint, entry)),
                Err(CheckpointError::Broken(_))
            ));
        }
        let mut long = bytes;
        long[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(Checkpoint::from_bytes(&long), Err(CheckpointError::Broken(_))));
    }
}

//! A checkpoint's file: a state's encoding whose metadata says what it is the state of.

use std::{collections::BTreeMap, fs::File, io::Read, path::Path};

use serde::{Deserialize, Serialize};

use super::{About, FORMAT, Resumed};
use crate::{
    ids::ContentHash,
    state::{
        Decoder, Encoded, FileSink, Header, Metadata, State, StateError, StateSource, TensorList,
        TensorsHash, Verified, transfer,
    },
};

/// The only entry of the file's metadata.
pub const ENTRY: &str = "ringtune.checkpoint";
/// Bytes of a checkpoint at most. Nothing is allocated by its size; what a coordinator takes is its own setting
/// (`limits.upload_bytes`).
pub const LARGEST_FILE: u64 = 1 << 40;
/// Counters of a state at most.
const MOST_NUMBERS: usize = 1000;

/// A file that is not a checkpoint, or none that this version reads.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Too large to be one.
    #[error("it has {size} bytes; a checkpoint has at most {LARGEST_FILE}")]
    TooLarge {
        /// Its bytes.
        size: u64,
    },
    /// Not whole, or not what a checkpoint looks like.
    #[error("it is not a checkpoint: {0}")]
    Broken(StateError),
    /// A state's file, but no checkpoint.
    #[error("it is not a checkpoint: {problem}")]
    Entry {
        /// The problem with the entry.
        problem: String,
    },
    /// Written by another version.
    #[error("it is a checkpoint of format {found}; this version reads format {FORMAT}")]
    Format {
        /// The file's.
        found: u32,
    },
    /// Reading or writing failed, whatever the file holds.
    #[error(transparent)]
    Access(StateError),
}

impl From<StateError> for CheckpointError {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Io(_) | StateError::File(_) => Self::Access(error),
            other => Self::Broken(other),
        }
    }
}

/// The metadata entry.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    format: u32,
    about: About,
    numbers: BTreeMap<String, u64>,
    /// Of everything behind the header.
    tensors_sha256: String,
}

/// Read first: other formats may have any other fields.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

/// A checkpoint without its tensors' data: enough to decide where a job resumes.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointHeader {
    /// The job and its step.
    pub about: About,
    /// The state's counters by name; a 64-bit float is kept as its bits.
    pub numbers: BTreeMap<String, u64>,
    /// The state's tensors.
    pub tensors: TensorList,
    /// Of their bytes.
    pub tensors_sha256: ContentHash,
}

impl CheckpointHeader {
    /// Reads the header of a checkpoint of `size` bytes and nothing behind it: at most 16 MiB.
    ///
    /// # Errors
    /// It is something else, or its size is not what the header announces.
    pub fn read(reader: &mut impl Read, size: u64) -> Result<Self, CheckpointError> {
        check_size(size)?;
        Self::new(&Header::read(reader, Some(size))?)
    }

    fn new(header: &Header) -> Result<Self, CheckpointError> {
        let wrong = |problem: String| CheckpointError::Entry { problem };
        let text = header.metadata.get(ENTRY);
        let text = text.ok_or_else(|| wrong(format!("its metadata has no entry {ENTRY:?}")))?;
        let unreadable = |error: serde_json::Error| wrong(format!("its entry {ENTRY:?}: {error}"));
        let FormatOnly { format } = serde_json::from_str(text).map_err(unreadable)?;
        if format != FORMAT {
            return Err(CheckpointError::Format { found: format });
        }
        let Entry { about, numbers, tensors_sha256, .. } = serde_json::from_str(text).map_err(unreadable)?;
        if numbers.len() > MOST_NUMBERS {
            return Err(wrong(format!("it has {} numbers; allowed: at most {MOST_NUMBERS}", numbers.len())));
        }
        let tensors_sha256 = tensors_sha256
            .parse()
            .map_err(|error| wrong(format!("its entry {ENTRY:?}: tensors_sha256: {error}")))?;
        Ok(Self { about, numbers, tensors: header.tensors.clone(), tensors_sha256 })
    }

    /// Needed to place a job that resumes from here.
    pub fn resumed(&self) -> Resumed {
        Resumed { step: self.about.step, numerics: self.about.numerics.clone() }
    }
}

/// A checkpoint that is open to be read.
pub struct OpenCheckpoint<R = File> {
    /// The header.
    pub header: CheckpointHeader,
    /// The state, whose hash is checked at its end.
    pub source: Verified<Decoder<R>>,
}

/// Opens a checkpoint and reads its header. The file may be removed meanwhile, but not changed.
///
/// # Errors
/// It is something else, or cannot be read.
pub fn open(path: &Path) -> Result<OpenCheckpoint, CheckpointError> {
    let file = File::open(path).map_err(StateError::from)?;
    let size = file.metadata().map_err(StateError::from)?.len();
    OpenCheckpoint::new(file, size)
}

impl<R: Read> OpenCheckpoint<R> {
    /// Reads the header of a checkpoint of `size` bytes.
    ///
    /// # Errors
    /// See [`open`].
    pub fn new(reader: R, size: u64) -> Result<Self, CheckpointError> {
        check_size(size)?;
        let decoder = Decoder::new(reader, Some(size))?;
        let header = CheckpointHeader::new(decoder.header())?;
        let source = Verified::new(decoder, header.tensors_sha256);
        Ok(Self { header, source })
    }

    /// Reads all of the state and keeps nothing of it. What it was read from.
    ///
    /// # Errors
    /// Its hash is not the right one, or it cannot be read.
    pub fn verify(mut self) -> Result<R, CheckpointError> {
        while self.source.next_chunk()?.is_some() {}
        Ok(self.source.into_inner().into_inner())
    }
}

/// Writes a checkpoint: whole or not at all. Equal states of equal jobs are equal files.
///
/// The state is read twice, as the hash of its tensors stands before them.
///
/// # Errors
/// The state's; it was another one when it was read again; the file system's.
pub fn write(
    path: &Path,
    about: &About,
    numbers: &BTreeMap<String, u64>,
    state: &dyn State,
) -> Result<Encoded, CheckpointError> {
    fill(path, about, numbers, state)?.commit()
}

/// A file that has all of a checkpoint, and not its name.
pub struct Filled(FileSink);

impl Filled {
    /// Gives it its name; then it is on the disk. The state is not needed for it.
    ///
    /// # Errors
    /// An error of the file system; then no file has that name.
    pub fn commit(self) -> Result<Encoded, CheckpointError> {
        Ok(self.0.commit()?)
    }
}

/// The first part of [`write`]: all that needs the state. What is dropped then leaves nothing.
///
/// # Errors
/// Those of [`write`].
pub fn fill(
    path: &Path,
    about: &About,
    numbers: &BTreeMap<String, u64>,
    state: &dyn State,
) -> Result<Filled, CheckpointError> {
    let tensors = TensorsHash::of(&mut *state.source()?)?;
    let mut file = FileSink::create_uncommitted(path, metadata(about, numbers, tensors)?)?;
    transfer(&mut Verified::new(state.source()?, tensors), &mut file)?;
    Ok(Filled(file))
}

/// The metadata of a checkpoint's encoding. Equal checkpoints have equal texts. `tensors`: see [`TensorsHash`].
///
/// # Errors
/// A value that JSON cannot hold.
pub fn metadata(
    about: &About,
    numbers: &BTreeMap<String, u64>,
    tensors: ContentHash,
) -> Result<Metadata, CheckpointError> {
    let entry = Entry {
        format: FORMAT,
        about: about.clone(),
        numbers: numbers.clone(),
        tensors_sha256: tensors.to_string(),
    };
    let text = serde_json::to_string(&entry)
        .map_err(|error| CheckpointError::Entry { problem: error.to_string() })?;
    Ok(Metadata::from([(ENTRY.to_owned(), text)]))
}

fn check_size(size: u64) -> Result<(), CheckpointError> {
    if size > LARGEST_FILE { Err(CheckpointError::TooLarge { size }) } else { Ok(()) }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use serde_json::json;

    use super::{super::Numerics, *};
    use crate::state::{Dtype, Encoder, MemoryState, TensorInfo};

    pub(in super::super) fn example() -> About {
        About {
            step: 7,
            version: "0.1.0".to_owned(),
            model_hash: "m".to_owned(),
            data_hash: "d".to_owned(),
            options: BTreeMap::from([("train.seed".to_owned(), json!(7))]),
            numerics: Numerics { class: "c".to_owned(), threads_per_rank: 2, precision: "no".to_owned() },
            provenance: "c/threads-2".to_owned(),
        }
    }

    fn state() -> MemoryState {
        let tensor = |name: &str, numbers: &[f32]| {
            let info = TensorInfo::new(name, Dtype::F32, vec![numbers.len() as u64]).unwrap();
            (info, numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
        };
        MemoryState::new(vec![
            tensor("a", &[1.5, -0.0, f32::MIN_POSITIVE]),
            tensor("b", &[f32::INFINITY, 1e-45]),
        ])
        .unwrap()
    }

    fn numbers() -> BTreeMap<String, u64> {
        BTreeMap::from([("count".to_owned(), u64::MAX)])
    }

    fn tensors_hash() -> ContentHash {
        TensorsHash::of(&mut *state().source().unwrap()).unwrap()
    }

    fn encoded(metadata: Metadata) -> Vec<u8> {
        let mut encoder = Encoder::new(metadata, Vec::new());
        transfer(&mut *state().source().unwrap(), &mut encoder).unwrap();
        encoder.into_inner()
    }

    /// Reads a file with these bytes.
    fn read(bytes: &[u8]) -> Result<(CheckpointHeader, MemoryState), CheckpointError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        fs::write(&path, bytes).unwrap();
        let mut checkpoint = open(&path)?;
        let state = MemoryState::read(&mut checkpoint.source, u64::MAX)?;
        open(&path)?.verify()?;
        Ok((checkpoint.header, state))
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let written = write(&path, &example(), &numbers(), &state()).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!((written.sha256, written.bytes), (ContentHash::of(&bytes), bytes.len() as u64));
        let (header, found) = read(&bytes).unwrap();
        assert_eq!((header.about.clone(), header.numbers.clone(), found), (example(), numbers(), state()));
        let mut start = &bytes[..bytes.len() - 20];
        assert_eq!(CheckpointHeader::read(&mut start, bytes.len() as u64).unwrap(), header);
        assert!(start.is_empty(), "more than the header was read");
    }

    /// Written by 0.1.0: names, order, metadata and spelling stay as they were.
    #[test]
    fn checkpoints_of_0_1_0_are_read_and_written_to_the_same_bytes() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/0.1.0");
        for name in ["plain", "selected"] {
            for step in [3, 6] {
                let path = fixtures.join(name).join(super::super::file_name(step));
                let then = fs::read(&path).unwrap();
                let (header, state) = read(&then).unwrap();
                assert_eq!(header.about.step, step);
                let folder = tempfile::tempdir().unwrap();
                let now = folder.path().join("checkpoint");
                write(&now, &header.about, &header.numbers, &state).unwrap();
                assert_eq!(fs::read(&now).unwrap(), then, "{}", path.display());
            }
        }
    }

    #[test]
    fn whatever_is_changed_is_found() {
        let metadata = metadata(&example(), &numbers(), tensors_hash()).unwrap();
        let bytes = encoded(metadata.clone());
        for cut in [0, 7, 8, 100, bytes.len() - 1] {
            assert!(matches!(read(&bytes[..cut]), Err(CheckpointError::Broken(_))), "{cut}");
        }
        // A flipped bit in the tensors or in the header's length.
        for place in (0..8).chain(bytes.len() - 20..bytes.len()) {
            let mut changed = bytes.clone();
            changed[place] ^= 0x10;
            assert!(matches!(read(&changed), Err(CheckpointError::Broken(_))), "{place}");
        }
        let with = |entry: &str| read(&encoded(Metadata::from([(ENTRY.to_owned(), entry.to_owned())])));
        let entry = &metadata[ENTRY];
        let other = with(&entry.replace("\"format\":1", "\"format\":2,\"new\":[]"));
        assert!(matches!(other, Err(CheckpointError::Format { found: 2 })), "{other:?}");
        let many: Vec<String> = (0..=MOST_NUMBERS).map(|number| format!("\"{number}\":0")).collect();
        let many = entry.replace("\"count\":18446744073709551615", &many.join(","));
        for entry in [
            "",
            "[]",
            "{\"format\":1}",
            &entry.replace("\"step\":7", "\"step\":-7"),
            &many,
            &entry.to_uppercase(),
        ] {
            let refused = with(entry);
            assert!(matches!(refused, Err(CheckpointError::Entry { .. })), "{entry}: {refused:?}");
        }
        assert!(read(&encoded(Metadata::new())).unwrap_err().to_string().contains(ENTRY));
    }

    #[test]
    fn a_state_that_changes_while_it_is_written_leaves_no_file() {
        struct Changing(std::cell::Cell<bool>);

        impl State for Changing {
            fn source(&self) -> Result<Box<dyn StateSource + '_>, StateError> {
                let second = self.0.replace(true);
                let list = TensorList::new(vec![TensorInfo::new("a", Dtype::U8, vec![1])?])?;
                let fill = move |_, into: &mut [u8]| {
                    into.fill(u8::from(second));
                    Ok(())
                };
                Ok(Box::new(crate::state::FromTensors::new(list, fill)))
            }
        }

        let folder = tempfile::tempdir().unwrap();
        let written = write(&folder.path().join("x"), &example(), &numbers(), &Changing(false.into()));
        assert!(matches!(written, Err(CheckpointError::Broken(StateError::Hash { .. }))), "{written:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

//! Checkpoints on disk.

use std::{collections::BTreeMap, path::Path};

use ringtune_shared::{
    checkpoint::{self, About, CheckpointError, CheckpointHeader, Filled},
    state::{Hashing, State, StateError},
};

use super::{Error, read_back::different};

/// Writes a checkpoint but for its end: equal checkpoints are equal files. Never more than a chunk of the state is in memory.
///
/// # Errors
/// The state cannot be read; the file cannot be written.
pub fn fill(
    file: &Path,
    about: &About,
    numbers: &BTreeMap<String, u64>,
    state: &dyn State,
) -> Result<Filled, Error> {
    checkpoint::fill(file, about, numbers, state).map_err(|error| failed(file, error))
}

/// Ends a file that is filled, and reads it back. The state is not needed for it.
///
/// # Errors
/// The file cannot be written, or holds something else than was written.
pub fn end(file: &Path, about: &About, numbers: &BTreeMap<String, u64>, filled: Filled) -> Result<(), Error> {
    let written = filled.commit().map_err(|error| failed(file, error))?;
    // The header has to be one that is read, and every bit has to be there.
    let mut reader = std::fs::File::open(file).map_err(|error| different(file, error.to_string()))?;
    let header = CheckpointHeader::read(&mut reader, written.bytes);
    let header = header.map_err(|error| different(file, error.to_string()))?;
    if header.about != *about || header.numbers != *numbers {
        return Err(different(file, "it is another checkpoint".to_owned()));
    }
    let found = hash(file).map_err(|error| different(file, error.to_string()))?;
    if found == (written.sha256, written.bytes) {
        return Ok(());
    }
    let (hash, bytes) = found;
    let (sha256, size) = (written.sha256, written.bytes);
    Err(different(file, format!("its {bytes} bytes have the hash {hash}; {size} of {sha256} were written")))
}

fn hash(file: &Path) -> std::io::Result<(ringtune_shared::ids::ContentHash, u64)> {
    let mut hashing = Hashing::new(std::io::sink());
    std::io::copy(&mut std::fs::File::open(file)?, &mut hashing)?;
    Ok((hashing.hash(), hashing.bytes()))
}

fn failed(file: &Path, error: CheckpointError) -> Error {
    match error {
        CheckpointError::Access(StateError::Io(source)) => Error::writing(file, source),
        CheckpointError::Access(StateError::File(error)) => Error::writing(file, error.cause),
        other => Error::Format { file: file.to_path_buf(), problem: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use ringtune_shared::checkpoint::Numerics;

    use super::*;
    use crate::train::SavedState;

    fn write(
        file: &Path,
        about: &About,
        numbers: &BTreeMap<String, u64>,
        state: &dyn State,
    ) -> Result<(), Error> {
        end(file, about, numbers, fill(file, about, numbers, state)?)
    }

    #[test]
    fn every_bit_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let about = About {
            step: 3,
            version: "0.1.0".to_owned(),
            model_hash: "m".to_owned(),
            data_hash: "d".to_owned(),
            options: BTreeMap::from([("train.learning_rate".to_owned(), 0.1.into())]),
            numerics: Numerics { class: "c".to_owned(), threads_per_rank: 1, precision: "no".to_owned() },
            provenance: "c/threads-1".to_owned(),
        };
        let mut state = SavedState::default();
        state.put_number("count", 2);
        state.put_tensor("b", vec![f32::from_bits(0x7fc0_1234), -0.0, 1e-45]);
        state.put_tensor("a", vec![0.1; 5]);
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        write(&one, &about, &state.numbers, &state).unwrap();
        write(&other, &about, &state.numbers, &state).unwrap();
        assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&other).unwrap());
        let mut read = checkpoint::open(&one).unwrap();
        assert_eq!(read.header.about, about);
        let back = SavedState::read(read.header.numbers, &mut read.source).unwrap();
        let bits = |of: &SavedState| -> Vec<Vec<u32>> {
            of.tensors.values().map(|tensor| tensor.iter().map(|one| one.to_bits()).collect()).collect()
        };
        assert_eq!((bits(&back), back.numbers), (bits(&state), state.numbers.clone()));
        let nowhere = write(Path::new("/no-such-folder/x"), &about, &state.numbers, &state);
        assert!(matches!(nowhere, Err(Error::Write { .. })), "{nowhere:?}");
    }
}

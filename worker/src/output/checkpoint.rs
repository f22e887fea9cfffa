//! Checkpoints on disk.

use std::path::Path;

use ringtune_shared::checkpoint::{Checkpoint, ENTRY};

use super::{Error, TensorFile, read_back::different};

/// Writes a checkpoint and reads it back: equal checkpoints are equal files.
///
/// # Errors
/// The file cannot be written, or holds something else than was written.
pub fn write(file: &Path, checkpoint: &Checkpoint) -> Result<(), Error> {
    let wrong = |problem: String| Error::Format { file: file.to_path_buf(), problem };
    let entry = checkpoint.entry().map_err(|error| wrong(error.to_string()))?;
    let mut tensors = TensorFile::new().with_metadata(ENTRY, entry.as_str());
    for (name, numbers) in &checkpoint.tensors {
        tensors = tensors.with_f32(name, &[numbers.len()], numbers)?;
    }
    tensors.write(file)?;
    let bytes = std::fs::read(file).map_err(|error| different(file, error.to_string()))?;
    let read = Checkpoint::from_bytes(&bytes).map_err(|error| different(file, error.to_string()))?;
    // The entry has the tensors' hash in it: where it is the same, so are all bits.
    match read.entry() {
        Ok(found) if found == entry => Ok(()),
        _ => Err(different(file, "it is another checkpoint".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ringtune_shared::checkpoint::{About, Numerics};

    use super::*;

    #[test]
    fn every_bit_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint {
            about: About {
                step: 3,
                version: "0.1.0".to_owned(),
                model_hash: "m".to_owned(),
                data_hash: "d".to_owned(),
                options: BTreeMap::from([("train.learning_rate".to_owned(), 0.1.into())]),
                numerics: Numerics { class: "c".to_owned(), threads_per_rank: 1, precision: "no".to_owned() },
                provenance: "c/threads-1".to_owned(),
            },
            numbers: BTreeMap::from([("count".to_owned(), 2)]),
            tensors: BTreeMap::from([
                ("b".to_owned(), vec![f32::from_bits(0x7fc0_1234), -0.0, 1e-45]),
                ("a".to_owned(), vec![0.1; 5]),
            ]),
        };
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        write(&one, &checkpoint).unwrap();
        write(&other, &checkpoint).unwrap();
        let bytes = std::fs::read(&one).unwrap();
        assert_eq!(bytes, std::fs::read(&other).unwrap());
        let read = Checkpoint::from_bytes(&bytes).unwrap();
        assert_eq!(read.about, checkpoint.about);
        let bits = |of: &Checkpoint| -> Vec<Vec<u32>> {
            of.tensors.values().map(|tensor| tensor.iter().map(|one| one.to_bits()).collect()).collect()
        };
        assert_eq!(bits(&read), bits(&checkpoint));
        assert!(matches!(write(Path::new("/no-such-folder/x"), &checkpoint), Err(Error::Write { .. })));
    }
}

//! Reads files back from the disk and compares them before they are uploaded.

use std::{collections::BTreeMap, path::Path};

use ringtune_shared::files::write_atomically;
use safetensors::{Dtype, SafeTensors};

use super::{Error, Learned};

/// # Errors
/// A learned number is NaN or infinite.
pub fn check_finite(file: &Path, learned: &Learned<'_>) -> Result<(), Error> {
    let broken = |value: &f32| !value.is_finite();
    let Some(first) = learned.rows.iter().position(broken) else { return Ok(()) };
    let width = learned.shape()[1].max(1);
    Err(Error::NotFinite {
        file: file.to_path_buf(),
        count: learned.rows.iter().filter(|value| broken(value)).count(),
        total: learned.rows.len(),
        vector: first / width,
        column: first % width,
    })
}

/// Reads an embedding's file with the format's own reader: one tensor under `key`, of the rows' shape, in fp32, with
/// the same bits, all of them finite, and the same metadata.
///
/// # Errors
/// The file cannot be read, or something in it differs.
pub fn check_embedding(
    file: &Path,
    key: &str,
    learned: &Learned<'_>,
    metadata: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let bytes = std::fs::read(file).map_err(|error| different(file, error.to_string()))?;
    compare(&bytes, key, learned, metadata).map_err(|problem| different(file, problem))
}

/// Writes a file whole or not at all, and reads it back: the same bytes.
///
/// # Errors
/// The file cannot be written, or holds others.
pub fn write(file: &Path, expected: &[u8]) -> Result<(), Error> {
    write_atomically(file, expected).map_err(|error| Error::writing(file, error.cause))?;
    check_bytes(file, expected)
}

/// Reads a file: the same bytes.
///
/// # Errors
/// The file cannot be read, or holds others.
pub fn check_bytes(file: &Path, expected: &[u8]) -> Result<(), Error> {
    let found = std::fs::read(file).map_err(|error| different(file, error.to_string()))?;
    if found == expected {
        return Ok(());
    }
    let (found, expected) = (found.len(), expected.len());
    Err(different(file, format!("its {found} bytes are not the {expected} that were written")))
}

/// The error of a file that holds something else than was written.
pub fn different(file: &Path, problem: String) -> Error {
    Error::ReadBack { file: file.to_path_buf(), problem }
}

fn compare(
    bytes: &[u8],
    key: &str,
    learned: &Learned<'_>,
    metadata: &BTreeMap<String, String>,
) -> Result<(), String> {
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let [(found_key, tensor)] = <[_; 1]>::try_from(tensors.tensors())
        .map_err(|all| format!("it holds {} tensors, one was written", all.len()))?;
    if found_key != key {
        return Err(format!("its key is {found_key:?}, {key:?} was written"));
    }
    let shape = learned.shape();
    if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
        let (dtype, found) = (tensor.dtype(), tensor.shape());
        return Err(format!("it holds {dtype:?} {found:?}, F32 {shape:?} was written"));
    }
    let (read, _) = tensor.data().as_chunks::<4>();
    let same = |(read, written): (&[u8; 4], &f32)| {
        let read = f32::from_le_bytes(*read);
        read.is_finite() && read.to_bits() == written.to_bits()
    };
    if read.len() != learned.rows.len() {
        return Err(format!("it holds {} numbers, {} were written", read.len(), learned.rows.len()));
    }
    if let Some(place) = read.iter().zip(learned.rows).position(|pair| !same(pair)) {
        return Err(format!("number {place} is another than was written"));
    }
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let found: BTreeMap<_, _> = header.metadata().iter().flatten().collect();
    let differs =
        found.len() != metadata.len() || metadata.iter().any(|(key, text)| found.get(key) != Some(&text));
    if differs {
        return Err("its metadata is another than was written".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            embeds,
            facts::tests::{example, learned},
        },
        *,
    };

    const ROWS: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 0.0];

    type Change = fn(&mut Vec<u8>);

    /// The error for a file that was changed after it was written; None: it passes.
    fn found_in(change: impl FnOnce(&mut Vec<u8>)) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("learned_embeds.safetensors");
        embeds::write(&file, &learned(&ROWS), &example()).unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        change(&mut bytes);
        std::fs::write(&file, bytes).unwrap();
        let metadata = example().metadata(&learned(&ROWS));
        match check_embedding(&file, "<a>", &learned(&ROWS), &metadata) {
            Ok(()) => None,
            Err(error @ Error::ReadBack { .. }) => {
                assert!(error.to_string().contains("learned_embeds.safetensors"), "{error}");
                Some(error.to_string())
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn replace(bytes: &mut [u8], from: &str, to: &str) {
        assert_eq!(from.len(), to.len());
        let place = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        bytes[place..place + from.len()].copy_from_slice(to.as_bytes());
    }

    #[test]
    fn any_difference_is_found_and_named() {
        assert_eq!(found_in(|_| ()), None);
        let cases: [(&str, Change); 7] = [
            ("key is \"<b>\"", |bytes| replace(bytes, "\"<a>\":{", "\"<b>\":{")),
            ("[3, 2]", |bytes| replace(bytes, "\"shape\":[2,3]", "\"shape\":[3,2]")),
            ("I32", |bytes| replace(bytes, "\"F32\"", "\"I32\"")),
            ("metadata", |bytes| replace(bytes, "my stars", "no stars")),
            // 0 and -0 are equal numbers and different bits.
            ("number 5", |bytes| *bytes.last_mut().unwrap() = 0x80),
            ("safetensors", |bytes| bytes.truncate(4)),
            ("safetensors", |bytes| {
                bytes.pop();
            }),
        ];
        for (expected, change) in cases {
            let found = found_in(change).unwrap();
            assert!(found.contains(expected), "{expected:?} is missing in {found:?}");
        }
    }

    #[test]
    fn numbers_that_are_not_finite_do_not_pass_even_where_they_are_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.safetensors");
        let rows = [f32::NAN; 6];
        let tensors = super::super::TensorFile::new().with_f32("<a>", &[2, 3], &rows).unwrap();
        tensors.write(&file).unwrap();
        let checked = check_embedding(&file, "<a>", &learned(&rows), &BTreeMap::new());
        assert!(matches!(checked, Err(Error::ReadBack { ref problem, .. }) if problem.contains("number 0")));
    }

    #[test]
    fn a_file_has_to_be_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("README.md");
        assert!(matches!(check_bytes(&file, b"a"), Err(Error::ReadBack { .. })));
        std::fs::write(&file, "a\n").unwrap();
        check_bytes(&file, b"a\n").unwrap();
        assert!(matches!(check_bytes(&file, b"b\n"), Err(Error::ReadBack { .. })));
    }
}

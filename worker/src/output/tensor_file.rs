//! Small safetensors files with one spelling for each content.
//!
//! The format's own writer keeps metadata in a hash map, whose order differs from run to run; here the bytes are those of
//! a state's encoding, and read back with the format's own reader before anything reaches the disk.

use std::path::Path;

use ringtune_shared::{
    files::write_atomically,
    state::{Dtype, Encoder, MemoryState, Metadata, State as _, StateError, TensorInfo, transfer},
};
use safetensors::SafeTensors;

use super::Error;

/// Tensors and metadata to be written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorFile {
    tensors: Vec<Tensor>,
    metadata: Metadata,
}

#[derive(Clone, Debug, PartialEq)]
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl TensorFile {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata entry.
    #[must_use]
    pub fn with_metadata(mut self, key: &str, text: impl Into<String>) -> Self {
        self.metadata.insert(key.to_string(), text.into());
        self
    }

    /// Adds a tensor of fp32 numbers, the last dimension running fastest.
    ///
    /// # Errors
    /// The numbers do not fill the shape.
    pub fn with_f32(self, name: &str, shape: &[usize], numbers: &[f32]) -> Result<Self, Error> {
        check_shape(name, shape, numbers.len())?;
        Ok(self.with(
            name,
            Dtype::F32,
            shape,
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        ))
    }

    /// Adds a tensor of 64-bit integers, the last dimension running fastest.
    ///
    /// # Errors
    /// The numbers do not fill the shape.
    pub fn with_i64(self, name: &str, shape: &[usize], numbers: &[i64]) -> Result<Self, Error> {
        check_shape(name, shape, numbers.len())?;
        Ok(self.with(
            name,
            Dtype::I64,
            shape,
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        ))
    }

    fn with(mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        self.tensors.push(Tensor { name: name.to_string(), dtype, shape: shape.to_vec(), bytes });
        self
    }

    /// The file's bytes: the same for the same content, in whatever order it was added.
    ///
    /// # Errors
    /// What the format does not take: a name twice, or one that is reserved.
    pub fn to_bytes(&self) -> Result<Vec<u8>, StateError> {
        let tensor = |tensor: &Tensor| {
            let shape = tensor.shape.iter().map(|side| *side as u64).collect();
            Ok((TensorInfo::new(&tensor.name, tensor.dtype, shape)?, tensor.bytes.clone()))
        };
        let state = MemoryState::new(self.tensors.iter().map(tensor).collect::<Result<_, StateError>>()?)?;
        let mut encoder = Encoder::new(self.metadata.clone(), Vec::new());
        transfer(&mut *state.source()?, &mut encoder)?;
        Ok(encoder.into_inner())
    }

    /// Writes the file: whole or not at all.
    ///
    /// # Errors
    /// The format's reader does not take it (a name twice, or one that is reserved), or the file cannot be written.
    pub fn write(&self, file: &Path) -> Result<(), Error> {
        let wrong = |problem: String| Error::Format { file: file.to_path_buf(), problem };
        let bytes = self.to_bytes().map_err(|error| wrong(error.to_string()))?;
        let read = SafeTensors::deserialize(&bytes).map_err(|error| wrong(error.to_string()))?;
        for tensor in &self.tensors {
            let name = &tensor.name;
            let back = read.tensor(name).map_err(|error| wrong(error.to_string()))?;
            if back.data() != tensor.bytes || back.shape() != tensor.shape {
                return Err(wrong(format!("tensor {name:?} reads back differently")));
            }
        }
        write_atomically(file, &bytes).map_err(|error| Error::writing(file, error.cause))
    }
}

fn check_shape(name: &str, shape: &[usize], found: usize) -> Result<(), Error> {
    if shape.iter().product::<usize>() == found {
        return Ok(());
    }
    Err(Error::Shape { name: name.to_string(), found, shape: shape.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> TensorFile {
        TensorFile::new()
            .with_f32("a \"b\"", &[2, 1], &[1.5, -2.0])
            .and_then(|file| file.with_i64("z", &[3], &[1, -2, i64::MAX]))
            .unwrap()
            .with_metadata("second", "é\n")
            .with_metadata("first", "{}")
    }

    #[test]
    fn the_formats_own_reader_gives_everything_back() {
        let bytes = example().to_bytes().unwrap();
        let (header_length, header) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header_length % 8, 0);
        let metadata = header.metadata().as_ref().unwrap();
        assert_eq!((metadata["first"].as_str(), metadata["second"].as_str()), ("{}", "é\n"));
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let floats = read.tensor("a \"b\"").unwrap();
        assert_eq!((floats.dtype(), floats.shape()), (Dtype::F32, &[2usize, 1][..]));
        assert_eq!(floats.data(), [1.5f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat());
        let integers = read.tensor("z").unwrap();
        assert_eq!((integers.dtype(), integers.shape()), (Dtype::I64, &[3usize][..]));
        assert_eq!(integers.data()[16..], i64::MAX.to_le_bytes());
    }

    #[test]
    fn the_bytes_do_not_depend_on_the_order_of_adding() {
        let turned = TensorFile::new()
            .with_metadata("first", "{}")
            .with_metadata("second", "é\n")
            .with_i64("z", &[3], &[1, -2, i64::MAX])
            .and_then(|file| file.with_f32("a \"b\"", &[2, 1], &[1.5, -2.0]))
            .unwrap();
        assert_eq!(turned.to_bytes().unwrap(), example().to_bytes().unwrap());
    }

    #[test]
    fn frozen_bytes() {
        let file = TensorFile::new().with_f32("w", &[1], &[1.0]).unwrap().with_metadata("format", "pt");
        let header =
            r#"{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   "#;
        let expected = [&[88, 0, 0, 0, 0, 0, 0, 0], header.as_bytes(), &[0, 0, 128, 63]].concat();
        assert_eq!(file.to_bytes().unwrap(), expected);
    }

    #[test]
    fn numbers_have_to_fill_the_shape() {
        let file = TensorFile::new().with_f32("w", &[2, 2], &[0.0; 3]);
        assert!(matches!(file, Err(Error::Shape { found: 3, .. })));
    }

    #[test]
    fn a_name_twice_is_refused_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let twice = TensorFile::new()
            .with_f32("w", &[1], &[0.0])
            .and_then(|file| file.with_i64("w", &[1], &[0]))
            .unwrap();
        assert!(matches!(twice.write(&folder.path().join("x")), Err(Error::Format { .. })));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_full_disk_is_told_and_leaves_the_old_file() {
        let full = Error::writing(Path::new("x"), std::io::ErrorKind::StorageFull.into());
        assert!(matches!(full, Error::DiskFull { .. }));
        let absent = example().write(Path::new("/nonexistent-folder/x.safetensors"));
        assert!(matches!(absent, Err(Error::Write { .. })));
    }
}

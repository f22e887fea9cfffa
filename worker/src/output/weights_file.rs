//! A model's weights in one safetensors file. Never more than a chunk of it is in memory.

use std::{fs::File, io, path::Path};

use ringtune_shared::state::{
    ChunkPlace, Dtype, FileSink, FromTensors, Hashing, Header, Metadata, StateError, TensorInfo, TensorList,
    transfer,
};

use super::{Error, read_back::different};

/// Copies the bytes of a parameter, by its number, from an offset on into all of a buffer.
pub type ReadParameter<'a> = dyn Fn(usize, u64, &mut [u8]) -> Result<(), StateError> + 'a;

/// Writes parameters, and tensors of zeros, and reads them back: equal models are equal files. `provenance`: what the file says of
/// itself.
///
/// # Errors
/// A number in fp32 is NaN or infinite; the file cannot be written, or holds something else than was written.
pub fn write(
    file: &Path,
    parameters: &[TensorInfo],
    zeros: &[TensorInfo],
    provenance: &str,
    read: &ReadParameter<'_>,
) -> Result<(), Error> {
    let failed = |error: StateError| match error {
        StateError::Io(source) => Error::writing(file, source),
        StateError::File(error) => Error::writing(file, error.cause),
        other => Error::Format { file: file.to_path_buf(), problem: other.to_string() },
    };
    // 1. What there is, in the order of the file.
    let list = TensorList::new(parameters.iter().chain(zeros).cloned().collect()).map_err(failed)?;
    let numbers: Vec<Option<usize>> =
        list.tensors().iter().map(|tensor| parameters.iter().position(|own| own == tensor)).collect();
    // 2. The file.
    let mut broken = None;
    let fill = |place: ChunkPlace, into: &mut [u8]| {
        match numbers.get(place.tensor).copied().flatten() {
            Some(number) => read(number, place.offset, into)?,
            None => into.fill(0),
        }
        let is_fp32 = list.tensors().get(place.tensor).is_some_and(|tensor| tensor.dtype() == Dtype::F32);
        let chunk = into.as_chunks::<4>().0;
        let is_broken = is_fp32 && chunk.iter().any(|number| !f32::from_le_bytes(*number).is_finite());
        if is_broken && broken.is_none() {
            broken = list.tensors().get(place.tensor).map(|tensor| tensor.name().to_owned());
        }
        Ok(())
    };
    let entries = [("format", "pt"), ("ringtune", provenance)];
    let metadata: Metadata = entries.map(|(key, text)| (key.to_owned(), text.to_owned())).into();
    let mut sink = FileSink::create(file, metadata).map_err(failed)?;
    let mut source = FromTensors::new(list.clone(), fill);
    transfer(&mut source, &mut sink).map_err(failed)?;
    drop(source);
    if let Some(tensor) = broken {
        // Leave no broken file.
        let _ = std::fs::remove_file(file);
        return Err(Error::Broken { file: file.to_path_buf(), tensor });
    }
    // 3. It has to be one that is read, and every bit has to be there.
    let problem = |error: io::Error| different(file, error.to_string());
    let mut opened = File::open(file).map_err(problem)?;
    let size = opened.metadata().map_err(problem)?.len();
    let header = Header::read(&mut opened, Some(size)).map_err(|error| different(file, error.to_string()))?;
    let mut hashing = Hashing::new(io::sink());
    io::copy(&mut File::open(file).map_err(problem)?, &mut hashing).map_err(problem)?;
    match sink.encoded() {
        Some(written) if header.tensors == list && written.sha256 == hashing.hash() => Ok(()),
        _ => Err(different(file, "it is not what was written".to_owned())),
    }
}

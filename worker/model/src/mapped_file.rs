//! A safetensors file: mapped, its header, and tensors of it that are read late.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use ringtune_layout::Shapes;
use rustix::fs::FallocateFlags;
use safetensors::tensor::SafeTensors;
use tch::{Kind, Tensor};

use crate::error::{Error, Result};
use crate::native;

/// Headers above this are refused before they are parsed. SD's largest is below 200 KB.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// Begin of git-lfs' pointer files: github.com/git-lfs/git-lfs, docs/spec.md.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

pub(crate) struct MappedFile {
    pub(crate) path: PathBuf,
    pub(crate) map: Mmap,
    pub(crate) file: Arc<File>,
}

/// A tensor that stays in its file until it is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<File>,
    /// Its first byte in the file.
    pub(crate) start: usize,
    pub(crate) shape: Vec<i64>,
    /// Stored type.
    pub(crate) kind: Kind,
}

impl Stored {
    /// The tensor as `kind`, contiguous; the mapping itself if it is stored so: never write to it.
    pub(crate) fn tensor(&self, kind: Kind) -> Result<Tensor> {
        self.rows(0, self.shape.first().copied().unwrap_or(1), kind)
    }

    /// `count` places of the first dimension from `first` on, as `kind`, contiguous; the same holds.
    ///
    /// Errors: the file cannot be read, or was cut short meanwhile.
    pub(crate) fn rows(&self, first: i64, count: i64, kind: Kind) -> Result<Tensor> {
        let mut shape = self.shape.clone();
        if let Some(rows) = shape.first_mut() {
            *rows = count;
        }
        let row = self.shape.iter().skip(1).product::<i64>() as usize * self.kind.elt_size_in_bytes();
        let map = Arc::new(self.map(self.start + first as usize * row, count as usize * row)?);
        let stored = if (map.as_ptr() as usize).is_multiple_of(self.kind.elt_size_in_bytes()) {
            // SAFETY: the bytes lie in the mapping that the Arc keeps alive, they are aligned for the kind, and whoever
            // asks for the tensor does not write to it.
            unsafe { native::tensor_over(map.as_ptr(), &shape, self.kind, map.clone()) }?
        } else {
            Tensor::f_from_data_size(&map, &shape, self.kind)?
        };
        Ok(stored.f_to_kind(kind)?)
    }

    /// Stores `tensor` in a file of its own.
    #[cfg(test)]
    pub(crate) fn of(tensor: &Tensor) -> Self {
        let file = tempfile::tempfile().unwrap();
        let (kind, shape) = (tensor.kind(), tensor.size());
        let mut bytes = vec![0; tensor.numel() * kind.elt_size_in_bytes()];
        tensor.contiguous().copy_data_u8(&mut bytes, tensor.numel());
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
        Stored { path: PathBuf::from("weights"), file: Arc::new(file), start: 0, shape, kind }
    }

    fn map(&self, start: usize, length: usize) -> Result<Mmap> {
        let io = |source| Error::Io { file: self.path.clone(), source };
        let end = (start + length) as u64;
        if self.file.metadata().map_err(io)?.len() < end {
            return Err(io(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)));
        }
        // SAFETY: the mapping is read-only; that nobody shortens the file meanwhile is the stated condition of
        // [`crate::weights`].
        let map =
            unsafe { MmapOptions::new().offset(start as u64).len(length).map(&*self.file) }.map_err(io)?;
        // Read ahead, all of it: two threads that convert it would have the disk jump to and fro. A hint only.
        let _ = map.advise(Advice::WillNeed);
        Ok(map)
    }
}

/// Names and shapes of a safetensors file, and what it says of itself.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) shapes: Shapes,
    metadata: BTreeMap<String, String>,
}

impl Header {
    /// Errors: not a safetensors file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let file = map_file(path)?;
        let (_, metadata) = read_metadata(&file)?;
        let shapes = metadata.tensors().into_iter().map(|(name, info)| (name, info.shape.clone())).collect();
        let metadata = metadata.metadata().clone().into_iter().flatten().collect();
        Ok(Header { shapes, metadata })
    }

    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }
}

/// fp32 zeros of `shape` in an unnamed file of `folder`, mapped; the place on the disk is taken before anything is written.
///
/// # Errors
/// The disk's.
pub(crate) fn zeros(folder: &Path, shape: &[i64]) -> Result<Tensor> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".ringtune-{}-{number}.state", std::process::id()));
    let io = |source: std::io::Error| Error::Io { file: path.clone(), source };
    let bytes = shape.iter().product::<i64>().unsigned_abs() * 4;
    // 1. A file without a name goes with the process, however that ends.
    let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
    std::fs::remove_file(&path).map_err(io)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1))
        .map_err(|error| io(error.into()))?;
    // 2. Memory that is the file's.
    // SAFETY: nobody else has the file: it has no name.
    let mut map = unsafe { MmapMut::map_mut(&file) }.map_err(io)?;
    let data = map.as_mut_ptr();
    // SAFETY: pages are aligned for fp32, the file has the bytes of the shape, and the mapping lives as long as the tensor, which
    // alone writes to it.
    unsafe { native::tensor_over(data, shape, Kind::Float, Arc::new(map)) }
}

/// The header's length and content.
pub(crate) fn read_metadata(file: &MappedFile) -> Result<(usize, safetensors::tensor::Metadata)> {
    SafeTensors::read_metadata(&file.map).map_err(|error| Error::BadSafetensors {
        file: file.path.clone(),
        reason: format!("{error} (is it cut short? it has {} bytes)", file.map.len()),
    })
}

pub(crate) fn map_file(path: &Path) -> Result<MappedFile> {
    let io = |source| Error::Io { file: path.to_path_buf(), source };
    let bad = |reason: String| Error::BadSafetensors { file: path.to_path_buf(), reason };
    let file = std::fs::File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    if length < 10 {
        return Err(bad(format!("it has {length} bytes, fewer than any header")));
    }
    // SAFETY: the mapping is read-only; that nobody shortens the file meanwhile is the stated condition of [`crate::weights`].
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    if map.starts_with(LFS_POINTER) {
        let pointer = "it is a git-lfs pointer of a few lines, which stands for the file itself: run `git lfs install` and \
                       `git lfs pull` where the model was cloned";
        return Err(bad(pointer.to_string()));
    }
    let mut prefix = [0; 8];
    prefix.copy_from_slice(&map[..8]);
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER_BYTES || header > length - 8 {
        return Err(bad(format!(
            "its header claims {header} bytes; the file has {length} and at most {MAX_HEADER_BYTES} are allowed"
        )));
    }
    Ok(MappedFile { path: path.to_path_buf(), map, file: Arc::new(file) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_rows_are_read_wherever_they_begin() {
        let values = Tensor::arange(60, (Kind::Float, tch::Device::Cpu)).view([5, 4, 3]);
        for kind in [Kind::Float, Kind::Half, Kind::BFloat16] {
            let stored = Stored::of(&values.to_kind(kind));
            let row = 12 * kind.elt_size_in_bytes();
            for wanted in [Kind::Float, Kind::BFloat16] {
                assert!(
                    stored.tensor(wanted).unwrap().equal(&values.to_kind(wanted)),
                    "{kind:?} to {wanted:?}"
                );
                let rows = stored.rows(3, 2, wanted).unwrap();
                assert!(rows.equal(&values.narrow(0, 3, 2).to_kind(wanted)), "{kind:?} to {wanted:?}");
            }
            // A header of an odd length.
            let shifted = Stored { start: row - 1, shape: vec![4, 4, 3], ..stored.clone() };
            assert_eq!(shifted.tensor(Kind::Float).unwrap().size(), [4, 4, 3]);
            let error = Stored { start: row, ..stored }.tensor(kind).unwrap_err();
            assert!(
                matches!(&error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::UnexpectedEof)
            );
        }
    }
}

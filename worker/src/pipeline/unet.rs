//! A trained UNet's weights in the place of the model's own.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use ringtune_shared::{
    model_folder::read_object,
    state::{Header, Metadata, StateError, TensorInfo},
};
use serde_json::{Value, json};

use super::error::{Error, failed_at, unusable};
use crate::output::weights_file;

/// The folder of a model's UNet, and its weights there: one file, or shards and which tensor is in which.
const PART: &str = "unet";
const STEM: &str = "diffusion_pytorch_model";
const WEIGHTS: &str = "diffusion_pytorch_model.safetensors";
const INDEX: &str = "diffusion_pytorch_model.safetensors.index.json";

/// Whether a file of a part of a model is its UNet's weights.
pub(super) fn is_weights(part: &str, name: &str) -> bool {
    part == PART && name != "config.json"
}

/// A file of weights, or the shards of one.
#[derive(Default)]
struct Stored {
    files: Vec<File>,
    /// What the first file says of itself.
    metadata: Metadata,
    tensors: BTreeMap<String, Place>,
}

/// Where a tensor is: in which of the files, from which byte on.
struct Place {
    info: TensorInfo,
    file: usize,
    start: u64,
}

impl Stored {
    /// Opens a safetensors file, or those that an index names.
    fn open(path: &Path) -> Result<Self, Error> {
        let mut stored = Self::default();
        if path.extension().is_none_or(|extension| extension != "json") {
            stored.add(path, |_| true)?;
            return Ok(stored);
        }
        for (name, tensors) in shards(path)? {
            stored.add(&path.with_file_name(name), |tensor| tensors.contains(tensor))?;
        }
        Ok(stored)
    }

    /// Adds the tensors of a file that are `taken` from it.
    fn add(&mut self, path: &Path, taken: impl Fn(&str) -> bool) -> Result<(), Error> {
        let mut file = File::open(path).map_err(failed_at(path))?;
        let size = file.metadata().map_err(failed_at(path))?.len();
        let header = Header::read(&mut file, Some(size))
            .map_err(|error| unusable(path, format!("is not a whole safetensors file: {error}")))?;
        let mut start = header.bytes;
        for info in header.tensors.tensors() {
            if taken(info.name()) {
                let place = Place { info: info.clone(), file: self.files.len(), start };
                self.tensors.insert(info.name().to_owned(), place);
            }
            start += info.bytes();
        }
        if self.files.is_empty() {
            self.metadata = header.metadata;
        }
        self.files.push(file);
        Ok(())
    }

    fn read(&self, place: &Place, offset: u64, into: &mut [u8]) -> Result<(), StateError> {
        let file = self.files.get(place.file).ok_or_else(|| StateError::refused("there is no such file"))?;
        file.read_exact_at(into, place.start + offset).map_err(StateError::from)
    }
}

/// The shards that an index names, and the tensors of each.
fn shards(index: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, Error> {
    let object = read_object(index)?;
    let map = object.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| unusable(index, "has no object 'weight_map' from tensors to files"))?;
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in map {
        let is_name = |name: &&str| Path::new(name).file_name().is_some_and(|last| last == *name);
        let file = file.as_str().filter(is_name).ok_or_else(|| {
            unusable(index, format!("maps {tensor:?} to {file}, allowed is a file name of this folder"))
        })?;
        shards.entry(file.to_owned()).or_default().insert(tensor.clone());
    }
    Ok(shards)
}

/// The weights of a job, and of what it did not train the model's own.
pub(super) struct TrainedUnet {
    trained: Stored,
    /// None: all of the weights were trained.
    rest: Option<Stored>,
}

impl TrainedUnet {
    /// Opens the weights of a job on the model in the folder `model`.
    ///
    /// # Errors
    /// It is no safetensors file, or of another UNet.
    pub(super) fn open(file: &Path, model: &Path) -> Result<Self, Error> {
        let trained = Stored::open(file)?;
        let own = [WEIGHTS, INDEX].map(|name| model.join(PART).join(name));
        let Some(own) = own.iter().find(|path| path.is_file()) else {
            // Whether these are all that the UNet has, the model's loader says.
            return Ok(Self { trained, rest: None });
        };
        let rest = Stored::open(own)?;
        for (name, Place { info, .. }) in &trained.tensors {
            let problem = match rest.tensors.get(name) {
                None => format!("has a tensor {name:?}, which the model's UNet has not"),
                Some(other) if other.info.shape() != info.shape() => format!(
                    "has a tensor {name:?} of {:?}, and the model's UNet one of {:?}",
                    info.shape(),
                    other.info.shape()
                ),
                Some(_) => continue,
            };
            return Err(unusable(file, problem));
        }
        let is_part = rest.tensors.keys().any(|name| !trained.tensors.contains_key(name));
        Ok(Self { trained, rest: is_part.then_some(rest) })
    }

    /// What is written.
    pub(super) fn bytes(&self) -> u64 {
        self.from().iter().map(|(_, place)| place.info.bytes()).sum()
    }

    /// Each tensor, and where it comes from; by their names.
    fn from(&self) -> Vec<(&Stored, &Place)> {
        let all = self.rest.as_ref().unwrap_or(&self.trained).tensors.iter();
        all.filter_map(|(name, place)| match (self.trained.tensors.get(name), &self.rest) {
            (Some(trained), _) => Some((&self.trained, trained)),
            (None, rest) => Some((rest.as_ref()?, place)),
        })
        .collect()
    }

    /// Writes the weights into the new model's folder: one file, or shards of at most `limit` bytes.
    ///
    /// # Errors
    /// The file system's; a number that is not finite.
    pub(super) fn write(&self, folder: &Path, limit: u64) -> Result<(), Error> {
        let folder = folder.join(PART);
        let provenance = self.trained.metadata.get("ringtune").map(String::as_str).unwrap_or_default();
        let write = |path: PathBuf, from: &[(&Stored, &Place)]| {
            let tensors: Vec<TensorInfo> = from.iter().map(|(_, place)| place.info.clone()).collect();
            let read = |number: usize, offset: u64, into: &mut [u8]| {
                let tensor = from.get(number);
                let (stored, place) = tensor.ok_or_else(|| StateError::refused("there is no such tensor"))?;
                stored.read(place, offset, into)
            };
            weights_file::write(&path, &tensors, &[], provenance, &read)
                .map_err(|error| failed_at(&path)(io::Error::other(error)))
        };
        let from = self.from();
        let shards = split(&from, limit, |(_, place)| place.info.bytes());
        if let [all] = shards[..] {
            return write(folder.join(WEIGHTS), all);
        }
        let mut map = BTreeMap::new();
        for (number, shard) in shards.iter().enumerate() {
            let name = format!("{STEM}-{:05}-of-{:05}.safetensors", number + 1, shards.len());
            write(folder.join(&name), shard)?;
            map.extend(shard.iter().map(|(_, place)| (place.info.name(), name.clone())));
        }
        let index = json!({ "metadata": { "total_size": self.bytes() }, "weight_map": map });
        let path = folder.join(INDEX);
        fs::write(&path, format!("{index:#}\n")).map_err(failed_at(&path))
    }
}

/// Cuts `all` into pieces of at most `limit` bytes; what is larger by itself is a piece of its own.
/// Source: huggingface_hub, serialization/_base.py, split_state_dict_into_shards_factory.
fn split<T>(mut all: &[T], limit: u64, bytes: impl Fn(&T) -> u64) -> Vec<&[T]> {
    let mut pieces = Vec::new();
    while !all.is_empty() {
        let mut sum = 0;
        let fits = |one: &&T| {
            sum += bytes(one);
            sum <= limit
        };
        let (piece, rest) = all.split_at(all.iter().take_while(fits).count().max(1));
        pieces.push(piece);
        all = rest;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_full_and_what_is_larger_stands_alone() {
        let sizes = [3, 4, 9, 1, 1];
        let cut = |limit| split(&sizes, limit, |size| *size);
        assert_eq!(cut(7), [&sizes[..2], &[9], &[1, 1]]);
        assert_eq!(cut(10), [&sizes[..2], &[9, 1], &[1]]);
        assert_eq!(cut(18), [&sizes[..]]);
    }
}

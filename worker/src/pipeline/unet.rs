//! A trained UNet's weights in the place of the model's own.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use ringtune_shared::state::{Header, StateError, TensorInfo};

use super::error::{Error, failed_at, unusable};
use crate::output::weights_file;

/// The folder of a model's UNet, and its weights there.
const PART: &str = "unet";
const WEIGHTS: &str = "diffusion_pytorch_model.safetensors";

/// Whether a file of a part of a model is its UNet's weights.
pub(super) fn is_weights(part: &str, name: &str) -> bool {
    part == PART && !name.ends_with("config.json")
}

/// A file of weights, and where its tensors are.
struct Stored {
    path: PathBuf,
    file: File,
    header: Header,
    /// From which byte of the file on each tensor is.
    starts: BTreeMap<String, u64>,
}

impl Stored {
    fn open(path: &Path) -> Result<Self, Error> {
        let mut file = File::open(path).map_err(failed_at(path))?;
        let size = file.metadata().map_err(failed_at(path))?.len();
        let header = Header::read(&mut file, Some(size))
            .map_err(|error| unusable(path, format!("is not a whole safetensors file: {error}")))?;
        let mut next = header.bytes;
        let mut starts = BTreeMap::new();
        for tensor in header.tensors.tensors() {
            starts.insert(tensor.name().to_owned(), next);
            next += tensor.bytes();
        }
        Ok(Self { path: path.to_owned(), file, header, starts })
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.header.tensors.tensors().iter().find(|tensor| tensor.name() == name)
    }

    fn bytes(&self) -> u64 {
        self.header.tensors.tensors().iter().map(TensorInfo::bytes).sum::<u64>() + self.header.bytes
    }
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
        let own = model.join(PART).join(WEIGHTS);
        if !own.is_file() {
            // Whether these are all that the UNet has, the model's loader says.
            return Ok(Self { trained, rest: None });
        }
        let rest = Stored::open(&own)?;
        for tensor in trained.header.tensors.tensors() {
            let name = tensor.name();
            let problem = match rest.tensor(name) {
                None => format!("has a tensor {name:?}, which the model's UNet has not"),
                Some(other) if other.shape() != tensor.shape() => format!(
                    "has a tensor {name:?} of {:?}, and the model's UNet one of {:?}",
                    tensor.shape(),
                    other.shape()
                ),
                Some(_) => continue,
            };
            return Err(unusable(file, problem));
        }
        let lacks = |tensor: &TensorInfo| trained.tensor(tensor.name()).is_none();
        let rest = rest.header.tensors.tensors().iter().any(lacks).then_some(rest);
        Ok(Self { trained, rest })
    }

    /// What is written.
    pub(super) fn bytes(&self) -> u64 {
        self.trained.bytes() + self.rest.as_ref().map_or(0, Stored::bytes)
    }

    /// Writes the weights into the new model's folder.
    ///
    /// # Errors
    /// The file system's; a number that is not finite.
    pub(super) fn write(&self, folder: &Path) -> Result<(), Error> {
        let to = folder.join(PART).join(WEIGHTS);
        let Some(rest) = &self.rest else {
            fs::copy(&self.trained.path, &to).map_err(failed_at(&to))?;
            return Ok(());
        };
        // 1. Each tensor from where it is.
        let own = rest.header.tensors.tensors().iter();
        let from: Vec<(&Stored, TensorInfo)> = own
            .map(|tensor| match self.trained.tensor(tensor.name()) {
                Some(trained) => (&self.trained, trained.clone()),
                None => (rest, tensor.clone()),
            })
            .collect();
        // 2. In one file.
        let tensors: Vec<TensorInfo> = from.iter().map(|(_, tensor)| tensor.clone()).collect();
        let read = |number: usize, offset: u64, into: &mut [u8]| {
            let (stored, tensor) =
                from.get(number).ok_or_else(|| StateError::refused("there is no such tensor"))?;
            let start = stored.starts.get(tensor.name()).copied().unwrap_or_default();
            stored.file.read_exact_at(into, start + offset).map_err(StateError::from)
        };
        let provenance = self.trained.header.metadata.get("ringtune").map(String::as_str).unwrap_or_default();
        weights_file::write(&to, &tensors, &[], provenance, &read)
            .map_err(|error| failed_at(&to)(io::Error::other(error)))
    }
}

//! A model's folder in diffusers' layout that is made of another one: which files stay as they are, and how they come into the
//! new folder.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

/// Names the parts of a pipeline.
pub const MODEL_INDEX: &str = "model_index.json";
/// A model_index.json has a few lines, an index of shards one for each tensor.
const LARGEST_INDEX: u64 = 1 << 20;
/// Files of one part.
const MOST_FILES: usize = 1000;
/// Left free beside what is written.
const SPARE_BYTES: u64 = 16 << 20;

/// Why a folder cannot be made of another one.
#[derive(Debug, thiserror::Error)]
pub enum ModelFolderError {
    /// A file or folder is not what it should be.
    #[error("{} {problem}", path.display())]
    Unusable {
        /// The file or folder.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// Reading or writing.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not enough space.
    #[error("{} has {} MB left; the model needs {} MB there", folder.display(), free / 1_000_000, needed / 1_000_000)]
    Space {
        /// Where the new model is to be.
        folder: PathBuf,
        /// Bytes.
        free: u64,
        /// Bytes.
        needed: u64,
    },
}

/// Says at which file or folder the system failed.
pub fn failed_at(path: &Path) -> impl Fn(io::Error) -> ModelFolderError + '_ {
    move |source| ModelFolderError::Io { path: path.to_owned(), source }
}

/// A file or folder that is not what it should be: `problem` follows its path.
pub fn unusable(path: &Path, problem: impl Into<String>) -> ModelFolderError {
    ModelFolderError::Unusable { path: path.to_owned(), problem: problem.into() }
}

/// How an unchanged file gets into the new folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// A hard link where that is possible.
    Link,
    /// A copy.
    Copy,
}

/// A file of the model.
#[derive(Debug)]
pub struct PartFile {
    /// `unet/config.json`: a part's folder, and a file's name in it.
    name: PathBuf,
    /// Path of its bytes, symlinks resolved: download caches are full of them.
    source: PathBuf,
    bytes: u64,
    device: u64,
}

/// Reads model_index.json.
///
/// # Errors
/// It is not there, or no JSON object.
pub fn read_index(model: &Path) -> Result<Map<String, Value>, ModelFolderError> {
    read_object(&model.join(MODEL_INDEX)).map_err(|error| match error {
        ModelFolderError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            unusable(model, format!("is no folder in diffusers layout: it has no {MODEL_INDEX}"))
        }
        other => other,
    })
}

/// Reads a JSON object of at most a megabyte.
///
/// # Errors
/// The file is not there, larger, or no JSON object.
pub fn read_object(file: &Path) -> Result<Map<String, Value>, ModelFolderError> {
    let size = fs::metadata(file).map_err(failed_at(file))?.len();
    if size > LARGEST_INDEX {
        return Err(unusable(file, format!("has {size} bytes, allowed are {LARGEST_INDEX}")));
    }
    let text = fs::read_to_string(file).map_err(failed_at(file))?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(unusable(file, "is not a JSON object")),
        Err(error) => Err(unusable(file, format!("is not JSON: {error}"))),
    }
}

/// Writes model_index.json; a part that the model has no folder of (a safety checker that was left out) is none.
///
/// # Errors
/// The file system's.
pub fn write_index(
    folder: &Path,
    mut index: Map<String, Value>,
    model: &Path,
) -> Result<(), ModelFolderError> {
    for (name, value) in &mut index {
        if value.is_array() && !(is_plain(name) && model.join(name).is_dir()) {
            *value = Value::from(vec![Value::Null; 2]);
        }
    }
    let file = folder.join(MODEL_INDEX);
    let text = format!("{:#}\n", Value::Object(index));
    fs::write(&file, text).map_err(failed_at(&file))
}

/// A part's name has to be that of a folder in the model.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

/// The files of all parts that stay as they are; those that `is_rewritten` by their part and name do not.
///
/// # Errors
/// The file system's.
pub fn others(
    model: &Path,
    index: &Map<String, Value>,
    is_rewritten: impl Fn(&str, &str) -> bool,
) -> Result<Vec<PartFile>, ModelFolderError> {
    let mut files = Vec::new();
    for (part, _) in index.iter().filter(|(name, value)| value.is_array() && is_plain(name)) {
        let folder = model.join(part);
        if !folder.is_dir() {
            continue;
        }
        let mut names: Vec<String> = Vec::new();
        for entry in fs::read_dir(&folder).map_err(failed_at(&folder))?.take(MOST_FILES) {
            let entry = entry.map_err(failed_at(&folder))?;
            // Names that are not UTF-8 are none of a model's.
            names.extend(entry.file_name().into_string().ok());
        }
        let has_safetensors = names.iter().any(|name| name.ends_with(".safetensors") && !is_variant(name));
        names.retain(|name| is_needed(name, has_safetensors) && !is_rewritten(part, name));
        names.sort();
        for name in names {
            let source = folder.join(&name);
            let source = fs::canonicalize(&source).map_err(failed_at(&source))?;
            let about = fs::metadata(&source).map_err(failed_at(&source))?;
            if about.is_file() {
                let name = Path::new(part).join(name);
                files.push(PartFile { name, bytes: about.len(), device: about.dev(), source });
            }
        }
    }
    Ok(files)
}

/// Configurations and weights in the default variant; pickled weights only where there are no others.
fn is_needed(name: &str, has_safetensors: bool) -> bool {
    let pickled = [".bin", ".ckpt", ".pt", ".pth"].iter().any(|ending| name.ends_with(ending));
    let weights = pickled || name.ends_with(".safetensors") || name.ends_with(".index.json");
    let other_frameworks = [".msgpack", ".h5", ".onnx", ".onnx_data", ".pb"];
    let unwanted = [
        name.starts_with('.'),
        weights && is_variant(name),
        pickled && has_safetensors,
        other_frameworks.iter().any(|ending| name.ends_with(ending)),
    ];
    !unwanted.contains(&true)
}

/// `diffusion_pytorch_model.fp16.safetensors`: a word between the stem and the ending.
fn is_variant(name: &str) -> bool {
    let stem = name.strip_suffix(".index.json").unwrap_or(name);
    stem.split('.').count() > 2
}

/// Checks that there is room in `folder` for what will be copied, and for `new` bytes.
///
/// # Errors
/// There is too little; the file system's.
pub fn check_space(folder: &Path, others: &[PartFile], how: How, new: u64) -> Result<(), ModelFolderError> {
    let device = fs::metadata(folder).map_err(failed_at(folder))?.dev();
    let copied = others.iter().filter(|file| how == How::Copy || file.device != device);
    let needed = copied.map(|file| file.bytes).fold(new, u64::saturating_add).saturating_add(SPARE_BYTES);
    let about = rustix::fs::statvfs(folder).map_err(io::Error::from).map_err(failed_at(folder))?;
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    if free < needed {
        return Err(ModelFolderError::Space { folder: folder.to_owned(), free, needed });
    }
    Ok(())
}

/// Brings the files of `model` into the new folder.
///
/// # Errors
/// The file system's; a file that changed meanwhile.
pub fn place(files: &[PartFile], model: &Path, folder: &Path, how: How) -> Result<(), ModelFolderError> {
    for file in files {
        let target = folder.join(&file.name);
        let part = target.parent().unwrap_or(folder);
        fs::create_dir_all(part).map_err(failed_at(part))?;
        if how == How::Copy || fs::hard_link(&file.source, &target).is_err() {
            fs::copy(&file.source, &target).map_err(failed_at(&target))?;
        }
        let placed = fs::metadata(&target).map_err(failed_at(&target))?.len();
        if placed != file.bytes {
            let problem = format!("has changed while it was copied ({} bytes, {placed})", file.bytes);
            return Err(unusable(&model.join(&file.name), problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_variant_is_taken_and_pickles_only_in_need() {
        for (name, with, without) in [
            ("config.json", true, true),
            ("diffusion_pytorch_model.safetensors", true, true),
            ("model-00001-of-00002.safetensors", true, true),
            ("model.safetensors.index.json", true, true),
            ("diffusion_pytorch_model.fp16.safetensors", false, false),
            ("model.fp16.safetensors.index.json", false, false),
            ("pytorch_model.bin", false, true),
            ("flax_model.msgpack", false, false),
            (".gitattributes", false, false),
        ] {
            assert_eq!((is_needed(name, true), is_needed(name, false)), (with, without), "{name}");
        }
    }

    #[test]
    fn no_part_is_outside_the_checkpoint() {
        for name in ["..", "../unet", "a/b", "", ".hidden", "/etc"] {
            assert!(!is_plain(name), "{name:?}");
        }
        assert!(is_plain("safety_checker"));
    }
}

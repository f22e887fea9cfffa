//! What a checkpoint is, by content: the hash of the files that decide what a job computes on it.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use ringtune_shared::ids::{ContentHash, ContentHasher};

use super::{RankError, artifacts::hash_file_blocking};

/// Component folders, and the stem of their weights' file names.
const WEIGHTS: [(&str, &str); 3] =
    [("text_encoder", "model"), ("unet", "diffusion_pytorch_model"), ("vae", "diffusion_pytorch_model")];
/// Small files that decide as much.
const SMALL_FILES: [&str; 10] = [
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "tokenizer/added_tokens.json",
    "tokenizer/merges.txt",
    "tokenizer/special_tokens_map.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
    "tokenizer/vocab.json",
    "unet/config.json",
    "vae/config.json",
];

/// Hashes checkpoints, each file once as long as it does not change.
#[derive(Debug, Default)]
pub struct Fingerprints {
    known: Mutex<HashMap<PathBuf, Known>>,
}

/// A file's size and time of change when it was hashed, and the hash.
type Known = (u64, Option<SystemTime>, ContentHash);

impl Fingerprints {
    /// The hash of a checkpoint's names and contents; of absent files nothing. A variant ("fp16"; empty: none) leaves
    /// no mark in the names: where its contents are those of another checkpoint, so is the hash. Blocks: gigabytes
    /// are read.
    pub fn of_model(&self, folder: &Path, variant: &str) -> Result<ContentHash, RankError> {
        self.of_files(folder, model_files(folder, variant).into_iter())
    }

    /// The hash of the checkpoint's VAE, in the same way. Blocks.
    pub fn of_vae(&self, folder: &Path, variant: &str) -> Result<ContentHash, RankError> {
        let files = model_files(folder, variant).into_iter();
        self.of_files(folder, files.filter(|(name, _)| name.starts_with("vae/")))
    }

    /// `files`: names that count, and paths below the folder.
    fn of_files(
        &self,
        folder: &Path,
        files: impl Iterator<Item = (String, String)>,
    ) -> Result<ContentHash, RankError> {
        let mut hasher = ContentHasher::new();
        for (name, file) in files {
            let hash = self.of_file(&folder.join(&file))?;
            hasher.update(format!("{name}\0{hash}\n").as_bytes());
        }
        Ok(hasher.finish())
    }

    fn of_file(&self, path: &Path) -> Result<ContentHash, RankError> {
        let failed = |source| RankError::Io { path: path.to_owned(), source };
        let about = fs::metadata(path).map_err(failed)?;
        let (bytes, changed) = (about.len(), about.modified().ok());
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known_bytes, known_changed, hash)) = lock().get(path)
            && (*known_bytes, *known_changed) == (bytes, changed)
        {
            return Ok(*hash);
        }
        let (hash, _) = hash_file_blocking(path)?;
        lock().insert(path.to_owned(), (bytes, changed, hash));
        Ok(hash)
    }
}

/// Names without the variant, sorted, and the paths below the folder. Other variants (`.fp16.`, `.non_ema.`) and
/// pickles lie beside them in many checkpoints; they are not what is loaded.
fn model_files(folder: &Path, variant: &str) -> BTreeMap<String, String> {
    let small = SMALL_FILES.iter().filter(|name| folder.join(name).is_file());
    let mut files: BTreeMap<String, String> =
        small.map(|name| ((*name).to_owned(), (*name).to_owned())).collect();
    for (component, stem) in WEIGHTS {
        let Ok(entries) = fs::read_dir(folder.join(component)) else { continue };
        for file in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            if let Some(name) = plain_weights_name(&file, stem, variant) {
                files.insert(format!("{component}/{name}"), format!("{component}/{file}"));
            }
        }
    }
    files
}

/// `STEM.safetensors` or a shard, `STEM-00001-of-00002.safetensors`.
pub(crate) fn is_weights(name: &str, stem: &str) -> bool {
    plain_weights_name(name, stem, "").is_some()
}

/// `STEM.safetensors` or a shard, `STEM-00001-of-00002.safetensors`, without the variant that it is of; none for all
/// other files, those of other variants among them.
fn plain_weights_name(file: &str, stem: &str, variant: &str) -> Option<String> {
    let mut middle = file.strip_prefix(stem)?.strip_suffix(".safetensors")?;
    if !variant.is_empty() {
        let dotted = format!(".{variant}");
        middle = middle.strip_suffix(&dotted).or_else(|| middle.strip_prefix(&dotted))?;
    }
    let is_plain = middle.is_empty() || (middle.starts_with('-') && !middle.contains('.'));
    let is_shard = middle.is_empty() || middle.contains("-of-");
    (is_plain && is_shard).then(|| format!("{stem}{middle}.safetensors"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_follows_what_is_loaded_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("unet/config.json", "{}");
        write("unet/diffusion_pytorch_model.safetensors", "weights");
        let hash = || Fingerprints::default().of_model(folder.path(), "").unwrap();
        let first = hash();
        write("unet/diffusion_pytorch_model.fp16.safetensors", "others");
        write("unet/diffusion_pytorch_model.bin", "pickle");
        write("README.md", "words");
        assert_eq!(hash(), first);
        write("unet/diffusion_pytorch_model.safetensors", "weightz");
        assert_ne!(hash(), first);
        let second = hash();
        write("vae/diffusion_pytorch_model-00001-of-00002.safetensors", "shard");
        assert_ne!(hash(), second);
    }

    #[test]
    fn a_variant_is_its_own_files_under_the_plain_names() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("unet")).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join("unet").join(name), text).unwrap();
        let hash = |variant: &str| Fingerprints::default().of_model(folder.path(), variant).unwrap();
        write("diffusion_pytorch_model.fp16.safetensors", "a");
        let first = hash("fp16");
        write("diffusion_pytorch_model.safetensors", "b");
        assert_eq!(hash("fp16"), first);
        assert_ne!(hash(""), first);
        write("diffusion_pytorch_model.safetensors", "a");
        assert_eq!(hash(""), first);
        write("diffusion_pytorch_model-00001-of-00002.fp16.safetensors", "c");
        assert_ne!(hash("fp16"), first);
        assert_eq!(hash(""), first);
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("unet")).unwrap();
        let file = folder.path().join("unet/config.json");
        fs::write(&file, "{}").unwrap();
        let fingerprints = Fingerprints::default();
        let first = fingerprints.of_model(folder.path(), "").unwrap();
        assert_eq!(fingerprints.of_model(folder.path(), "").unwrap(), first);
        fs::write(&file, "{\"a\":1}").unwrap();
        assert_ne!(fingerprints.of_model(folder.path(), "").unwrap(), first);
    }
}

//! A model's fingerprint: the hash of the files that decide a job's results.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::SystemTime,
};

use ringtune_shared::ids::{ContentHash, ContentHasher};
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::{contents::hash_file_blocking, data::tokenizer::FOLDER_FILES};

/// Component folders, and the stem of their weights' file names.
const WEIGHTS: [(&str, &str); 3] =
    [("text_encoder", "model"), ("unet", "diffusion_pytorch_model"), ("vae", "diffusion_pytorch_model")];
/// Small files that decide as much.
const SMALL_FILES: [&str; 4] =
    ["scheduler/scheduler_config.json", "text_encoder/config.json", "unet/config.json", "vae/config.json"];
/// Name of a single-file model in the fingerprint, whatever its file's name.
const SINGLE_FILE: &str = "model.safetensors";

/// Hashes models, each file once as long as it does not change, and no further than somebody `still` waits for it.
#[derive(Debug, Default)]
pub struct Fingerprints {
    known: Mutex<BTreeMap<PathBuf, Known>>,
}

/// A file's size and time of change when it was hashed, and the hash.
type Known = (u64, Option<SystemTime>, ContentHash);

impl Fingerprints {
    /// The hash of names and contents of a model, which is a folder or one file, and of its tokenizer's folder; of
    /// absent files nothing. A variant ("fp16"; empty: none) leaves no mark in the names: where its contents are those
    /// of another model, so is the hash. Blocks: gigabytes are read.
    pub fn of_model(
        &self,
        model: &Path,
        variant: &str,
        tokenizer: &Path,
        still: &CancellationToken,
    ) -> Result<ContentHash, Error> {
        let mut files = network_files(model, variant);
        let words = FOLDER_FILES.iter().map(|name| (format!("tokenizer/{name}"), tokenizer.join(name)));
        files.extend(words.filter(|(_, path)| path.is_file()));
        self.of_files(files.into_iter(), still)
    }

    /// The hash of the model's VAE, in the same way; of one file all of it. Blocks.
    pub fn of_vae(
        &self,
        model: &Path,
        variant: &str,
        still: &CancellationToken,
    ) -> Result<ContentHash, Error> {
        let is_vae = |(name, _): &(String, PathBuf)| name.starts_with("vae/") || name == SINGLE_FILE;
        self.of_files(network_files(model, variant).into_iter().filter(is_vae), still)
    }

    /// The hash of names and contents of these files of a folder. Blocks.
    pub fn of_files_in(
        &self,
        folder: &Path,
        names: &[String],
        still: &CancellationToken,
    ) -> Result<ContentHash, Error> {
        self.of_files(names.iter().map(|name| (name.clone(), folder.join(name))), still)
    }

    /// `files`: names that count, and paths. Two at once: one is most of a model.
    fn of_files(
        &self,
        files: impl Iterator<Item = (String, PathBuf)>,
        still: &CancellationToken,
    ) -> Result<ContentHash, Error> {
        let files: Vec<_> = files.collect();
        let next = AtomicUsize::new(0);
        let hash_some = || {
            let mut hashed = Vec::new();
            while let Some((name, path)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                hashed.push((name, self.of_file(path, still)?));
            }
            Ok::<_, Error>(hashed)
        };
        let (ours, theirs) = thread::scope(|scope| {
            let other = scope.spawn(hash_some);
            let ours = hash_some();
            // A panic goes on where it would have been without the thread.
            (ours, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let mut hashed = ours?;
        hashed.extend(theirs?);
        hashed.sort_unstable_by_key(|(name, _)| *name);
        let mut hasher = ContentHasher::new();
        for (name, hash) in hashed {
            hasher.update(format!("{name}\0{hash}\n").as_bytes());
        }
        Ok(hasher.finish())
    }

    fn of_file(&self, path: &Path, still: &CancellationToken) -> Result<ContentHash, Error> {
        let failed = |source| Error::Path { field: "model.base", path: path.to_owned(), source };
        let about = fs::metadata(path).map_err(failed)?;
        let (bytes, changed) = (about.len(), about.modified().ok());
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known_bytes, known_changed, hash)) = lock().get(path)
            && (*known_bytes, *known_changed) == (bytes, changed)
        {
            return Ok(*hash);
        }
        let (hash, _) = hash_file_blocking(path, still)?;
        lock().insert(path.to_owned(), (bytes, changed, hash));
        Ok(hash)
    }
}

/// Names without the variant and paths of the model's files but the tokenizer's. Other variants (`.fp16.`,
/// `.non_ema.`) and pickles lie beside them in many models; they are not what is loaded.
fn network_files(model: &Path, variant: &str) -> BTreeMap<String, PathBuf> {
    if model.is_file() {
        return BTreeMap::from([(SINGLE_FILE.to_owned(), model.to_owned())]);
    }
    let small = SMALL_FILES.iter().map(|name| ((*name).to_owned(), model.join(name)));
    let mut files: BTreeMap<String, PathBuf> = small.filter(|(_, path)| path.is_file()).collect();
    for (component, stem) in WEIGHTS {
        let Ok(entries) = fs::read_dir(model.join(component)) else { continue };
        for file in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            if let Some(name) = plain_weights_name(&file, stem, variant) {
                files.insert(format!("{component}/{name}"), model.join(component).join(file));
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

    fn wanted() -> CancellationToken {
        CancellationToken::new()
    }

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
        let words = folder.path().join("tokenizer");
        let hash = || Fingerprints::default().of_model(folder.path(), "", &words, &wanted()).unwrap();
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
        let hash = |variant: &str| {
            Fingerprints::default().of_model(folder.path(), variant, folder.path(), &wanted()).unwrap()
        };
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
    fn of_a_single_file_its_content_and_tokenizer_count_and_not_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let hash = |name: &str, weights: &str, words: &str| {
            let path = folder.path().join(name);
            fs::write(&path, weights).unwrap();
            fs::write(folder.path().join("vocab.json"), words).unwrap();
            let fingerprints = Fingerprints::default();
            let model = fingerprints.of_model(&path, "", folder.path(), &wanted()).unwrap();
            (model, fingerprints.of_vae(&path, "", &wanted()).unwrap())
        };
        let first = hash("a.safetensors", "weights", "{}");
        assert_eq!(hash("b.safetensors", "weights", "{}"), first);
        let other_words = hash("a.safetensors", "weights", "{1}");
        assert!(other_words.0 != first.0 && other_words.1 == first.1);
        let other_weights = hash("a.safetensors", "weightz", "{}");
        assert!(other_weights.0 != first.0 && other_weights.1 != first.1);
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("unet")).unwrap();
        let file = folder.path().join("unet/config.json");
        fs::write(&file, "{}").unwrap();
        let fingerprints = Fingerprints::default();
        let hash = || fingerprints.of_model(folder.path(), "", folder.path(), &wanted()).unwrap();
        let first = hash();
        assert_eq!(hash(), first);
        fs::write(&file, "{\"a\":1}").unwrap();
        assert_ne!(hash(), first);
    }
}

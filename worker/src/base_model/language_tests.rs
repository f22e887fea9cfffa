use std::{fs, path::Path, time::Duration};

use ringtune_shared::{
    ids::{Epoch, JobId},
    job::parse_job_toml,
};
use ringtune_sources::{CacheOptions, Environment, Patience};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::*;
use crate::{
    access::{Roots, Rules},
    session::RankKey,
};

/// A folder with a model in it, and somebody who brings it from there.
struct Machine {
    folder: TempDir,
    access: Access,
}

impl Machine {
    /// `roots`: below which folder of it jobs may read models; none: anywhere.
    fn new(root: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let everything = Rules::everything();
        let models = root.map_or(Roots::Everything, |root| Roots::of([folder.path().join(root)]));
        let access = Access::new(Rules { models, ..everything }, "", folder.path().join("views"));
        let machine = Self { folder, access };
        for (name, text) in [
            ("config.json", "{}"),
            ("vocab.json", "{\"a\": 0}"),
            ("model.safetensors", "weights"),
            ("pytorch_model.bin", "pickle"),
            ("README.md", "words"),
        ] {
            machine.write(name, text);
        }
        machine
    }

    fn model(&self) -> std::path::PathBuf {
        self.folder.path().join("models/gpt2")
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.model()).unwrap();
        fs::write(self.model().join(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.model().join(name)).unwrap();
    }

    async fn bring_from(&self, base: &Path, with_weights: bool) -> Result<LanguageModelFiles, Error> {
        let job = format!(
            "kind = \"gpt2_finetune\"\n[model]\nbase = {:?}\n[gpt2]\ntokens = \"/t\"\n",
            base.display().to_string()
        );
        let spec = parse_job_toml(&job).unwrap();
        let cache = CacheOptions { folder: self.folder.path().join("cache"), most_bytes: 1 << 20 };
        let patience =
            Patience { stall: Duration::from_secs(1), tries: 1, first_wait: Duration::from_millis(1) };
        let sources = ModelSources::new(Environment::default(), cache, patience);
        let (events, _said) = mpsc::channel(64);
        let journal = Journal::new(RankKey { job: JobId::new(), epoch: Epoch::FIRST }, Some(0), events);
        let bringing = BringLanguageModel {
            spec: &spec,
            with_weights,
            access: &self.access,
            sources: &sources,
            fingerprints: &Arc::default(),
            journal: &journal,
        };
        bringing.run().await
    }

    async fn bring(&self, with_weights: bool) -> LanguageModelFiles {
        self.bring_from(&self.model(), with_weights).await.unwrap()
    }

    async fn refused(&self, with_weights: bool) -> String {
        self.bring_from(&self.model(), with_weights).await.unwrap_err().to_string()
    }
}

#[tokio::test]
async fn the_hash_follows_what_is_used_and_nothing_else() {
    let machine = Machine::new(None);
    let (whole, shape) = (machine.bring(true).await, machine.bring(false).await);
    assert_eq!(whole.files, ["config.json", "vocab.json", "model.safetensors"]);
    assert_eq!(shape.files, ["config.json", "vocab.json"]);
    assert_eq!((whole.folder.as_path(), whole.name.as_str()), (machine.model().as_path(), "gpt2"));
    assert_ne!(whole.hash, shape.hash);
    // 1. What lies beside counts for nothing.
    machine.write("pytorch_model.bin", "another");
    machine.write("README.md", "other words");
    assert_eq!(machine.bring(true).await.hash, whole.hash);
    // 2. Weights count where they are used.
    machine.write("model.safetensors", "other weights");
    assert_ne!(machine.bring(true).await.hash, whole.hash);
    assert_eq!(machine.bring(false).await.hash, shape.hash);
    // 3. The shape and the tokenizer always do.
    machine.write("merges.txt", "a b");
    assert_ne!(machine.bring(false).await.hash, shape.hash);
    machine.remove("merges.txt");
    assert_eq!(machine.bring(false).await.hash, shape.hash);
    machine.write("config.json", "{\"n_layer\": 2}");
    assert_ne!(machine.bring(false).await.hash, shape.hash);
}

#[tokio::test]
async fn shards_are_taken_with_their_index() {
    let machine = Machine::new(None);
    machine.remove("model.safetensors");
    machine.write("model.safetensors.index.json", "{}");
    machine.write("model-00002-of-00002.safetensors", "b");
    machine.write("model-00001-of-00002.safetensors", "a");
    let files = machine.bring(true).await.files;
    let shards = [
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    assert_eq!(files[2..], shards);
}

#[tokio::test]
async fn what_is_no_language_model_is_refused_by_its_own_path() {
    let machine = Machine::new(Some("models"));
    machine.remove("model.safetensors");
    let told = machine.refused(true).await;
    let begins =
        format!("model.base: {} has no model.safetensors, only pickle files", machine.model().display());
    assert!(told.starts_with(&begins), "{told}");
    assert!(machine.bring_from(&machine.model(), false).await.is_ok());
    machine.remove("config.json");
    assert!(machine.refused(false).await.contains("has no config.json: not a model in transformers' layout"));
    let file = machine.bring_from(&machine.model().join("vocab.json"), false).await.unwrap_err().to_string();
    assert!(
        file.starts_with("model.base: ") && file.contains("is no folder in transformers' layout"),
        "{file}"
    );
    let nowhere = machine.bring_from(&machine.model().join("xl"), true).await.unwrap_err();
    assert!(matches!(nowhere, Error::Path { .. }), "{nowhere}");
    let outside = machine.bring_from(machine.folder.path(), true).await.unwrap_err();
    assert!(matches!(outside, Error::Access(_)), "{outside}");
}

/// If jobs are confined to folders, the engine reads the opened files.
#[tokio::test]
async fn what_is_opened_is_read_whatever_is_swapped_in_afterwards() {
    let machine = Machine::new(Some("models"));
    let files = machine.bring(true).await;
    assert_ne!(files.folder, machine.model());
    fs::rename(machine.model(), machine.folder.path().join("elsewhere")).unwrap();
    machine.write("model.safetensors", "others");
    assert_eq!(fs::read_to_string(files.folder.join("model.safetensors")).unwrap(), "weights");
    assert!(machine.refused(false).await.contains("has no config.json"));
}

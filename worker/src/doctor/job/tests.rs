//! A dry run of a job that trains a language model, with the fake engine.

use std::{fs, path::Path};

use ringtune_shared::ids::ContentHash;
use ringtune_text::{FileFacts, Manifest, TOKEN_TYPE};
use tempfile::TempDir;

use super::*;
use crate::engine::{EngineHandle, FakeEngine, FakeScript};

const ARGUMENTS: JobArguments =
    JobArguments { job: None, set: Vec::new(), out: None, no_compute: true, threads: Some(1) };

const CONFIG: &str = r#"{"model_type": "gpt2", "vocab_size": 557, "n_positions": 1024, "n_layer": 2, "n_head": 2, "n_embd": 32}"#;

struct Desk {
    folder: TempDir,
    set: Vec<Setting>,
}

fn manifest(vocabulary_size: u32, end_of_text_id: u16) -> Manifest {
    let facts = FileFacts { documents: 1, tokens: 1, sha256: ContentHash::of(b"ab") };
    Manifest {
        ringtune_version: "test".to_owned(),
        token_type: TOKEN_TYPE.to_owned(),
        vocabulary_size,
        end_of_text_id,
        tokenizer_sha256: ContentHash::of(b"tokenizer"),
        seed: 1,
        val_fraction: 0.5,
        skipped_documents: 0,
        train: facts.clone(),
        val: facts,
    }
}

impl Desk {
    fn new() -> Self {
        let desk = Self { folder: tempfile::tempdir().unwrap(), set: Vec::new() };
        for (name, text) in [
            ("gpt2/config.json", CONFIG),
            ("gpt2/vocab.json", "{}"),
            ("gpt2/model.safetensors", "weights"),
            ("tokens/meta.json", &manifest(557, 556).to_json().unwrap()),
            ("tokens/train.bin", "ab"),
            ("tokens/val.bin", "ab"),
        ] {
            desk.write(name, text);
        }
        desk
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Gives the model a tokenizer of 557 tokens.
    fn add_tokenizer(&self) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/bpe-tokenizer");
        for name in ["vocab.json", "merges.txt"] {
            fs::copy(folder.join(name), self.folder.path().join("gpt2").join(name)).unwrap();
        }
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.folder.path().join(name)).unwrap();
    }

    /// `tokens`, and more lines of `[gpt2]`.
    async fn examine(&self, tokens: &str, lines: &str) -> JobReport {
        let file = self.folder.path().join("job.toml");
        let job =
            "kind = \"gpt2_finetune\"\n[cluster]\nworld_size = 2\n[model]\nbase = \"gpt2\"\n[gpt2]\ntokens =";
        fs::write(&file, format!("{job} {tokens:?}\n{lines}\n")).unwrap();
        let settings = Settings::default();
        let there = There { settings: &settings, coordinator: None, trust: None };
        let start: StartEngine = |_| EngineHandle::start(|| Ok(FakeEngine::new(FakeScript::default())));
        let arguments = JobArguments { set: self.set.clone(), ..ARGUMENTS };
        Box::pin(examine(&file, &arguments, there, start)).await
    }
}

#[tokio::test]
async fn a_job_that_trains_a_language_model_shows_what_it_reads() {
    let desk = Desk::new();
    let report = desk.examine("tokens", "batch_size = 3\nblock_size = 8\nmax_iters = 5000").await;
    assert!(report.problems.is_empty() && report.can_start(), "{:?}", report.problems);
    let language = report.found.language.as_ref().unwrap();
    assert_eq!(language.files, ["config.json", "vocab.json", "model.safetensors"]);
    assert_eq!((language.steps, language.windows_per_step, language.tokens_per_step), (5000, 6, 48));
    let text = render(&report);
    for line in ["its parameters too", "5000 steps of 6 windows, that is 48 tokens", "This job can start."] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // From scratch no weights are asked for; what is without effect or not looked at is said.
    desk.remove("gpt2/model.safetensors");
    let lines = "init_from = \"scratch\"\nmax_iters = 10\nresume_from_checkpoint = \"latest\"";
    let scratch = desk.examine("s3://words/web", lines).await;
    assert!(scratch.can_start(), "{:?}", scratch.problems);
    assert_ne!(scratch.found.language.unwrap().sha256, language.sha256);
    let warnings = scratch.warnings.join("\n");
    for said in [
        "gpt2.resume_from_checkpoint: not looked at",
        "gpt2.warmup_iters = 2000",
        "gpt2.tokens: what is in a bucket",
    ] {
        assert!(warnings.contains(said), "{said}: {warnings}");
    }
}

#[tokio::test]
async fn what_is_set_stands_in_place_of_the_files_own() {
    let mut desk = Desk::new();
    desk.set = ["gpt2.max_iters=7", "gpt2.block_size=16"].map(|given| given.parse().unwrap()).to_vec();
    let report = desk.examine("tokens", "max_iters = 5000").await;
    let language = report.found.language.unwrap();
    assert_eq!((language.steps, language.tokens_per_step / language.windows_per_step), (7, 16));
    desk.set = ["gpt2.max_itres=7", "gpt2.block_size=fast"].map(|given| given.parse().unwrap()).to_vec();
    let told = format!("{:?}", desk.examine("tokens", "").await.problems);
    for said in ["gpt2.max_itres", "max_iters", "from --set gpt2.max_itres=7", "--set gpt2.block_size=fast"] {
        assert!(told.contains(said), "{said}: {told}");
    }
}

#[tokio::test]
async fn what_is_missing_of_a_language_model_or_its_tokens_is_named() {
    let desk = Desk::new();
    let problem = async |lines: &str| {
        let report = desk.examine("tokens", lines).await;
        assert!(!report.can_start());
        let first = report.problems.into_iter().next().unwrap();
        (first.field, first.problem)
    };
    let (field, told) = problem("n_layer = 2").await;
    assert_eq!(field, "gpt2.n_layer", "{told}");
    desk.remove("gpt2/model.safetensors");
    let (field, told) = problem("").await;
    assert_eq!(field, "model.base");
    assert!(told.contains("has no model.safetensors"), "{told}");
    desk.remove("tokens/val.bin");
    let (field, told) = problem("").await;
    assert_eq!(field, "gpt2.tokens");
    assert!(told.contains("has no val.bin; give a folder that `ringtune prepare-text` made"), "{told}");
}

#[tokio::test]
async fn tokens_and_models_that_do_not_go_together_are_named() {
    let desk = Desk::new();
    let lines = "block_size = 8\nmax_iters = 5000";
    desk.add_tokenizer();
    // 1. Of another file of the same size.
    let report = desk.examine("tokens", lines).await;
    assert!(report.can_start(), "{:?}", report.problems);
    let warnings = report.warnings.join("\n");
    assert!(warnings.contains("gpt2.tokens: they were made with other tokenizer files"), "{warnings}");
    // 2. Of another tokenizer.
    let problem = async |lines: &str| {
        let report = desk.examine("tokens", lines).await;
        let first = report.problems.into_iter().next().unwrap();
        (first.field, first.problem)
    };
    for (vocabulary, end_of_text, word) in [
        (557, 0, "the end-of-text token is 0 by meta.json; allowed: 556"),
        (50_257, 556, "the size of the vocabulary is 50257 by meta.json; allowed: 557"),
    ] {
        desk.write("tokens/meta.json", &manifest(vocabulary, end_of_text).to_json().unwrap());
        let (field, told) = problem(lines).await;
        assert!(field == "gpt2.tokens" && told.contains(word), "{field}: {told}");
    }
    desk.write("tokens/meta.json", "{}");
    let (field, told) = problem(lines).await;
    assert!(field == "gpt2.tokens" && told.contains("is no manifest of prepare-text"), "{field}: {told}");
    // 3. Windows, and sizes, that the model or the machine has no room for.
    desk.write("tokens/meta.json", &manifest(557, 556).to_json().unwrap());
    let (field, told) = problem("block_size = 1025").await;
    assert!(field == "gpt2.block_size" && told.contains("allowed: 1 to 1024"), "{field}: {told}");
    let huge = format!("{lines}\ninit_from = \"scratch\"\nn_embd = 65536\nn_layer = 1024");
    let (field, told) = problem(&huge).await;
    assert!(field == "gpt2.n_embd" && told.contains("whose training needs about"), "{field}: {told}");
}

//! A dry run of a job that trains a language model, with the fake engine.

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::engine::{EngineHandle, FakeEngine, FakeScript};

const ARGUMENTS: JobArguments = JobArguments { job: None, out: None, no_compute: true, threads: Some(1) };

struct Desk {
    folder: TempDir,
}

impl Desk {
    fn new() -> Self {
        let desk = Self { folder: tempfile::tempdir().unwrap() };
        for (name, text) in [
            ("gpt2/config.json", "{}"),
            ("gpt2/vocab.json", "{}"),
            ("gpt2/model.safetensors", "weights"),
            ("tokens/meta.json", "{}"),
            ("tokens/train.bin", "ab"),
            ("tokens/val.bin", "ab"),
        ] {
            let path = desk.folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        desk
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
        Box::pin(examine(&file, &ARGUMENTS, there, start)).await
    }
}

#[tokio::test]
async fn a_job_that_trains_a_language_model_shows_what_it_reads() {
    let desk = Desk::new();
    let report = desk.examine("tokens", "batch_size = 3\nblock_size = 8\nmax_iters = 5000").await;
    assert!(report.problems.is_empty() && report.can_start(), "{:?}", report.problems);
    let language = report.language.as_ref().unwrap();
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
    assert_ne!(scratch.language.unwrap().sha256, language.sha256);
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

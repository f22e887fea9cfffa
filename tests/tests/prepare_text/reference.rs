//! Beside tiktoken and NumPy.

use std::fs;

use anyhow::{Result, ensure};
use ringtune_shared::ids::ContentHash;
use ringtune_tests::{Sandbox, job::text, reference::run_script};
use ringtune_text::TokenFiles;

use crate::{expect_same, make_documents, names_in, prepare, tokenizer};

#[tokio::test]
async fn ten_thousand_documents_become_the_bytes_of_nanogpts_script() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let documents = sandbox.path("documents.jsonl");
    make_documents(10_000, &documents).await?;
    fs::create_dir(sandbox.path("expected"))?;
    let (tokenizer, file, folder) = (tokenizer(), text(&documents), text(&sandbox.path("expected")));
    for (seed, fraction) in [("2357", "0.0005"), ("7", "0.25")] {
        let options = ["--val-fraction", fraction, "--seed", seed];
        let tokens = [&["tokens", &tokenizer, &file, &folder][..], &options].concat();
        run_script("nanogpt_tokens.py", &tokens).await?.expect_code(0)?;
        let more = [&options[..], &["--output", "json"]].concat();
        let finished = prepare(&sandbox, &["documents.jsonl"], "out", &more).await?.expect_code(0)?;
        expect_same(&sandbox.path("out"), &sandbox.path("expected"))?;
        // What is said of the files is so.
        ensure!(
            names_in(&sandbox.path("out"))? == ["meta.json", "train.bin", "val.bin"],
            "something is left"
        );
        let said = finished.json_lines()?.pop().unwrap_or_default();
        let files = TokenFiles::open(&sandbox.path("out"))?;
        let validation = if seed == "7" { 2500 } else { 5 };
        ensure!(said["val"]["documents"] == validation, "{said}");
        ensure!(said["train"]["documents"] == 10_000 - validation, "{said}");
        ensure!(said["val"]["tokens"] == files.val.tokens(), "{said}");
        let bytes = fs::read(sandbox.path("out/train.bin"))?;
        ensure!(said["train"]["sha256"] == ContentHash::of(&bytes).to_string(), "{said}");
        ensure!(said["vocabulary_size"] == 557 && said["end_of_text_id"] == 556, "{said}");
        files.train.check_ids(557)?;
        let ends = bytes.as_chunks().0.iter().filter(|token| u16::from_le_bytes(**token) == 556).count();
        ensure!(said["train"]["documents"] == ends, "{ends} documents end");
        let manifest = fs::read_to_string(sandbox.path("out/meta.json"))?;
        ensure!(!manifest.contains(&text(sandbox.folder())), "a path is in {manifest}");
    }
    // Changed files are noticed by whoever trains.
    let mut bytes = fs::read(sandbox.path("out/val.bin"))?;
    bytes[0] ^= 1;
    fs::write(sandbox.path("out/val.bin"), bytes)?;
    let refused =
        TokenFiles::open(&sandbox.path("out")).err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(refused.contains("val.bin") && refused.contains("SHA-256"), "{refused}");
    Ok(())
}

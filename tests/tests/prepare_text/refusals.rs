//! Refusals: exit code 2 for a wrong command line, 1 for wrong files, and nothing is written.

use std::fs;

use anyhow::{Result, ensure};
use ringtune_tests::Sandbox;

use crate::{prepare, tokenizer};

/// Inputs, output, other options; the exit code, and what is said.
type Case = (Words, &'static str, Words, i32, Words);
type Words = &'static [&'static str];

#[tokio::test]
async fn each_is_refused_by_name_before_anything_is_written() -> Result<()> {
    let sandbox = Sandbox::new()?;
    fs::write(sandbox.path("a.jsonl"), "{\"text\":\"one\"}\n{\"text\":\"two\"}\n")?;
    fs::write(sandbox.path("one.txt"), "one")?;
    fs::write(sandbox.path("empty.jsonl"), "\n\n")?;
    fs::write(sandbox.path("broken.parquet"), "PAR1 and more PAR1")?;
    fs::write(sandbox.path("file"), "")?;
    fs::create_dir_all(sandbox.path("taken/train.bin"))?;
    fs::create_dir(sandbox.path("folder"))?;
    let cases: [Case; 15] = [
        (&["a.jsonl"], "out", &["--val-fraction", "0"], 2, &["--val-fraction", "is 0; allowed"]),
        (&["a.jsonl"], "out", &["--val-fraction", "-0.1"], 2, &["--val-fraction", "is -0.1; allowed"]),
        (&["a.jsonl"], "out", &["--val-fraction", "1.5"], 2, &["--val-fraction", "above 0 and below 1"]),
        (&["a.jsonl"], "out", &["--val-fraction", "0.9"], 2, &["--val-fraction", "none is left to train on"]),
        (&["a.jsonl"], "out", &["--val-fraction", "many"], 2, &["--val-fraction"]),
        (&["a.jsonl"], "out", &["--seed", "-1"], 2, &["--seed"]),
        (&["a.jsonl"], "gs://x/y", &[], 2, &["--output-dir", "gs:// is not supported"]),
        (&["s3://X/y"], "out", &[], 2, &["INPUT", "bucket's name"]),
        (&["none.jsonl"], "out", &[], 1, &["none.jsonl"]),
        (&["folder"], "out", &[], 1, &["folder", ".txt, .jsonl or .parquet"]),
        (&["broken.parquet"], "out", &[], 1, &["broken.parquet"]),
        (&["one.txt"], "out", &[], 1, &["1 documents; allowed: 2 or more"]),
        (&["empty.jsonl"], "out", &[], 1, &["0 documents; allowed: 2 or more"]),
        (&["a.jsonl"], "file", &[], 2, &["--output-dir", "file is no folder"]),
        (&["a.jsonl"], "taken", &[], 1, &["taken/train.bin", "is a folder"]),
    ];
    for (inputs, output, more, code, said) in cases {
        let finished = prepare(&sandbox, inputs, output, more).await?.expect_code(code)?.expect_said(said)?;
        ensure!(finished.stdout.is_empty(), "{}", finished.stdout);
        ensure!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
        for name in ["train.bin", "val.bin", "meta.json"] {
            ensure!(!sandbox.path(output).join(name).is_file(), "{inputs:?} left {name}");
        }
    }
    // Tokenizers that would give other tokens.
    let clip = ringtune_tests::job::text(&ringtune_tests::places::toy_checkpoint().join("tokenizer"));
    for (folder, word) in [(clip.as_str(), "</w>"), ("folder", "vocab.json")] {
        let line = ["prepare-text", "a.jsonl", "-o", "out", "--tokenizer", folder];
        sandbox.finish(&line).await?.expect_code(1)?.expect_said(&[word])?;
    }
    Ok(())
}

#[tokio::test]
async fn the_help_shows_the_way() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let help = sandbox.finish(&["prepare-text", "--help"]).await?.expect_code(0)?;
    for word in ["--tokenizer", "--skip-broken", "nanoGPT", "meta.json", "Examples:", "Exit codes:"] {
        ensure!(help.stdout.contains(word), "{word} is not in the help:\n{}", help.stdout);
    }
    let tokenizer = tokenizer();
    let missing = sandbox.finish(&["prepare-text", "--tokenizer", &tokenizer, "-o", "out"]).await?;
    missing.expect_code(2)?.expect_said(&["INPUT"])?;
    Ok(())
}

//! What cannot be: exit code 2 for a command line that is wrong, 1 for files that are, and nothing comes to stdout.

use std::fs;

use anyhow::{Result, ensure};
use ringtune_tests::{Sandbox, language_model};

use crate::generate;

/// Options; the exit code, and what is said.
type Case = (Words, i32, Words);
type Words = &'static [&'static str];

#[tokio::test]
async fn each_is_refused_by_name() -> Result<()> {
    let sandbox = Sandbox::new()?;
    language_model::make(&sandbox.path("model"))?;
    fs::write(sandbox.path("latin.txt"), b"caf\xe9")?;
    let cases: [Case; 17] = [
        (&["--temperature", "-1"], 2, &["--temperature", "is -1; allowed: 0, or from 0.000001 to 1000"]),
        (&["--temperature", "nan"], 2, &["--temperature", "is NaN; allowed"]),
        (&["--temperature", "hot"], 2, &["--temperature", "hot"]),
        (&["--top-p", "0"], 2, &["--top-p", "is 0; allowed: above 0, up to 1"]),
        (&["--top-p", "1.5"], 2, &["--top-p", "is 1.5; allowed"]),
        (&["--top-k", "-1"], 2, &["--top-k"]),
        (&["--num-samples", "0"], 2, &["--num-samples", "0 is not in 1..=1000000"]),
        (&["--max-new-tokens", "0"], 2, &["--max-new-tokens", "0 is not in 1..=1000000"]),
        (&["--seed", "-1"], 2, &["--seed"]),
        (&["--threads", "0"], 2, &["--threads", "0 is not in 1..=1024"]),
        (&["--precision", "fp16"], 2, &["--precision", "bf16, fp32"]),
        (&["--output", "xml"], 2, &["--output", "text, json"]),
        (&["--stop-at-end-of-text", "maybe"], 2, &["--stop-at-end-of-text", "true, false"]),
        (&["--prompt", "a", "--prompt-file", "b"], 2, &["--prompt", "--prompt-file"]),
        (&["--prompt-file", "none.txt"], 1, &["--prompt-file none.txt: cannot be read"]),
        (&["--prompt-file", "latin.txt"], 1, &["--prompt-file latin.txt: is no UTF-8 from byte 3 on"]),
        (&["--prompt-file", "model"], 1, &["--prompt-file model: cannot be read"]),
    ];
    for (options, code, said) in cases {
        let line = [&["generate-text", "model"][..], options].concat();
        let finished = sandbox.finish(&line).await?;
        let finished = finished.expect_code(code)?.expect_said(said)?;
        ensure!(finished.stdout.is_empty(), "{options:?}: {}", finished.stdout);
        ensure!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn folders_that_are_no_model_say_why() -> Result<()> {
    type Change = fn(&Sandbox) -> std::io::Result<()>;
    let cases: [(Change, i32, Words); 6] = [
        (|sandbox| fs::remove_dir_all(sandbox.path("model")), 2, &["MODEL: 'model' is no folder"]),
        (|sandbox| fs::remove_file(sandbox.path("model/config.json")), 1, &["no config.json"]),
        (|sandbox| fs::remove_file(sandbox.path("model/merges.txt")), 1, &["merges.txt: it is missing"]),
        (
            |sandbox| fs::remove_file(sandbox.path("model/model.safetensors")),
            1,
            &["neither model.safetensors nor model.safetensors.index.json"],
        ),
        (
            |sandbox| {
                let file = sandbox.path("model/config.json");
                let text = fs::read_to_string(&file)?;
                fs::write(file, text.replace("\"gpt2\"", "\"llama\""))
            },
            1,
            &["model_type", "llama"],
        ),
        (
            |sandbox| {
                let file = sandbox.path("model/model.safetensors");
                let bytes = fs::read(&file)?;
                fs::write(file, &bytes[..bytes.len() / 2])
            },
            1,
            &["model.safetensors"],
        ),
    ];
    for (change, code, said) in cases {
        let sandbox = Sandbox::new()?;
        language_model::make(&sandbox.path("model"))?;
        change(&sandbox)?;
        let finished =
            generate(&sandbox, &["--prompt", "The"]).await?.expect_code(code)?.expect_said(said)?;
        ensure!(finished.stdout.is_empty(), "{}", finished.stdout);
        ensure!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn a_tokenizer_with_more_tokens_than_the_model_is_refused_when_it_gives_one() -> Result<()> {
    let sandbox = Sandbox::new()?;
    language_model::make(&sandbox.path("model"))?;
    let file = sandbox.path("model/vocab.json");
    let vocabulary = fs::read_to_string(&file)?;
    fs::write(&file, vocabulary.replacen("\"<|endoftext|>\": ", "\"<|endoftext|>\": 1", 1))?;
    let refused = generate(&sandbox, &[]).await?.expect_code(1)?;
    refused.expect_said(&["model: the tokenizer gives the token 1", "not of one model"])?;
    generate(&sandbox, &["--prompt", "The", "--max-new-tokens", "3"]).await?.expect_code(0)?;
    Ok(())
}

#[tokio::test]
async fn the_help_shows_the_way_by_the_name_of_the_command() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let help = sandbox.finish(&["generate-text", "--help"]).await?.expect_code(0)?;
    for word in ["--prompt-file", "--top-p", "Examples:", "nanoGPT", "Exit codes:"] {
        ensure!(help.stdout.contains(word), "{word} is not in the help:\n{}", help.stdout);
    }
    for tool in ["generate", "generate-text", "pipeline", "prepare-text", "doctor"] {
        let help = sandbox.finish(&[tool, "--help"]).await?.expect_code(0)?;
        let usage = format!("Usage: ringtune {tool} ");
        ensure!(help.stdout.contains(&usage), "{usage} is not in:\n{}", help.stdout);
    }
    sandbox
        .finish(&["generate-text"])
        .await?
        .expect_code(2)?
        .expect_said(&["MODEL", "Usage: ringtune generate-text"])?;
    Ok(())
}

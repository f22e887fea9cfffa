//! `ringtune prepare-text`: the bytes of nanoGPT's script, of every kind of input, through stops, and by way of buckets.

mod buckets;
mod inputs;
mod reference;
mod refusals;
mod stops;

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use ringtune_tests::{Finished, Sandbox, files, files::names_in, job::text, places, reference::run_script};

const TOKEN_FILES: [&str; 2] = ["train.bin", "val.bin"];

/// A small vocabulary of GPT-2's kind.
fn tokenizer() -> String {
    text(&places::repository().join("tests/fixtures/bpe-tokenizer"))
}

/// Runs `prepare-text` to its end, with two threads.
async fn prepare(sandbox: &Sandbox, inputs: &[&str], output: &str, more: &[&str]) -> Result<Finished> {
    let tokenizer = tokenizer();
    let options = ["--tokenizer", &tokenizer, "-o", output, "--threads", "2"];
    sandbox.finish(&[&["prepare-text"][..], inputs, &options, more].concat()).await
}

/// `count` documents of all that is hard about text, as lines of a file.
async fn make_documents(count: usize, file: &Path) -> Result<()> {
    let arguments = ["make", &count.to_string(), "1", &text(file)];
    run_script("nanogpt_tokens.py", &arguments).await?.expect_code(0)?;
    Ok(())
}

/// The texts of such a file.
fn texts_of(file: &Path) -> Result<Vec<String>> {
    let lines = fs::read_to_string(file)?;
    let text = |line: &str| -> Result<String> {
        let object: serde_json::Value = serde_json::from_str(line)?;
        Ok(object["text"].as_str().context("a text")?.to_owned())
    };
    lines.split_terminator('\n').map(text).collect()
}

/// Writes texts as lines; gives the file's size.
fn write_lines<'a>(file: &Path, texts: impl Iterator<Item = &'a String>) -> Result<u64> {
    let lines: String = texts.map(|text| format!("{}\n", serde_json::json!({ "text": text }))).collect();
    fs::write(file, &lines)?;
    Ok(lines.len() as u64)
}

/// Fails unless both folders have the same files of tokens.
fn expect_same(one: &Path, other: &Path) -> Result<()> {
    files::expect_same(one, other, &TOKEN_FILES)
}

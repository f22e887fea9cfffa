//! Texts that come to an early end.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Sandbox,
    process::{finish_child, send_signal},
};
use rustix::process::Signal;
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, ChildStdout},
};

use crate::sandbox;

/// Starts a text that takes very long, and waits for its first letters.
async fn started(sandbox: &Sandbox, more: &[&str]) -> Result<(Child, ChildStdout, Vec<u8>)> {
    let line =
        ["generate-text", "model", "--threads", "1", "--precision", "fp32", "--max-new-tokens", "1000000"];
    let options = ["--stop-at-end-of-text", "false", "--prompt", "The"];
    let mut command = sandbox.ringtune(&[&line[..], &options, more].concat())?;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdout = child.stdout.take().context("stdout")?;
    // More than the prompt: it comes token by token, long before its end.
    let mut first = vec![0; 40];
    if more.is_empty() {
        stdout.read_exact(&mut first).await?;
    }
    Ok((child, stdout, first))
}

#[tokio::test]
async fn ctrl_c_leaves_the_text_that_is_there() -> Result<()> {
    let sandbox = sandbox()?;
    for signal in [Signal::INT, Signal::TERM] {
        let (child, mut stdout, mut text) = started(&sandbox, &[]).await?;
        send_signal(&child, signal)?;
        stdout.read_to_end(&mut text).await?;
        let finished = finish_child(child).await?.expect_code(0)?;
        let finished = finished.expect_said(&["tokens/s", "stopped"])?;
        ensure!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
        let text = String::from_utf8(text)?;
        ensure!(text.starts_with("The") && text.ends_with('\n'), "{text:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_it_quietly() -> Result<()> {
    let sandbox = sandbox()?;
    let (child, stdout, _) = started(&sandbox, &[]).await?;
    drop(stdout);
    let finished = finish_child(child).await?.expect_code(0)?;
    ensure!(
        !finished.stderr.contains("panicked") && !finished.stderr.contains("cannot"),
        "{}",
        finished.stderr
    );
    Ok(())
}

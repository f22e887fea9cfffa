//! Runs that come to an early end, and those that go on from them.

use std::{fs, io::Write as _, path::Path, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Sandbox,
    chaos::say,
    process::{Finished, finish_child, send_signal},
    tools,
    wait::{SOON, until},
};
use rustix::process::Signal;

use crate::{expect_same, make_documents, names_in, prepare, texts_of, tokenizer, write_lines};

/// Parts of 16 MiB that the input is cut to.
const PARTS: u64 = 6;

/// Starts a run with one thread and sends it a signal when it has done a part.
async fn stopped(sandbox: &Sandbox, output: &str, signal: Signal) -> Result<Finished> {
    let tokenizer = tokenizer();
    let options = ["--tokenizer", &tokenizer, "-o", output, "--threads", "1"];
    let mut command = sandbox.ringtune(&[&["prepare-text", "long.jsonl"][..], &options].concat())?;
    let folder = sandbox.path(output).join(".prepare-text");
    let before = parts_in(&folder);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    until("a part is done", SOON, || async { Ok((parts_in(&folder) > before).then_some(())) }).await?;
    send_signal(&child, signal)?;
    finish_child(child).await
}

fn parts_in(folder: &Path) -> usize {
    let names = names_in(folder).unwrap_or_default();
    names.iter().filter(|name| name.ends_with(".tokens")).count()
}

#[tokio::test]
async fn a_run_that_was_killed_goes_on_to_the_same_bytes() -> Result<()> {
    let sandbox = Sandbox::new()?;
    make_documents(2000, &sandbox.path("short.jsonl")).await?;
    let texts = texts_of(&sandbox.path("short.jsonl"))?;
    let once = write_lines(&sandbox.path("long.jsonl"), texts.iter())?;
    let times = (PARTS * (16 << 20)).div_ceil(once) as usize - 1;
    write_lines(&sandbox.path("long.jsonl"), std::iter::repeat_n(&texts, times).flatten())?;
    prepare(&sandbox, &["long.jsonl"], "whole", &[]).await?.expect_code(0)?;

    // 1. Killed: what is there is no file of tokens, and what was done is not done again.
    let killed = stopped(&sandbox, "out", Signal::KILL).await?;
    ensure!(killed.code.is_none(), "it ended before: {}", killed.stderr);
    ensure!(names_in(&sandbox.path("out"))? == [".prepare-text"], "{:?}", names_in(&sandbox.path("out"))?);
    // 2. Interrupted: it says how much is kept.
    let interrupted = stopped(&sandbox, "out", Signal::INT).await?.expect_code(1)?;
    interrupted.expect_said(&[
        "of 6 parts are there already",
        "of 6 parts are done and kept; the same command goes on",
    ])?;
    ensure!(names_in(&sandbox.path("out"))? == [".prepare-text"], "{:?}", names_in(&sandbox.path("out"))?);
    // 3. A part that is damaged is made again, as those that are missing are.
    let scratch = sandbox.path("out/.prepare-text");
    let kept = names_in(&scratch)?;
    let part = scratch.join(kept.iter().find(|name| name.ends_with(".tokens")).context("a part")?);
    let mut bytes = fs::read(&part)?;
    bytes[1000] ^= 1;
    fs::write(&part, bytes)?;
    let went = prepare(&sandbox, &["long.jsonl"], "out", &[]).await?.expect_code(0)?;
    let there = parts_in_words(&went.stderr)?;
    ensure!((1..6).contains(&there), "{}", went.stderr);
    expect_same(&sandbox.path("out"), &sandbox.path("whole"))?;
    ensure!(names_in(&sandbox.path("out"))? == ["meta.json", "train.bin", "val.bin"], "something is left");

    // 4. An input that has changed meanwhile is noticed, and the result is that of the new one.
    stopped(&sandbox, "changed", Signal::INT).await?.expect_code(1)?;
    let mut file = fs::OpenOptions::new().append(true).open(sandbox.path("long.jsonl"))?;
    writeln!(file, "{{\"text\":\"one more\"}}")?;
    drop(file);
    let went = prepare(&sandbox, &["long.jsonl"], "changed", &[]).await?.expect_code(0)?;
    let went = went.expect_said(&["long.jsonl has changed since"])?;
    ensure!(!went.stderr.contains("going on"), "{}", went.stderr);
    prepare(&sandbox, &["long.jsonl"], "whole", &[]).await?.expect_code(0)?;
    expect_same(&sandbox.path("changed"), &sandbox.path("whole"))
}

/// The number in "going on: 3 of 6 parts are there already".
fn parts_in_words(said: &str) -> Result<u64> {
    let after = said.split_once("going on: ").with_context(|| said.to_owned())?.1;
    Ok(after.split(' ').next().unwrap_or_default().parse()?)
}

/// Needs root, for a disk of its own.
#[tokio::test]
async fn a_full_disk_is_told_with_what_to_do() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        say("SKIPPED: a disk of its own needs root");
        return Ok(());
    }
    if !tools::has(&["unshare", "mount"], "util-linux mount")? {
        return Ok(());
    }
    let sandbox = Sandbox::new()?;
    make_documents(3000, &sandbox.path("a.jsonl")).await?;
    fs::create_dir(sandbox.path("small"))?;
    // The parts do not fit; then they do, but not the files beside them.
    for (kib, said) in
        [(512, "make room there, and the same command goes on"), (3600, "MB left, and train.bin")]
    {
        let program =
            sandbox.ringtune(&["prepare-text", "a.jsonl", "-o", "small", "--tokenizer", &tokenizer()])?;
        let line: Vec<_> =
            program.as_std().get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let program = program.as_std().get_program().to_string_lossy().into_owned();
        let script =
            format!("mount -t tmpfs -o size={kib}k tmpfs small && exec {program} {}", line.join(" "));
        let mut command = tokio::process::Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).current_dir(sandbox.folder());
        let finished = ringtune_tests::process::finish(&mut command).await?.expect_code(1)?;
        finished.expect_said(&["small", said])?;
    }
    Ok(())
}

//! The reference implementation: Python scripts of tests/reference, in an environment of their own.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use tokio::process::Command;

use crate::{
    places,
    process::{Finished, finish},
};

/// The last line that a script of tests/reference prints: the path of what it made.
async fn path_made_by(script: &str) -> Result<PathBuf> {
    let path = places::repository().join("tests/reference").join(script);
    let made = finish(&mut Command::new(path)).await?.expect_code(0)?;
    Ok(made.stdout.lines().last().context("it prints a path")?.into())
}

/// A checkpoint of random weights: "tiny15" has the shape of SD 1.x, "tiny2" that of SD 2.x.
pub async fn tiny_checkpoint(preset: &str) -> Result<PathBuf> {
    Ok(path_made_by("ensure.sh").await?.join(preset))
}

/// A Stable Diffusion 1.5 of random weights in its real size.
pub async fn full_size_checkpoint() -> Result<PathBuf> {
    path_made_by("full_size.sh").await
}

/// The reference environment's Python.
pub async fn python() -> Result<PathBuf> {
    path_made_by("setup.sh").await
}

/// Runs a script of tests/reference to its end.
pub async fn run_script(script: &str, arguments: &[&str]) -> Result<Finished> {
    let python = python().await?;
    let script = places::repository().join("tests/reference").join(script);
    let mut command = Command::new(python);
    // Waiting threads that spin take the cores from whatever else runs. What is imported is compiled once, for all
    // scripts: that takes longer than most of them.
    command.arg(script).args(arguments).env("GOMP_SPINCOUNT", "0").env_remove("PYTHONDONTWRITEBYTECODE");
    finish(&mut command).await
}

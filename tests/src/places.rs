//! Where things are.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/")).to_owned()
}

/// A small trained checkpoint of 64-pixel pictures.
pub fn toy_checkpoint() -> PathBuf {
    repository().join("tests/fixtures/toy-sd")
}

/// Six pictures of a green star.
pub fn green_star() -> PathBuf {
    repository().join("tests/fixtures/concepts/green-star")
}

/// One of the programs, as built beside these tests.
pub fn program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("where this test's program is")?;
    // target/PROFILE/deps/TEST
    let folder = own.parent().and_then(Path::parent).context("the target folder")?;
    let program = folder.join(name);
    ensure!(program.is_file(), "{} is missing: run `cargo build --release` first", program.display());
    Ok(program)
}

//! Paths of the repository and of built programs.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

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

/// Copies a folder and all that is below it.
pub fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// A program that was built beside these tests.
pub fn program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("where this test's program is")?;
    // target/PROFILE/deps/TEST
    let folder = own.parent().and_then(Path::parent).context("the target folder")?;
    let program = folder.join(name);
    ensure!(program.is_file(), "{} is missing: run `cargo build --release` first", program.display());
    Ok(program)
}

/// Copies the three programs into a folder, for another user or another PATH; the worker needs no libtorch, and takes its time.
pub fn install_programs(bin: &Path) -> Result<()> {
    fs::create_dir(bin)?;
    for name in ["ringtune", "ringtune-coordinator", "fake-worker"] {
        fs::copy(program(name)?, bin.join(name))?;
    }
    let worker = bin.join("ringtune-worker");
    fs::write(&worker, "#!/bin/sh\nexec fake-worker --gradient-takes=40 \"$@\"\n")?;
    Ok(fs::set_permissions(&worker, fs::Permissions::from_mode(0o755))?)
}

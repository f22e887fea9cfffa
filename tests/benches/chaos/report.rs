//! Machine and commit of a measurement, and the file of results.

use std::{fs, io::Write as _, path::Path, process::Command};

use anyhow::{Context as _, Result};
use ringtune_tests::{
    chaos::{results::About, stage},
    places,
};

/// Of this machine and this commit.
pub(crate) fn about(seed: u64) -> Result<About> {
    // The results themselves do not change what is measured.
    let changed = said("git", &["status", "--porcelain", "--", ".", ":!tests/chaos/RESULTS.md"])?;
    let commit = said("git", &["rev-parse", "--short=12", "HEAD"])?;
    let commit = if changed.is_empty() { commit } else { format!("{commit} and changes") };
    let day = said("date", &["-u", "+%Y-%m-%d"])?;
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or("an unknown processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism()?;
    let tls = if stage::tls() { ", over TLS" } else { "" };
    let joined = stage::connections().map(|number| format!(", {number} connections between neighbours"));
    let joined = joined.unwrap_or_default();
    Ok(About { seed, commit, processor: format!("{name}, {cores} cores{tls}{joined}"), day })
}

/// A command's output.
fn said(program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(places::repository()).output();
    let output = output.with_context(|| format!("run {program}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Adds text at the end of a file.
pub(crate) fn append(file: &Path, text: &str) -> Result<()> {
    let mut file = fs::File::options()
        .create(true)
        .append(true)
        .open(file)
        .with_context(|| file.display().to_string())?;
    Ok(file.write_all(text.as_bytes())?)
}

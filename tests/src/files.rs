//! Files that jobs leave.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use safetensors::SafeTensors;

/// A job's embedding.
pub const EMBEDDING: &str = "learned_embeds.safetensors";

/// The names in a folder, sorted.
pub fn names_in(folder: &Path) -> Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

/// Copies the file of that name to a folder that it makes.
pub fn copy_alone(from: &Path, name: &str, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    fs::copy(from.join(name), to.join(name)).with_context(|| name.to_owned())?;
    Ok(())
}

/// Fails unless both folders have the same bytes under these names.
pub fn expect_same(one: &Path, other: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let [one, other] = [one, other].map(|folder| {
            fs::read(folder.join(name)).with_context(|| format!("{}/{name}", folder.display()))
        });
        ensure!(one? == other?, "{name} differs");
    }
    Ok(())
}

/// What the header of a safetensors file says beside its tensors.
pub fn metadata(file: &[u8]) -> Result<BTreeMap<String, String>> {
    let (_, header) = SafeTensors::read_metadata(file)?;
    Ok(header.metadata().clone().context("metadata")?.into_iter().collect())
}

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

/// In which of these files two folders differ. Fails where one of them lacks a file, and where none is compared.
pub fn differences(one: &Path, other: &Path, names: &[&str]) -> Result<Vec<String>> {
    ensure!(!names.is_empty(), "no file is compared");
    let mut found = Vec::new();
    for name in names {
        let [one, other] = [one, other].map(|folder| {
            fs::read(folder.join(name)).with_context(|| format!("{}/{name}", folder.display()))
        });
        let (one, other) = (one?, other?);
        if one != other {
            let first = one.iter().zip(&other).position(|(one, other)| one != other);
            found.push(format!("{name}, of {} and {} bytes, first at {first:?}", one.len(), other.len()));
        }
    }
    Ok(found)
}

/// Fails unless both folders have the same bytes under these names.
pub fn expect_same(one: &Path, other: &Path, names: &[&str]) -> Result<()> {
    let found = differences(one, other, names)?;
    ensure!(found.is_empty(), "these differ: {found:?}");
    Ok(())
}

/// What the header of a safetensors file says beside its tensors.
pub fn metadata(file: &[u8]) -> Result<BTreeMap<String, String>> {
    let (_, header) = SafeTensors::read_metadata(file)?;
    Ok(header.metadata().clone().context("metadata")?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_the_same_that_is_not_there() {
        let [one, other] = [1, 2].map(|_| tempfile::tempdir().unwrap());
        let compared = |names: &[&str]| differences(one.path(), other.path(), names);
        assert!(compared(&[]).is_err() && compared(&["a"]).unwrap_err().to_string().ends_with("/a"));
        fs::write(one.path().join("a"), "ab").unwrap();
        assert!(compared(&["a"]).is_err());
        fs::write(other.path().join("a"), "ac").unwrap();
        assert_eq!(compared(&["a"]).unwrap(), ["a, of 2 and 2 bytes, first at Some(1)"]);
    }
}

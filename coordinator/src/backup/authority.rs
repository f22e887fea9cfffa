//! The roots of the cluster's own authority on their way from one folder to another. Their keys are for nobody else: the
//! folder has mode 0700, the files 0600.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use ringtune_shared::ids::ContentHash;

use super::{AUTHORITY, Error, sync_folder};
use crate::state_folder::is_root;

/// Copies the roots that there are; gives the files' names and what is in them. Blocks.
pub(super) fn take(state_dir: &Path, to: &Path) -> Result<BTreeMap<String, ContentHash>, Error> {
    let (from, to) = (state_dir.join(AUTHORITY), to.join(AUTHORITY));
    let mut copied = BTreeMap::new();
    let entries = match fs::read_dir(&from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(copied),
        entries => entries.map_err(Error::at("read", &from))?,
    };
    make(&to)?;
    for entry in entries {
        let path = entry.map_err(Error::at("read", &from))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| is_root(name)) else { continue };
        let content = match fs::read(&path) {
            // Retired meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            content => content.map_err(Error::at("read", &path))?,
        };
        write(&to.join(name), &content)?;
        copied.insert(name.to_owned(), ContentHash::of(&content));
    }
    sync_folder(&to)?;
    Ok(copied)
}

/// Copies the roots that a backup says it has. Blocks.
pub(super) fn restore(
    from: &Path,
    state_dir: &Path,
    roots: &BTreeMap<String, ContentHash>,
) -> Result<(), Error> {
    let not_whole = |problem: String| Error::NotWhole { folder: from.to_owned(), problem };
    if roots.is_empty() {
        return Ok(());
    }
    let to = state_dir.join(AUTHORITY);
    make(&to)?;
    for (name, hash) in roots {
        if !is_root(name) {
            return Err(not_whole(format!("{name:?} is no root of an authority")));
        }
        let path = from.join(AUTHORITY).join(name);
        let content = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(not_whole(format!("{AUTHORITY}/{name} is not there")));
            }
            content => content.map_err(Error::at("read", &path))?,
        };
        if ContentHash::of(&content) != *hash {
            return Err(not_whole(format!("{AUTHORITY}/{name} is damaged")));
        }
        write(&to.join(name), &content)?;
    }
    sync_folder(&to)
}

fn make(folder: &Path) -> Result<(), Error> {
    fs::DirBuilder::new().mode(0o700).create(folder).map_err(Error::at("create", folder))
}

fn write(path: &Path, content: &[u8]) -> Result<(), Error> {
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(Error::at("create", path))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(Error::at("write", path))
}

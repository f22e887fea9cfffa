//! Backups: all that a coordinator keeps, copied into a folder while it runs, and put back.
//!
//! ```text
//! DIR/backup.json        what the backup is; written last, so that a backup without it is not whole
//! DIR/ringtune.sqlite    the database, as it was at one moment
//! DIR/contents/sha256/…  every content that it names
//! DIR/authority/…        the roots of the cluster's own authority with their keys, where there is one
//! ```
//!
//! A content never changes, so contents are copied before the database, and those that came meanwhile after it. One whose
//! job was deleted in between is gone for good: then the database is copied again.

mod authority;
mod contents;
mod error;
mod restore;
mod take;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use ringtune_shared::ids::ContentHash;
use serde::{Deserialize, Serialize};

use crate::state_folder::{AUTHORITY, CONTENTS, DATABASE};

pub use error::Error;
pub use restore::restore;
pub use take::take;

const MANIFEST: &str = "backup.json";
/// The form of a backup.
const FORMAT: u32 = 1;

/// What a backup says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The form of the backup.
    format: u32,
    /// Of the program that made it.
    pub version: String,
    /// Of the database.
    pub schema: i64,
    /// The database's bytes.
    database_sha256: ContentHash,
    /// Contents in it.
    pub contents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The roots of the cluster's own authority: file names, and what is in them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    authority: BTreeMap<String, ContentHash>,
    /// Contents that jobs name and that were not to be had, or were damaged.
    pub missing: Vec<ContentHash>,
}

/// Told how far a copy is: contents, and their bytes.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Whether a folder is not there, or has nothing in it but what `allowed` names.
fn is_empty(folder: &Path, allowed: &[&str]) -> Result<bool, Error> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        entries => entries.map_err(Error::at("read", folder))?,
    };
    for entry in entries {
        let name = entry.map_err(Error::at("read", folder))?.file_name();
        if !allowed.iter().any(|one| name == *one) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn sync_folder(folder: &Path) -> Result<(), Error> {
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::at("sync", folder))
}

fn hash_of_file(path: &Path) -> Result<ContentHash, Error> {
    let mut hashing = ringtune_shared::state::Hashing::new(io::sink());
    let mut file = fs::File::open(path).map_err(Error::at("read", path))?;
    io::copy(&mut file, &mut hashing).map_err(Error::at("read", path))?;
    Ok(hashing.hash())
}

/// `DIR/contents/sha256/ab/abcd…`
fn content_path(folder: &Path, hash: ContentHash) -> PathBuf {
    let name = hash.to_string();
    folder.join(CONTENTS).join("sha256").join(name.get(..2).unwrap_or_default()).join(name)
}

#[cfg(test)]
mod tests;

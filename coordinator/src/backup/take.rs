//! Makes a backup, also of a coordinator that runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use ringtune_shared::{daemon::private, files::write_atomically, ids::ContentHash, version::VERSION};

use super::{
    AUTHORITY, CONTENTS, DATABASE, Error, FORMAT, MANIFEST, Manifest, Progress, authority,
    contents::{self, Copied},
    hash_of_file, is_empty, sync_folder,
};
use crate::store::{copy_database, inspect_database};

/// Copies of the database at most: one is of no use when a job was deleted whose contents had not been copied.
const MOST_COPIES: u32 = 5;

/// Copies all that a coordinator keeps in `state_dir` into `to`, which is new or empty. Blocks for as long as that takes.
///
/// # Errors
/// There is no state; `to` is not empty; the file systems'. What was written by then is removed; what cannot be is no backup:
/// it has no `backup.json`.
pub fn take(state_dir: &Path, to: &Path, progress: Progress<'_>) -> Result<Manifest, Error> {
    let database = state_dir.join(DATABASE);
    if !database.is_file() {
        return Err(Error::NoState(state_dir.to_owned()));
    }
    if !is_empty(to, &[])? {
        return Err(Error::NotEmpty(to.to_owned()));
    }
    private::make(to).map_err(Error::at("create", to))?;
    private::close(to, &[]);
    let taken = take_all(state_dir, &database, to, progress);
    if taken.is_err() {
        // All that is there was written just now. What cannot be removed either is told by the error that there is.
        for name in [DATABASE, "ringtune.sqlite-journal", MANIFEST] {
            let _ = fs::remove_file(to.join(name));
        }
        for name in [CONTENTS, AUTHORITY] {
            let _ = fs::remove_dir_all(to.join(name));
        }
    }
    taken
}

fn take_all(state_dir: &Path, database: &Path, to: &Path, progress: Progress<'_>) -> Result<Manifest, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::at("read", state_dir))?;

    // 1. What is there now. It never changes.
    let mut copies = Copies::default();
    copies.take_all(contents::list(state_dir)?, state_dir, to, progress)?;
    // 2. The database, and what it names beyond that.
    let copy = to.join(DATABASE);
    let mut tries = 0;
    let (schema, missing) = loop {
        tries += 1;
        runtime.block_on(copy_database(database, &copy)).map_err(Error::copy(database, &copy))?;
        let inspected = runtime.block_on(inspect_database(&copy)).map_err(Error::store(&copy))?;
        copies.take_all(inspected.contents.clone(), state_dir, to, progress)?;
        let missing: Vec<ContentHash> =
            inspected.contents.into_iter().filter(|hash| !copies.has(*hash)).collect();
        // Looked for again: what is still wanted by a job has not come back either.
        if missing.is_empty() || copies.was_missing(&missing) || tries == MOST_COPIES {
            break (inspected.schema, missing);
        }
        fs::remove_file(&copy).map_err(Error::at("remove", &copy))?;
    };
    // 3. Who signs. After the database: no certificate in it is of a root that is not here.
    let authority = authority::take(state_dir, to)?;
    // 4. From here on it is a backup.
    fs::File::open(&copy).and_then(|file| file.sync_all()).map_err(Error::at("sync", &copy))?;
    sync_folder(to)?;
    let manifest = Manifest {
        format: FORMAT,
        version: VERSION.to_owned(),
        schema,
        database_sha256: hash_of_file(&copy)?,
        contents: copies.whole.len() as u64,
        bytes: copies.whole.values().sum(),
        authority,
        missing,
    };
    let text = serde_json::to_string_pretty(&manifest)
        .map_err(|error| Error::NotWhole { folder: to.to_owned(), problem: error.to_string() })?;
    write_atomically(&to.join(MANIFEST), format!("{text}\n").as_bytes())?;
    Ok(manifest)
}

/// The contents that were copied, with their bytes, and those that could not be.
#[derive(Debug, Default)]
struct Copies {
    whole: BTreeMap<ContentHash, u64>,
    missing: BTreeSet<ContentHash>,
}

impl Copies {
    fn has(&self, hash: ContentHash) -> bool {
        self.whole.contains_key(&hash)
    }

    /// Whether all of `hashes` were missing once before; notes them.
    fn was_missing(&mut self, hashes: &[ContentHash]) -> bool {
        let known = hashes.iter().all(|hash| self.missing.contains(hash));
        self.missing.extend(hashes);
        known
    }

    fn take_all(
        &mut self,
        hashes: Vec<ContentHash>,
        from: &Path,
        to: &Path,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        for hash in hashes {
            if self.has(hash) {
                continue;
            }
            if let Copied::Whole(bytes) = contents::copy(hash, from, to)? {
                self.whole.insert(hash, bytes);
                progress(self.whole.len() as u64, self.whole.values().sum());
            }
        }
        Ok(())
    }
}

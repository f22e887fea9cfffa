//! Puts a backup back.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use ringtune_shared::files::NewFile;

use super::{
    AUTHORITY, CONTENTS, DATABASE, Error, FORMAT, MANIFEST, Manifest, Progress, authority,
    contents::{self, Copied, transfer},
    hash_of_file, is_empty, sync_folder,
};
use crate::{opening::mark, state_folder::StateFolder, store::inspect_database};

/// The database's name while it is copied.
const COMING: &str = "ringtune.sqlite.tmp";

/// Copies the backup `from` into the state folder `state_dir`, which is new or empty, for a coordinator to start on. Blocks
/// for as long as that takes.
///
/// # Errors
/// `from` is no whole backup, or of a newer version; `state_dir` is in use or not empty; the file systems'. Then `state_dir`
/// is as empty as before.
pub fn restore(from: &Path, state_dir: &Path, progress: Progress<'_>) -> Result<Manifest, Error> {
    // 1. Is it a backup, and one that this build can read?
    let manifest = read_manifest(from)?;
    let database = from.join(DATABASE);
    let not_whole = |problem: String| Error::NotWhole { folder: from.to_owned(), problem };
    if hash_of_file(&database)? != manifest.database_sha256 {
        return Err(not_whole(format!("{DATABASE} is not what {MANIFEST} says")));
    }
    // 2. Into a folder of nobody's.
    if !is_empty(state_dir, &["lock"])? {
        return Err(Error::StateNotEmpty(state_dir.to_owned()));
    }
    let _folder = StateFolder::open(state_dir)?;
    let outcome = copy_all(from, state_dir, &manifest, progress);
    if outcome.is_err() {
        // What cannot be removed either is told by the error that there is.
        for name in [COMING, "ringtune.sqlite.tmp-wal", "ringtune.sqlite.tmp-shm"] {
            let _ = fs::remove_file(state_dir.join(name));
        }
        for name in [CONTENTS, AUTHORITY] {
            let _ = fs::remove_dir_all(state_dir.join(name));
        }
    }
    outcome.map(|()| manifest)
}

fn copy_all(from: &Path, state_dir: &Path, manifest: &Manifest, progress: Progress<'_>) -> Result<(), Error> {
    let not_whole = |problem: String| Error::NotWhole { folder: from.to_owned(), problem };
    // 1. The database under another name: with its own the folder is a coordinator's state.
    let coming = state_dir.join(COMING);
    let kept = from.join(DATABASE);
    let mut source = File::open(&kept).map_err(Error::at("read", &kept))?;
    let mut target = NewFile::create(&coming)?;
    transfer(&mut source, &kept, &mut target, &coming)?;
    target.commit()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::at("read", &coming))?;
    let inspected = runtime.block_on(inspect_database(&coming)).map_err(Error::store(&coming))?;
    // 2. Contents.
    let (mut count, mut bytes) = (0, 0);
    for hash in contents::list(from)? {
        match contents::copy(hash, from, state_dir)? {
            Copied::Whole(more) => (count, bytes) = (count + 1, bytes + more),
            Copied::Damaged => return Err(not_whole(format!("the content {hash} is damaged"))),
            Copied::Gone => return Err(not_whole(format!("the content {hash} is gone"))),
        }
        progress(count, bytes);
    }
    let has = |hash| super::content_path(state_dir, hash).is_file();
    if let Some(hash) =
        inspected.contents.into_iter().find(|hash| !manifest.missing.contains(hash) && !has(*hash))
    {
        return Err(not_whole(format!("the content {hash}, which a job names, is not there")));
    }
    // 3. Whose they are.
    if let Some(id) = inspected.id {
        let root = state_dir.join(CONTENTS);
        fs::create_dir_all(&root).map_err(Error::at("create", &root))?;
        mark(&root, id)?;
    }
    // 4. Who signs.
    authority::restore(from, state_dir, &manifest.authority)?;
    // 5. From here on it is a state folder.
    fs::File::open(&coming).and_then(|file| file.sync_all()).map_err(Error::at("sync", &coming))?;
    let database = state_dir.join(DATABASE);
    fs::rename(&coming, &database).map_err(Error::at("rename to", &database))?;
    sync_folder(state_dir)
}

fn read_manifest(from: &Path) -> Result<Manifest, Error> {
    let path = from.join(MANIFEST);
    let not_whole = |problem: String| Error::NotWhole { folder: from.to_owned(), problem };
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(not_whole(format!("it has no {MANIFEST}")));
        }
        text => text.map_err(Error::at("read", &path))?,
    };
    // The form first: a later one may hold other things.
    let problem = |error: serde_json::Error| not_whole(format!("{MANIFEST}: {error}"));
    let value: serde_json::Value = serde_json::from_str(&text).map_err(problem)?;
    if value["format"].as_u64() != Some(u64::from(FORMAT)) {
        let version = value["version"].as_str().unwrap_or("of an unknown version").to_owned();
        return Err(Error::OtherFormat { folder: from.to_owned(), version });
    }
    serde_json::from_value(value).map_err(problem)
}

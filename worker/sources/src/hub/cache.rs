//! The layout of huggingface_hub's cache, which other tools of the machine share:
//!
//! ```text
//! models--ORG--NAME/refs/REVISION               the commit that a branch or tag was last
//! models--ORG--NAME/blobs/ETAG                  contents; ETAG.incomplete while they arrive
//! models--ORG--NAME/snapshots/COMMIT/PATH       links to them
//! .locks/models--ORG--NAME/ETAG.lock            held by whoever fetches one
//! ```
//!
//! Sets of data are in datasets--ORG--NAME. The cache is never trimmed here: it is not ours alone.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use ringtune_shared::{
    files::{temporary_path_beside, write_atomically},
    job::HubModel,
};

use super::client::is_commit;
use crate::{Error, names::MOST_FILES};

/// No snapshot that is used has folders in folders in folders.
const DEEPEST: usize = 4;

/// A repository's part of the cache.
#[derive(Clone, Debug)]
pub(crate) struct RepositoryCache {
    folder: PathBuf,
    locks: PathBuf,
}

impl RepositoryCache {
    pub(crate) fn new(cache: &Path, model: &HubModel) -> Self {
        // The name of a set of data says that it is one.
        let kind = if model.dataset().is_some() { "" } else { "models--" };
        let name = format!("{kind}{}", model.repository.replace('/', "--"));
        Self { folder: cache.join(&name), locks: cache.join(".locks").join(name) }
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    pub(crate) fn partial(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Bytes that are still to be written of the contents of these ETags and sizes: what has come of an interrupted
    /// download lies on the disk already. A content of another size than announced is fetched again, beside it. Blocks.
    pub(crate) fn missing(&self, contents: Vec<(String, u64)>) -> u64 {
        let length = |path: PathBuf| fs::metadata(path).map(|about| about.len()).ok();
        let contents: BTreeMap<String, u64> = contents.into_iter().collect();
        let missing = contents.into_iter().map(|(etag, size)| match length(self.blob(&etag)) {
            Some(there) if there == size => 0,
            _ => size.saturating_sub(length(self.partial(&etag)).unwrap_or(0)),
        });
        missing.fold(0, u64::saturating_add)
    }

    pub(crate) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// The commit that a revision was when it was last fetched; itself, if it is one. Blocks.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Remembers what a branch or tag is now. Blocks.
    pub(crate) fn set_commit_of(&self, revision: &str, commit: &str) -> Result<(), Error> {
        if is_commit(revision) {
            return Ok(());
        }
        let file = self.folder.join("refs").join(revision);
        make_folder_of(&file)?;
        write_atomically(&file, commit.as_bytes())
            .map_err(|error| Error::Io { path: error.path, source: error.cause })
    }

    /// Puts a content into a commit's snapshot. Blocks.
    pub(crate) fn link(&self, commit: &str, name: &str, etag: &str) -> Result<(), Error> {
        let link = self.snapshot(commit).join(name);
        make_folder_of(&link)?;
        let up = "../".repeat(2 + name.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if fs::read_link(&link).is_ok_and(|there| there == target) {
            return Ok(());
        }
        // Beside it first: a link cannot be replaced, only renamed over.
        let temporary = temporary_path_beside(&link);
        symlink(&target, &temporary).map_err(Error::io(&temporary))?;
        fs::rename(&temporary, &link).map_err(Error::io(&link))
    }

    /// The files of a commit's snapshot that are there, as paths with slashes. Blocks.
    pub(crate) fn files(&self, commit: &str) -> io::Result<Vec<String>> {
        let root = self.snapshot(commit);
        let (mut files, mut open) = (Vec::new(), vec![(root, String::new(), 0)]);
        while let Some((folder, prefix, depth)) = open.pop() {
            for entry in fs::read_dir(&folder)?.flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                let path = entry.path();
                if path.is_file() {
                    files.push(format!("{prefix}{name}"));
                } else if path.is_dir() && depth < DEEPEST {
                    open.push((path, format!("{prefix}{name}/"), depth + 1));
                }
            }
            if files.len() > MOST_FILES {
                return Err(io::Error::other(format!("more than {MOST_FILES} files")));
            }
        }
        Ok(files)
    }
}

fn make_folder_of(file: &Path) -> Result<(), Error> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).map_err(Error::io(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_come_already_needs_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let model = HubModel { repository: "acme/toy-sd".into(), revision: "main".into() };
        let cache = RepositoryCache::new(folder.path(), &model);
        let contents = || ["e1", "e2", "e3", "e4", "e2"].map(|etag| (etag.to_owned(), 100)).to_vec();
        // Two files of one content are fetched once.
        assert_eq!(cache.missing(contents()), 400);
        make_folder_of(&cache.blob("e1")).unwrap();
        fs::write(cache.blob("e1"), [0; 100]).unwrap();
        fs::write(cache.partial("e2"), [0; 60]).unwrap();
        // More than announced is begun anew, in the same place; a cut content is fetched beside what there is.
        fs::write(cache.partial("e3"), [0; 130]).unwrap();
        fs::write(cache.blob("e4"), [0; 30]).unwrap();
        assert_eq!(cache.missing(contents()), 40 + 100);
        assert_eq!(cache.missing(vec![("e5".to_owned(), u64::MAX), ("e6".to_owned(), u64::MAX)]), u64::MAX);
    }

    #[test]
    fn links_lead_to_their_blobs_from_any_depth() {
        let folder = tempfile::tempdir().unwrap();
        let model = HubModel { repository: "acme/toy-sd".into(), revision: "main".into() };
        let cache = RepositoryCache::new(folder.path(), &model);
        let commit = "0123456789abcdef0123456789abcdef01234567";
        for (name, etag) in [("model_index.json", "e1"), ("unet/config.json", "e2")] {
            let blob = cache.blob(etag);
            make_folder_of(&blob).unwrap();
            fs::write(blob, etag).unwrap();
            cache.link(commit, name, "another").unwrap();
            cache.link(commit, name, etag).unwrap();
            assert_eq!(fs::read_to_string(cache.snapshot(commit).join(name)).unwrap(), etag);
        }
        let mut files = cache.files(commit).unwrap();
        files.sort();
        assert_eq!(files, ["model_index.json", "unet/config.json"]);
        assert_eq!(cache.commit_of("refs/pr/1"), None);
        cache.set_commit_of("refs/pr/1", commit).unwrap();
        assert_eq!(cache.commit_of("refs/pr/1").as_deref(), Some(commit));
        assert_eq!(cache.commit_of(commit).as_deref(), Some(commit));
        assert!(folder.path().join("models--acme--toy-sd/refs/refs/pr/1").is_file());
    }
}

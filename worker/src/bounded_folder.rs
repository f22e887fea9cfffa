//! A folder of files that may be let go of: what was used longest ago goes first when they are too many.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::SystemTime,
};

use ringtune_shared::files::TEMPORARY_SUFFIX;

/// Notes that a file was used. Without that it is merely let go of earlier. Blocks.
pub(crate) fn mark_used(path: &Path, now: SystemTime) {
    let _ = File::open(path).and_then(|file| file.set_modified(now));
}

/// Removes what a crash left half-written: nobody will give it its name. Only where nobody writes there now. Blocks.
pub(crate) fn remove_unfinished(folder: &Path) {
    for (_, _, path) in list(folder) {
        if path.as_os_str().as_encoded_bytes().ends_with(TEMPORARY_SUFFIX.as_bytes()) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes files of `folder` that are not `needed`, those used longest ago first, until the rest has at most
/// `most_bytes`. Blocks.
pub(crate) fn trim(folder: &Path, most_bytes: u64, needed: impl Fn(&Path) -> bool) {
    let mut files = list(folder);
    files.sort();
    let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in files {
        if total <= most_bytes {
            break;
        }
        if !needed(&path) && fs::remove_file(&path).is_ok() {
            total -= bytes;
        }
    }
}

fn list(folder: &Path) -> Vec<(SystemTime, u64, PathBuf)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let about = entry.metadata().ok().filter(|about| about.is_file())?;
            Some((about.modified().unwrap_or(SystemTime::UNIX_EPOCH), about.len(), entry.path()))
        })
        .collect()
}

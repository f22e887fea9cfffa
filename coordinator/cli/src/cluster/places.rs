//! Where commands keep the folders of their daemons, and which of those somebody lives in.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

const LOCK: &str = "lock";

pub(super) fn lock_file(folder: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(folder.join(LOCK))
}

/// Whether neither a command nor a daemon lives in this folder: a living command holds the lock file, a
/// living daemon its log.
pub(super) fn is_dead(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_lock(path))
        .all(|path| File::options().write(true).open(path).is_ok_and(|file| file.try_lock().is_ok()))
}

fn is_lock(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == LOCK)
        || path.extension().is_some_and(|extension| extension == "log")
}

/// Where runs have their folders.
pub(super) fn runs_folder() -> PathBuf {
    state_home().join("ringtune").join("runs")
}

/// Where programs keep their state: XDG_STATE_HOME, else ~/.local/state, else the folder for temporary files.
pub fn state_home() -> PathBuf {
    state_home_from(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
}

fn state_home_from(state_home: Option<OsString>, home: Option<OsString>) -> PathBuf {
    // The XDG specification says that a relative path is to be ignored.
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    state_home
        .and_then(absolute)
        .or_else(|| home.and_then(absolute).map(|home| home.join(".local/state")))
        .unwrap_or_else(std::env::temp_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_home_follows_the_xdg_rules() {
        let home = || Some("/home/u".into());
        assert_eq!(state_home_from(Some("/s".into()), home()), PathBuf::from("/s"));
        assert_eq!(state_home_from(Some("s".into()), home()), PathBuf::from("/home/u/.local/state"));
        assert_eq!(state_home_from(None, home()), PathBuf::from("/home/u/.local/state"));
        assert_eq!(state_home_from(None, None), std::env::temp_dir());
    }
}

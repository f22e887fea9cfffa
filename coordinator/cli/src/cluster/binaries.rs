//! Finding Ringtune's other programs.

use std::path::{Path, PathBuf};

use super::ClusterError;

/// The coordinator's program.
pub const COORDINATOR: &str = "ringtune-coordinator";
/// The worker's program.
pub const WORKER: &str = "ringtune-worker";

/// Finds a program beside this one, else in PATH.
pub fn find_program(name: &'static str) -> Result<PathBuf, ClusterError> {
    let own = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    let folder = own.parent().unwrap_or(Path::new("."));
    let path = std::env::var_os("PATH").unwrap_or_default();
    find_in(name, folder, std::env::split_paths(&path))
        .ok_or_else(|| ClusterError::ProgramMissing { name, folder: folder.to_owned() })
}

fn find_in(name: &str, folder: &Path, path: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    std::iter::once(folder.to_owned()).chain(path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_beside_this_one_comes_first() {
        let (beside, elsewhere) =
            (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
        let path = || std::iter::once(elsewhere.path().to_owned());
        assert_eq!(find_in("x", beside.path(), path()), None);
        std::fs::write(elsewhere.path().join("x"), "").expect("written");
        assert_eq!(find_in("x", beside.path(), path()), Some(elsewhere.path().join("x")));
        std::fs::write(beside.path().join("x"), "").expect("written");
        assert_eq!(find_in("x", beside.path(), path()), Some(beside.path().join("x")));
    }
}

//! Files that hold keys: whole or not there, and for nobody else.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// A file or folder of keys that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file system's answer.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// Why it failed.
        #[source]
        cause: io::Error,
    },
    /// Everybody on the machine may read it.
    #[error("everybody may read or change {} (its mode is {mode:03o}): it holds keys. If nobody did, `chmod o= {}`", path.display(), path.display())]
    Exposed {
        /// The file or folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is longer than any such file.
    #[error("{} has more than {limit} bytes, which no file of keys or certificates has", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// How many bytes are read at most.
        limit: u64,
    },
}

/// The most bytes that a file of keys or certificates may have: hundreds of certificates.
const LONGEST_FILE: u64 = 1 << 20;
/// Permissions of all others on the machine. Those of the group are left to whoever mounts the folder: Kubernetes gives
/// a volume to a group.
const OTHERS: u32 = 0o007;

fn at<'path>(action: &'static str, path: &'path Path) -> impl FnOnce(io::Error) -> FileError + 'path {
    move |cause| FileError::Io { action, path: path.to_owned(), cause }
}

/// Makes a folder that only its owner may enter, and those above it. One that is there stays as it is, but must not be
/// open to everybody. Blocks.
pub(crate) fn make_folder(folder: &Path) -> Result<(), FileError> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(at("make the folder", folder))?;
    check_private(folder)
}

/// That not everybody on the machine may use it. Blocks.
pub(crate) fn check_private(path: &Path) -> Result<(), FileError> {
    let mode = fs::metadata(path).map_err(at("read", path))?.permissions().mode() & 0o777;
    if mode & OTHERS == 0 { Ok(()) } else { Err(FileError::Exposed { path: path.to_owned(), mode }) }
}

/// Writes a file that only its owner may read, so that `path` holds its old content or all of the new one: a temporary
/// name in the same folder, fsync, rename, fsync of the folder. Blocks.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let folder = folder_of(path);
    // Its mode is 0600, and it is removed where something fails.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(at("create a file in", folder))?;
    file.write_all(content).map_err(at("write", path))?;
    file.as_file().sync_all().map_err(at("sync", path))?;
    file.persist(path).map_err(|error| at("rename a temporary file to", path)(error.error))?;
    sync_folder(folder)
}

/// Removes a file for good. Blocks.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    fs::remove_file(path).map_err(at("remove", path))?;
    sync_folder(folder_of(path))
}

/// The folder of a file; of a mere name, the folder that the process is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync_folder(folder: &Path) -> Result<(), FileError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(at("sync the folder", folder))
}

/// The text of a file of bounded length; None: there is no such file. Blocks.
pub(crate) fn read(path: &Path) -> Result<Option<String>, FileError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at("open", path)(error)),
    };
    let mut text = String::new();
    let read = io::Read::read_to_string(&mut io::Read::take(file, LONGEST_FILE + 1), &mut text);
    read.map_err(at("read", path))?;
    if text.len() as u64 > LONGEST_FILE {
        return Err(FileError::TooLong { path: path.to_owned(), limit: LONGEST_FILE });
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_and_folders_are_the_owners_alone() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a/b");
        make_folder(&folder).unwrap();
        let path = folder.join("key");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), "two");
        assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        remove(&path).unwrap();
        assert!(read(&path).unwrap().is_none());
    }

    #[test]
    fn what_everybody_may_read_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("keys");
        make_folder(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o705)).unwrap();
        let error = make_folder(&folder).unwrap_err();
        assert!(error.to_string().contains("705"), "{error}");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        make_folder(&folder).unwrap();
    }

    #[test]
    fn errors_name_the_file() {
        let place = tempfile::tempdir().unwrap();
        let missing = place.path().join("missing/file");
        assert!(write(&missing, b"").unwrap_err().to_string().contains("missing"));
        assert!(check_private(&missing).unwrap_err().to_string().contains("missing/file"));
        let long = place.path().join("long");
        fs::write(&long, vec![b'x'; (LONGEST_FILE + 1) as usize]).unwrap();
        assert!(matches!(read(&long), Err(FileError::TooLong { .. })));
        fs::write(&long, [0xff]).unwrap();
        assert!(matches!(read(&long), Err(FileError::Io { action: "read", .. })));
    }
}

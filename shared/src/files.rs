//! Files that are either whole or not there, and names that are only names.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::names;

/// The ending of the names under which files are written before they are whole.
pub const TEMPORARY_SUFFIX: &str = ".tmp";

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {cause}", path.display())]
pub struct FileError {
    /// The failed action: "create", "write", "sync", "rename".
    pub action: &'static str,
    /// Its file or folder.
    pub path: PathBuf,
    /// Why it failed.
    pub cause: io::Error,
}

impl FileError {
    fn at<'path>(action: &'static str, path: &'path Path) -> impl FnOnce(io::Error) -> FileError + 'path {
        move |cause| FileError { action, path: path.to_owned(), cause }
    }
}

/// Writes a file so that, whatever happens, `path` holds its old content or all of the new one.
///
/// A temporary name in the same folder, fsync, rename, fsync of the folder. The folder must exist.
/// When it fails (a full disk, say) the temporary file is removed. Blocks.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut file = NewFile::create(path)?;
    file.write_all(bytes).map_err(FileError::at("write", path))?;
    file.commit()
}

/// As above without syncing, for files that may be lost and are checked when read. After a crash of the machine
/// there may be a torn file under the name, as long as it runs there is none. Blocks.
pub fn write_unsynced(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut file = NewFile::create(path)?;
    file.write_all(bytes).map_err(FileError::at("write", path))?;
    if let Some(temporary) = &file.temporary {
        rename(temporary, path)?;
        file.temporary = None;
    }
    Ok(())
}

/// A file that is written piece by piece and has its name only when it is whole: the same as [`write_atomically`]
/// for contents that are not in memory. Dropped before [`NewFile::commit`] it leaves nothing. Blocks.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    /// None once it has its name.
    temporary: Option<PathBuf>,
    path: PathBuf,
}

impl NewFile {
    /// Begins a file that will be `path`, in a folder that is there.
    ///
    /// # Errors
    /// The file system's.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        let temporary = temporary_path_beside(path);
        let opened = OpenOptions::new().write(true).create_new(true).open(&temporary);
        let file = opened.map_err(FileError::at("create", path))?;
        Ok(Self { file, temporary: Some(temporary), path: path.to_owned() })
    }

    /// Gives it its name, when all that was written is on the disk.
    ///
    /// # Errors
    /// The file system's: then what was there under that name is still there, and nothing else is.
    pub fn commit(mut self) -> Result<(), FileError> {
        self.file.sync_all().map_err(FileError::at("sync", &self.path))?;
        if let Some(temporary) = &self.temporary {
            rename_durably(temporary, &self.path)?;
            self.temporary = None;
        }
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // A partial file is useless; if it cannot be removed, its extension marks it.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// A fresh name in the same folder for a file that will become `path`.
pub fn temporary_path_beside(path: &Path) -> PathBuf {
    // Not made from the file's own name, which may already be as long as a name can be.
    path.with_file_name(format!(".{}{TEMPORARY_SUFFIX}", Uuid::new_v4().simple()))
}

/// Renames a file whose content is already synced, and syncs the folder, so that the new name
/// survives a crash. Both paths lie in one folder. Blocks.
pub fn rename_durably(from: &Path, to: &Path) -> Result<(), FileError> {
    rename(from, to)?;
    let folder = parent_of(to);
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(FileError::at("sync the folder", folder))
}

/// The folder that a path lies in.
pub fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    fs::rename(from, to).map_err(FileError::at("rename a temporary file to", to))
}

/// A text that is not the name of a file in a folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a file name: {problem}")]
pub struct FileNameError {
    /// The given name, cut to 100 characters.
    pub given: String,
    /// The problem.
    pub problem: &'static str,
}

/// The most bytes that a file name may have, as on Linux's file systems.
pub const LONGEST_FILE_NAME: usize = 255;

/// Checks that a name from elsewhere, put after a folder, can only name a file in that folder.
pub fn check_file_name(name: &str) -> Result<(), FileNameError> {
    let problem = if name.is_empty() {
        "it is empty"
    } else if name == "." || name == ".." {
        "it names a folder"
    } else if name.contains(['/', '\\']) {
        "it has a path separator"
    } else if name.chars().any(char::is_control) {
        "it has a control character"
    } else if names::hidden(name).is_some() {
        "it has a character that is not seen or turns what follows"
    } else if name.len() > LONGEST_FILE_NAME {
        "it has more than 255 bytes"
    } else {
        return Ok(());
    };
    Err(FileNameError { given: name.chars().take(100).collect(), problem })
}

/// As above, for a file that users will save: it can neither hide among their files or become one of their settings
/// (`.bashrc`), nor be taken for an option of a command (`-rf`).
pub fn check_saved_name(name: &str) -> Result<(), FileNameError> {
    check_file_name(name)?;
    let problem = match name.as_bytes().first() {
        Some(b'.') => "it begins with a point",
        Some(b'-') => "it begins with a hyphen",
        _ => return Ok(()),
    };
    Err(FileNameError { given: name.chars().take(100).collect(), problem })
}

/// Whether [`check_file_name`] accepts the name.
pub fn safe_file_name(name: &str) -> bool {
    check_file_name(name).is_ok()
}

/// Detects a git-lfs pointer that stands for a file; returns the problem. `bytes`: the file's first ones.
///
/// Source: github.com/git-lfs/git-lfs, docs/spec.md.
pub fn lfs_pointer(bytes: &[u8]) -> Option<&'static str> {
    bytes.starts_with(b"version https://git-lfs.github.com/spec/").then_some(
        "it is a git-lfs pointer of a few lines, which stands for the file itself: run `git lfs install` and `git lfs pull` \
         where it was cloned",
    )
}

/// A file that is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnreadFile {
    /// No file, none that can be opened, or one that stands for another.
    #[error("{0}")]
    Unreadable(String),
    /// Too large to be what it should be.
    #[error("it has {size} bytes; allowed: at most {largest}")]
    TooLarge {
        /// Its bytes.
        size: u64,
        /// Bytes at most.
        largest: u64,
    },
}

/// The bytes of a file of at most `largest`. Blocks.
///
/// # Errors
/// It is not there, no plain file, or too large.
pub fn read_file(path: &Path, largest: u64) -> Result<Vec<u8>, UnreadFile> {
    // Before it is opened: that alone would wait for the other end of a pipe.
    let about = fs::metadata(path).map_err(unreadable)?;
    if !about.is_file() {
        return Err(UnreadFile::Unreadable("it is not a file".to_owned()));
    }
    read_opened(File::open(path), largest)
}

/// As above, of an opened file. Blocks.
///
/// # Errors
/// It is not open, cannot be read, or is too large.
pub fn read_opened(opened: io::Result<File>, largest: u64) -> Result<Vec<u8>, UnreadFile> {
    let file = opened.map_err(unreadable)?;
    let size = file.metadata().map_err(unreadable)?.len();
    if size > largest {
        return Err(UnreadFile::TooLarge { size, largest });
    }
    let mut bytes = Vec::new();
    // One byte more: a file that has grown since is refused as too large.
    file.take(largest + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Refuses a file's bytes that are too many, or those of a git-lfs pointer.
///
/// # Errors
/// Which of both.
pub fn check_bytes(bytes: &[u8], largest: u64) -> Result<(), UnreadFile> {
    let size = bytes.len() as u64;
    if size > largest {
        return Err(UnreadFile::TooLarge { size, largest });
    }
    lfs_pointer(bytes).map_or(Ok(()), |problem| Err(UnreadFile::Unreadable(problem.to_owned())))
}

fn unreadable(error: io::Error) -> UnreadFile {
    UnreadFile::Unreadable(error.to_string())
}

/// The problem with a folder of tokens that has `train.bin` and no `meta.json`.
pub const TOKENS_WITHOUT_MANIFEST: &str = "has train.bin but no meta.json, which says whose tokens they are: nanoGPT's own \
    prepare.py writes none; make the files with `ringtune prepare-text --tokenizer MODEL -o FOLDER TEXTS`, which gives the same \
    tokens in the same order";

/// The endings, in any case, by which an image file is known.
pub const IMAGE_EXTENSIONS: [&str; 4] = ["jpeg", "jpg", "png", "webp"];

/// Whether a file is an image by its name.
pub fn is_image_name(name: &str) -> bool {
    let (stem, extension) = name.rsplit_once('.').unwrap_or_default();
    let is_known = IMAGE_EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known));
    is_known && !stem.is_empty() && !is_resource_fork(name)
}

/// Whether macOS keeps in a file of this name what other file systems have no place for (AppleDouble): it has the ending of
/// the file that it belongs to, and nothing of its content.
fn is_resource_fork(name: &str) -> bool {
    name.starts_with("._")
}

/// A file's name as a list of what is left out shows it. `leads_nowhere`: it is a link to what is not there.
pub fn name_left_out(name: &str, leads_nowhere: bool) -> String {
    let why = match (is_resource_fork(name), leads_nowhere) {
        (true, _) => " (what macOS keeps of a file, not the file)",
        (false, true) => " (a link that leads nowhere)",
        (false, false) => "",
    };
    format!("{name}{why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x".repeat(LONGEST_FILE_NAME));
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        write_unsynced(&path, b"three").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(names_in(folder.path()).len(), 1);
    }

    #[test]
    fn a_failure_leaves_the_old_content_and_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        fs::write(taken.join("inside"), b"").unwrap();
        for write in [write_atomically, write_unsynced] {
            let error = write(&taken, b"content").unwrap_err();
            assert_eq!(error.path, taken);
            assert_eq!(names_in(folder.path()), ["taken"]);
        }
        let error = write_atomically(&folder.path().join("missing/file"), b"").unwrap_err();
        assert_eq!((error.action, error.cause.kind()), ("create", io::ErrorKind::NotFound));
    }

    #[test]
    fn a_full_disk_is_reported_with_its_cause() {
        // /dev/full takes no byte.
        let full = Path::new("/dev/full");
        let mut file = OpenOptions::new().write(true).open(full).unwrap();
        let error = file.write_all(b"x").map_err(FileError::at("write", full)).unwrap_err();
        assert_eq!(error.cause.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("cannot write /dev/full: "), "{error}");
    }

    #[test]
    fn only_plain_names_are_safe() {
        for right in ["a", "a.png", ".hidden", "…", "a b", "-", "..."] {
            assert!(safe_file_name(right), "{right}");
        }
        let long = "é".repeat(128);
        for wrong in [
            "",
            ".",
            "..",
            "a/b",
            "/a",
            "a\\b",
            "a\0",
            "a\nb",
            "\u{7f}",
            "\u{85}",
            "\u{202e}gpj.exe",
            long.as_str(),
        ] {
            assert!(!safe_file_name(wrong), "{wrong:?}");
        }
        assert!(safe_file_name(&"x".repeat(255)) && !safe_file_name(&"x".repeat(256)));
        for wrong in [".bashrc", "-rf", "...", "..", "a/b"] {
            assert!(check_saved_name(wrong).is_err(), "{wrong}");
        }
        assert_eq!(check_saved_name("a-b.c"), Ok(()));
    }
}

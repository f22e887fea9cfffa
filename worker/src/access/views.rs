//! Opened files under their names.
//!
//! Loaders of models take a path, and open and map the files below it by themselves, some of them later. So a job's
//! model is opened here, once, and what is loaded is a folder of links to what is open (`/proc/self/fd/N`), which the
//! system follows to the very file, not to its name. Nothing that happens to names afterwards matters.
//!
//! What remains: whoever may write to a model's files can change their content while they are in use, or cut them short,
//! which stops a process that has them mapped. Jobs cannot do that unless their traces are written among the models.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use ringtune_shared::ids::ContentHasher;

use super::place::opened_path;

/// The characters of a key.
const KEY: usize = 16;

/// The views of a worker. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Views {
    folder: PathBuf,
    alive: Alive,
}

/// Views in use by key, each with its number.
type Alive = Arc<Mutex<BTreeMap<String, (u64, Weak<View>)>>>;

/// A folder of links to opened files. The files stay open as long as it is, and it goes with it.
#[derive(Debug)]
pub(super) struct View {
    folder: PathBuf,
    key: String,
    number: u64,
    alive: Alive,
    /// The targets of the links.
    _files: Vec<File>,
}

impl Views {
    /// In a folder of this worker alone, which is made with the first of them.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, alive: Arc::default() }
    }

    /// A view of files, which have the paths that are shown. The same files that were not changed in between are at the
    /// same path again: what is known of a model is known by its path. Blocks.
    pub(super) fn of(&self, files: Vec<(PathBuf, File)>) -> io::Result<Arc<View>> {
        let key = key(&files)?;
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = alive.get(&key).and_then(|(_, view)| view.upgrade()) {
            return Ok(view);
        }
        let folder = self.folder.join(&key);
        let number = alive.values().map(|(number, _)| number + 1).max().unwrap_or(0);
        remove(&folder)?;
        for (shown, file) in &files {
            place(&within(&folder, shown), file)?;
        }
        let files = files.into_iter().map(|(_, file)| file).collect();
        let view = View { folder, key: key.clone(), number, alive: Arc::clone(&self.alive), _files: files };
        let view = Arc::new(view);
        alive.insert(key, (number, Arc::downgrade(&view)));
        Ok(view)
    }
}

impl Views {
    /// A text with the files' own paths in the place of those that they have in views: these are gone when somebody reads it.
    pub(super) fn shown(&self, text: String) -> String {
        let begin = format!("{}/", self.folder.display());
        let mut parts = text.split(&begin);
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            match part.split_at_checked(KEY).filter(|(key, _)| key.bytes().all(|one| one.is_ascii_hexdigit()))
            {
                Some((_, path)) => shown.push_str(path),
                None => shown.extend([begin.as_str(), part]),
            }
        }
        shown
    }
}

impl View {
    /// The link to the file that is shown at this path.
    pub(super) fn path(&self, shown: &Path) -> PathBuf {
        within(&self.folder, shown)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        // A newer one of the same files may have taken its place.
        if alive.get(&self.key).is_some_and(|(number, _)| *number == self.number) {
            alive.remove(&self.key);
            // Leftovers are removed at the worker's next start.
            let _ = remove(&self.folder);
        }
    }
}

/// Names the files and their state: their paths, which files they are, sizes and times of change.
fn key(files: &[(PathBuf, File)]) -> io::Result<String> {
    let mut hasher = ContentHasher::new();
    for (shown, file) in files {
        let about = file.metadata()?;
        let shown = shown.as_os_str().as_encoded_bytes();
        hasher.update(&(shown.len() as u64).to_le_bytes());
        hasher.update(shown);
        for number in [about.dev(), about.ino(), about.len()] {
            hasher.update(&number.to_le_bytes());
        }
        for number in [about.mtime(), about.mtime_nsec()] {
            hasher.update(&number.to_le_bytes());
        }
    }
    Ok(hasher.finish().to_string().chars().take(KEY).collect())
}

/// A path below `folder` that ends as the shown one: messages about a file show where it really is.
fn within(folder: &Path, shown: &Path) -> PathBuf {
    let names = shown.components().filter(|part| matches!(part, Component::Normal(_)));
    folder.iter().chain(names.map(Component::as_os_str)).collect()
}

fn place(link: &Path, file: &File) -> io::Result<()> {
    if let Some(folder) = link.parent() {
        fs::create_dir_all(folder)?;
    }
    symlink(opened_path(file), link)?;
    let (wanted, found) = (file.metadata()?, fs::metadata(link)?);
    if (wanted.dev(), wanted.ino()) != (found.dev(), found.ino()) {
        return Err(io::Error::other("a link does not lead to the file that is open: is /proc there?"));
    }
    Ok(())
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

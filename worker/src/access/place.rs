//! Paths of a job, confined to the folder that jobs have to stay in.
//!
//! Below a folder, the system resolves paths from that folder on (cap-std: `openat2` with
//! `RESOLVE_BENEATH`), so that neither `..` nor a link leads out of it, whenever the link was put there.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions, OpenOptionsExt as _},
};
use rustix::fs::OFlags;

/// A path, and the folder that it does not lead out of, if there is one. All but its names blocks on the disk.
#[derive(Clone, Debug)]
pub struct ConfinedPath {
    shown: PathBuf,
    below: Option<Below>,
}

#[derive(Clone, Debug)]
struct Below {
    /// The folder, opened.
    root: Arc<Dir>,
    /// Its path, for messages.
    shown: Arc<Path>,
    /// From there; empty: the folder itself.
    rest: PathBuf,
}

/// A folder that was opened to be written in.
#[derive(Clone, Debug)]
pub struct OpenFolder {
    /// Leads to the folder that was opened, whatever has its name by now.
    pub path: PathBuf,
    _opened: Option<Arc<Dir>>,
}

impl ConfinedPath {
    /// An unconfined path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { shown: path.into(), below: None }
    }

    /// `rest` of the folder `root`, and nowhere else.
    ///
    /// # Errors
    /// The folder cannot be opened.
    pub(super) fn below(root: &Path, rest: PathBuf) -> io::Result<Self> {
        let dir = Dir::open_ambient_dir(root, ambient_authority())?;
        let shown = if rest.as_os_str().is_empty() { root.to_owned() } else { root.join(&rest) };
        Ok(Self { shown, below: Some(Below { root: Arc::new(dir), shown: root.into(), rest }) })
    }

    /// The path, for messages.
    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// Whether it is held below a folder.
    pub(super) fn is_bound(&self) -> bool {
        self.below.is_some()
    }

    /// Something in the folder that it is.
    pub fn join(&self, name: impl AsRef<Path>) -> Self {
        let mut joined = self.clone();
        joined.shown.push(&name);
        if let Some(below) = &mut joined.below {
            below.rest.push(&name);
        }
        joined
    }

    /// Something beside it.
    pub(super) fn beside(&self, name: impl AsRef<OsStr>) -> Self {
        let mut beside = self.clone();
        beside.shown.set_file_name(&name);
        if let Some(below) = &mut beside.below {
            below.rest.set_file_name(&name);
        }
        beside
    }

    /// Whether it is a regular file, or a link to one.
    pub fn is_file(&self) -> bool {
        match &self.below {
            None => self.shown.is_file(),
            Some(below) => below.root.is_file(below.path()),
        }
    }

    /// Whether it is a folder, or a link to one.
    pub fn is_dir(&self) -> bool {
        match &self.below {
            None => self.shown.is_dir(),
            Some(below) => below.root.is_dir(below.path()),
        }
    }

    /// Why it is neither file nor folder, if that is because it leads out of its folder.
    pub fn way_out(&self) -> Option<io::Error> {
        let below = self.below.as_ref()?;
        let error = below.root.metadata(below.path()).err()?;
        is_way_out(&error).then(|| below.explain(error))
    }

    /// The names in the folder that it is.
    ///
    /// # Errors
    /// It cannot be listed.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        match &self.below {
            None => fs::read_dir(&self.shown)?.map(|entry| Ok(entry?.file_name())).collect(),
            Some(below) => {
                let entries = below.root.read_dir(below.path()).map_err(|error| below.explain(error))?;
                entries.map(|entry| Ok(entry?.file_name())).collect()
            }
        }
    }

    /// Opens the regular file that it is. It waits for nobody: what could keep a reader waiting, such as a pipe, is refused.
    ///
    /// # Errors
    /// It is not there, is no regular file, or leads out of its folder.
    pub fn open(&self) -> io::Result<File> {
        let irregular = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
        let is_file = match &self.below {
            None => fs::metadata(&self.shown)?.is_file(),
            Some(below) => below.root.metadata(below.path()).map_err(|error| below.explain(error))?.is_file(),
        };
        // Before it is opened: that alone may do something to a device.
        if !is_file {
            return Err(irregular());
        }
        // Another one may be there by now. That opens at once, and is looked at.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let file = match &self.below {
            None => File::options().read(true).custom_flags(flags).open(&self.shown)?,
            Some(below) => {
                let options = OpenOptions::new().read(true).custom_flags(flags).clone();
                let opened = below.root.open_with(below.path(), &options);
                opened.map_err(|error| below.explain(error))?.into_std()
            }
        };
        if file.metadata()?.is_file() { Ok(file) } else { Err(irregular()) }
    }

    /// Makes the folder where it is missing, and opens it to write in.
    ///
    /// # Errors
    /// It cannot be made, or leads out of its folder.
    pub fn make_folder(&self) -> io::Result<OpenFolder> {
        let Some(below) = &self.below else {
            fs::create_dir_all(&self.shown)?;
            return Ok(OpenFolder { path: self.shown.clone(), _opened: None });
        };
        let open = || below.root.open_dir(below.path());
        let make = || match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                below.root.create_dir_all(below.path())?;
                open()
            }
            opened => opened,
        };
        let opened = make().map_err(|error| below.explain(error))?;
        Ok(OpenFolder { path: opened_path(&opened), _opened: Some(Arc::new(opened)) })
    }
}

/// Compares the shown paths.
impl PartialEq for ConfinedPath {
    fn eq(&self, other: &Self) -> bool {
        self.shown == other.shown
    }
}

impl Eq for ConfinedPath {}

impl Below {
    /// The path relative to the folder.
    fn path(&self) -> &Path {
        if self.rest.as_os_str().is_empty() { Path::new(".") } else { &self.rest }
    }

    fn explain(&self, error: io::Error) -> io::Error {
        if !is_way_out(&error) {
            return error;
        }
        let root = self.shown.display();
        let problem = format!(
            "a link leads out of {root}, below which jobs of this worker have to stay (links there have to be relative, \
             and to stay below it too)"
        );
        io::Error::new(io::ErrorKind::PermissionDenied, problem)
    }
}

/// cap-std says the same of every way out, and the system says nothing of it.
fn is_way_out(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

/// A path to a file that is open in this process: not a symlink that the system resolves again.
pub(super) fn opened_path(opened: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

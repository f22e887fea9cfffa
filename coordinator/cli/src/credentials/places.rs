//! Where logins are kept: a folder for each coordinator, and a file that names the one that is meant where none is named.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use ringtune_shared::files::write_atomically;

use super::{AccessError, Environment};
use crate::client::CoordinatorUrl;

/// File that names the coordinator of the last login. No folder has this name: theirs end with a port.
const DEFAULT: &str = "default";

/// `$XDG_CONFIG_HOME/ringtune/credentials`, or that in `~/.config`.
#[derive(Debug, Clone)]
pub struct Places {
    folder: PathBuf,
}

impl Places {
    /// Those of a user.
    ///
    /// # Errors
    /// The environment says nowhere.
    pub fn of(environment: &Environment) -> Result<Self, AccessError> {
        // The XDG specification says that a relative path is to be ignored.
        let absolute = |value: &OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
        let config = environment.config_home.as_ref().and_then(absolute);
        let home = || environment.home.as_ref().and_then(absolute).map(|home| home.join(".config"));
        let config = config.or_else(home).ok_or(AccessError::NoHome)?;
        Ok(Self { folder: config.join("ringtune/credentials") })
    }

    /// The folder of the login at a coordinator.
    pub fn login(&self, url: &CoordinatorUrl) -> PathBuf {
        self.folder.join(url.folder_name())
    }

    /// The coordinator of the last login. Blocks.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn default_coordinator(&self) -> Result<Option<CoordinatorUrl>, AccessError> {
        let path = self.folder.join(DEFAULT);
        match fs::read_to_string(&path) {
            Ok(text) => match text.trim().parse() {
                Ok(url) => Ok(Some(url)),
                Err(source) => Err(AccessError::Default { path, source }),
            },
            Err(error) if is_absent(&error) => Ok(None),
            Err(source) => Err(AccessError::File { doing: "cannot read", path, source }),
        }
    }

    /// Makes a coordinator the one that is meant where none is named; its folder is there. Blocks.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_default(&self, url: &CoordinatorUrl) -> Result<(), AccessError> {
        let path = self.folder.join(DEFAULT);
        write_atomically(&path, format!("{url}\n").as_bytes()).map_err(|error| AccessError::File {
            doing: "cannot write",
            path,
            source: error.cause,
        })
    }

    /// Removes the login at a coordinator; whether there was one. Blocks.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn forget(&self, url: &CoordinatorUrl) -> Result<bool, AccessError> {
        let was_there = remove(&self.login(url), |path| fs::remove_dir_all(path))?;
        // A file that cannot be read names nobody.
        if self.default_coordinator().ok().flatten().as_ref() == Some(url) {
            remove(&self.folder.join(DEFAULT), |path| fs::remove_file(path))?;
        }
        Ok(was_there)
    }
}

fn remove(path: &Path, remove: impl Fn(&Path) -> io::Result<()>) -> Result<bool, AccessError> {
    match remove(path) {
        Ok(()) => Ok(true),
        Err(error) if is_absent(&error) => Ok(false),
        Err(source) => Err(AccessError::File { doing: "cannot remove", path: path.to_owned(), source }),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

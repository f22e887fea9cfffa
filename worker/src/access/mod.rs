//! What jobs may reach on a worker's machine: the one gate before every path, hub and bucket that a job names.
//!
//! Whoever may submit a job says where its model and pictures are and where its traces go, and a worker reads and writes
//! there as its own user. `[access]` of the worker's settings says how far that goes. [`Rules`] decide, by names alone,
//! before anything is read. [`Access`] opens what they let pass, below the folders that they name, so that no link and no
//! `..` leads further, neither in the job nor in a file that is found there.
//!
//! The commands `generate`, `pipeline` and `doctor JOB` are started by whoever owns the files, and reach all of them.

mod hubs;
mod model;
mod place;
mod rules;
mod settings;
#[cfg(test)]
mod tests;
mod views;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use ringtune_shared::job::{JobSpec, ModelLocation, PathUse};

pub use hubs::{Hub, Hubs};
pub use model::{OpenError, OpenModel};
pub use place::{ConfinedPath, OpenFolder};
pub use rules::{Buckets, Reach, Refused, Roots, Rules};
pub use settings::AccessSettings;

use rules::local_path;
use views::Views;

/// The gate for jobs on this worker. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Access {
    rules: Arc<Rules>,
    /// URL of `hf://`; empty: none.
    hub: Arc<str>,
    views: Views,
}

impl Access {
    /// A gate with these rules. `hub`: URL of `hf://`; empty: none. `views`: a folder of this worker's own, which
    /// is made if need be.
    pub fn new(rules: Rules, hub: &str, views: PathBuf) -> Self {
        Self { rules: Arc::new(rules), hub: hub.into(), views: Views::new(views) }
    }

    /// A text for others: a model's files have their own paths in it, and not those at which they are open here.
    pub fn shown(&self, text: String) -> String {
        self.views.shown(text)
    }

    /// Whether a whole job stays within reach, before anything of it is read. `traces`: it may write its trace by the switch
    /// of that.
    ///
    /// # Errors
    /// The first of its fields that leads further.
    pub fn check(&self, spec: &JobSpec, traces: bool) -> Result<(), Refused> {
        self.rules.check(spec, &self.hub, traces)
    }

    /// Whether a model may be fetched, if it has to be.
    ///
    /// # Errors
    /// It may not.
    pub fn fetch(&self, location: &ModelLocation) -> Result<(), Refused> {
        self.rules.fetch("model.base", location, &self.hub)
    }

    /// Whether what another field names may be fetched, if it has to be.
    ///
    /// # Errors
    /// It may not.
    pub fn fetch_named(&self, field: &str, location: &ModelLocation) -> Result<(), Refused> {
        self.rules.fetch(field, location, &self.hub)
    }

    /// Resolves a path of a job. Blocks.
    ///
    /// # Errors
    /// It is out of reach.
    pub fn place(&self, used: PathUse, field: &str, given: &str) -> Result<ConfinedPath, Refused> {
        match self.rules.path(used, field, given)? {
            Reach::Anywhere => Ok(ConfinedPath::at(local_path(used, given))),
            Reach::Below { root, rest } => ConfinedPath::below(root, rest).map_err(|error| Refused {
                field: field.to_owned(),
                problem: format!("{given:?}: {}: {error}", root.display()),
            }),
        }
    }

    /// A model's folder that was fetched into `cache`, out of which its links do not lead. Blocks.
    ///
    /// # Errors
    /// The cache cannot be opened, or the folder is not in it.
    pub fn fetched(&self, folder: &Path, cache: &Path) -> Result<ConfinedPath, OpenError> {
        if self.rules.models == Roots::Everything {
            return Ok(ConfinedPath::at(folder));
        }
        let failed = |source| OpenError { path: folder.to_owned(), source };
        let rest = folder.strip_prefix(cache).map_err(|error| failed(std::io::Error::other(error)))?;
        ConfinedPath::below(cache, rest.to_owned()).map_err(failed)
    }
}

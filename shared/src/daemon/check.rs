//! Checks of settings that both daemons make before they start anything: full names and texts, for
//! [`load_checked`](crate::config::load_checked).

use std::path::Path;

use super::{
    logging::{self, LogSettings},
    settings::{SettingsError, folder_problem},
};

/// Invalid values: those that the daemon itself refuses, and a malformed filter.
pub fn values(refused: &[SettingsError], log: &LogSettings) -> Vec<(String, String)> {
    let refused = refused.iter().map(|error| (error.key().to_owned(), error.problem()));
    let filter = logging::check_filter(&log.filter).err();
    refused.chain(filter.map(|error| ("log.filter".to_owned(), error.problem()))).collect()
}

/// A folder that the daemon is to write to and cannot; one without a name is a matter of [`values`]. Blocks.
pub fn folder(key: &str, folder: &Path) -> Option<(String, String)> {
    let problem = folder_problem(folder).filter(|_| !folder.as_os_str().is_empty())?;
    Some((key.to_owned(), format!("{}: {problem}", folder.display())))
}

//! What a running daemon takes from settings that are read again.
//!
//! Each daemon's settings list once what a reload changes (`CHANGE_BY_RELOAD`): the code that reloads, docs/settings.md
//! and the log follow that list.

use std::collections::BTreeSet;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ConfigError, leaves_of};

/// The differences in reloaded settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Change<T> {
    /// The settings in effect: reloadable ones are new, all others unchanged.
    pub settings: T,
    /// The settings that changed, by their full names.
    pub changed: BTreeSet<String>,
    /// Changed settings that need a restart.
    pub need_restart: BTreeSet<String>,
}

/// Takes what `may_change` (full names) from `read`, and leaves everything else as it is in `running`.
///
/// # Errors
/// A settings type that cannot be written down: a mistake in it.
pub fn change<T>(running: &T, read: &T, may_change: &[&str]) -> Result<Change<T>, ConfigError>
where
    T: Serialize + DeserializeOwned,
{
    let (old, new) = (leaves_of(running)?, leaves_of(read)?);
    let different = new.iter().filter(|(name, value)| old.get(*name) != Some(*value)).map(|(name, _)| name);
    let (changed, need_restart): (BTreeSet<String>, BTreeSet<String>) =
        different.cloned().partition(|name| may_change.contains(&name.as_str()));
    let wrong = |error: serde_json::Error| ConfigError::Defaults(error.to_string());
    let mut tree = serde_json::to_value(running).map_err(wrong)?;
    for name in &changed {
        let pointer = format!("/{}", name.replace('.', "/"));
        if let (Some(place), Some(value)) = (tree.pointer_mut(&pointer), new.get(name)) {
            *place = value.clone();
        }
    }
    Ok(Change { settings: serde_json::from_value(tree).map_err(wrong)?, changed, need_restart })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Settings {
        port: u16,
        limits: Limits,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Limits {
        calls: u64,
        names: Vec<String>,
    }

    fn settings(port: u16, calls: u64, names: &[&str]) -> Settings {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Settings { port, limits: Limits { calls, names } }
    }

    #[test]
    fn what_may_change_does_and_the_rest_is_named() {
        let running = settings(1, 2, &[]);
        let change = change(&running, &settings(9, 3, &["a"]), &["limits.calls"]).unwrap();
        assert_eq!(change.settings, settings(1, 3, &[]));
        assert_eq!(change.changed, BTreeSet::from(["limits.calls".to_owned()]));
        assert_eq!(change.need_restart, BTreeSet::from(["limits.names".to_owned(), "port".to_owned()]));
    }

    #[test]
    fn the_same_settings_change_nothing() {
        let running = settings(1, 2, &["b"]);
        let change = change(&running, &running.clone(), &["limits.calls"]).unwrap();
        assert_eq!((change.settings, change.changed.len(), change.need_restart.len()), (running, 0, 0));
    }
}

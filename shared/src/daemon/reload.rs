//! SIGHUP: a daemon that runs reads its settings again.

use std::{collections::BTreeSet, io, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
};
use tracing::{error, info, warn};

use super::notify::Notifier;
use crate::config::{Change, ConfigError, change};

/// SIGHUP, from the moment at which this is made; before that, the signal ends the process.
#[derive(Debug)]
pub struct Hangups(Signal);

impl Hangups {
    /// From now on.
    ///
    /// # Errors
    /// The system's.
    pub fn listen() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }
}

/// Reads settings as they were read at the start. Blocks.
pub type Read<T> = Arc<dyn Fn() -> Result<T, ConfigError> + Send + Sync>;

/// How a daemon reads its settings again.
pub struct Reloading<T> {
    /// The settings in effect.
    pub running: T,
    /// Reads them.
    pub read: Read<T>,
    /// The reloadable ones, by full names.
    pub may_change: &'static [&'static str],
    /// Told when a reload begins and ends.
    pub notifier: Notifier,
    /// Wakes whoever reads other files.
    pub reread: Arc<Notify>,
}

impl<T> Reloading<T>
where
    T: Serialize + DeserializeOwned + Send + 'static,
{
    /// Reads the settings at each signal, and has `apply` use what may change. What cannot be used changes nothing. Never
    /// ends.
    pub async fn follow(mut self, mut hangups: Hangups, apply: impl AsyncFn(&T) -> Result<(), String>) {
        while hangups.0.recv().await.is_some() {
            self.notifier.reloading();
            if let Err(problem) = self.once(&apply).await {
                error!("the settings were read again and cannot be used; nothing was changed:\n{problem}");
            }
            self.reread.notify_one();
            self.notifier.ready();
        }
        std::future::pending().await
    }

    async fn once(&mut self, apply: &impl AsyncFn(&T) -> Result<(), String>) -> Result<(), String> {
        let read = Arc::clone(&self.read);
        let read = tokio::task::spawn_blocking(move || read()).await.map_err(|error| error.to_string())?;
        let read = read.map_err(|error| error.to_string())?;
        let Change { settings, changed, need_restart } =
            change(&self.running, &read, self.may_change).map_err(|error| error.to_string())?;
        apply(&settings).await?;
        self.running = settings;
        info!(changed = listed(&changed), "the settings were read again");
        if !need_restart.is_empty() {
            warn!("needs a restart: {}", listed(&need_restart));
        }
        Ok(())
    }
}

fn listed(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde::Deserialize;

    use super::*;
    use crate::config::SettingProblem;

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Settings {
        calls: u64,
        port: u16,
    }

    #[tokio::test]
    async fn what_can_change_does_and_what_cannot_be_used_changes_nothing() {
        let next: Arc<Mutex<Option<Settings>>> = Arc::default();
        let (source, applied) = (Arc::clone(&next), Mutex::new(Vec::new()));
        let read: Read<Settings> = Arc::new(move || {
            let problem = SettingProblem { place: "f".into(), setting: "calls".into(), problem: "no".into() };
            source.lock().unwrap().clone().ok_or(ConfigError::Invalid(vec![problem]))
        });
        let mut reloading = Reloading {
            running: Settings { calls: 1, port: 1 },
            read,
            may_change: &["calls"],
            notifier: Notifier::default(),
            reread: Arc::default(),
        };
        let apply = async |settings: &Settings| {
            if settings.calls == 13 {
                return Err("unlucky".to_owned());
            }
            applied.lock().unwrap().push(settings.clone());
            Ok(())
        };
        let refused = reloading.once(&apply).await.unwrap_err();
        assert_eq!(refused, "f: calls: no");
        for calls in [2, 13] {
            *next.lock().unwrap() = Some(Settings { calls, port: 9 });
            assert_eq!(reloading.once(&apply).await.is_ok(), calls == 2);
        }
        // The port waits for a restart, and what could not be used is not in effect.
        assert_eq!(*applied.lock().unwrap(), [Settings { calls: 2, port: 1 }]);
        assert_eq!(reloading.running, Settings { calls: 2, port: 1 });
    }
}

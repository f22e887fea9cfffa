//! The model of `generate` and `pipeline` on this machine.

use std::{path::Path, time::Duration};

use ringtune_shared::job::{ModelLocation, check_variant};
use ringtune_sources::{DownloadProgress, Environment, LocalModel, ModelSources, Patience, progress_channel};
use tokio::time::{MissedTickBehavior, interval};

use super::{Error, say};
use crate::settings::ModelCacheSettings;

/// How often a download says how far it is.
const REPORT: Duration = Duration::from_secs(2);

/// Which model, as the options say it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelChoice<'a> {
    /// --model.
    pub(crate) model: &'a str,
    /// --revision; empty: not given.
    pub(crate) revision: &'a str,
    /// --variant; empty: the default one.
    pub(crate) variant: &'a str,
}

/// Brings the model here, saying on stderr how far it is.
pub(crate) async fn fetch(choice: ModelChoice<'_>) -> Result<LocalModel, Error> {
    let ModelChoice { model, revision, variant } = choice;
    let location = ModelLocation::parse(model, revision).map_err(|(field, problem)| {
        let option = if field == "model.revision" { "--revision" } else { "--model" };
        Error::Option { option, problem }
    })?;
    check_variant(variant).map_err(|problem| Error::Option { option: "--variant", problem })?;
    let environment = Environment::of_process();
    // Daemons have settings; this has their defaults.
    let cache = ModelCacheSettings::default().options(&environment, Path::new("/var/lib/ringtune-worker"));
    let sources = ModelSources::new(environment, cache, Patience::default());
    let (sender, receiver) = progress_channel();
    let mut fetching = Box::pin(sources.fetch(&location, variant, &sender));
    let mut ticks = interval(REPORT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut said = DownloadProgress::default();
    let model = loop {
        tokio::select! {
            fetched = &mut fetching => break fetched?,
            _ = ticks.tick() => {
                let now = *receiver.borrow();
                if now != said && now.done < now.total {
                    said = now;
                    let [done, total] = [now.done, now.total].map(|bytes| bytes as f64 / 1e6);
                    say(&format!("downloading {location}: {done:.1} of {total:.1} MB"));
                }
            }
        }
    };
    model.remarks.iter().for_each(|remark| say(remark));
    if let Some(origin) = &model.origin {
        say(&format!("{location} is commit {}", origin.commit));
    }
    Ok(model)
}

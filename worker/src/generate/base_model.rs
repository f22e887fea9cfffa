//! The model of `generate`, `pipeline` and `generate-text` on this machine.

use std::path::Path;

use ringtune_shared::job::{HubModel, ModelLocation, check_variant};
use ringtune_sources::{Environment, LocalModel, ModelSources, Patience};

use super::{Error, say};
use crate::{
    base_model::{self, WantedFiles},
    settings::ModelCacheSettings,
};

/// The model of the options.
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
    if matches!(&location, ModelLocation::Local(path) if !path.exists()) {
        let hub = if HubModel::is_repository(model) {
            format!("; for the hub's model write hf://{model}")
        } else {
            String::new()
        };
        let problem = format!("'{model}': there is no such folder or file{hub}");
        return Err(Error::Option { option: "--model", problem });
    }
    check_variant(variant).map_err(|problem| Error::Option { option: "--variant", problem })?;
    Ok(bring(&location, WantedFiles::Pictures { variant }).await?)
}

/// Brings what is wanted of a model here, by the rules and into the cache of a worker without settings.
pub(crate) async fn bring(
    location: &ModelLocation,
    wanted: WantedFiles<'_>,
) -> Result<LocalModel, ringtune_sources::Error> {
    let environment = Environment::of_process();
    // Daemons have settings; this has their defaults.
    let cache = ModelCacheSettings::default().options(&environment, Path::new("/var/lib/ringtune-worker"));
    let sources = ModelSources::new(environment, cache, Patience::default());
    let (model, _) = base_model::fetch(&sources, location, wanted, |news| {
        match news {
            base_model::News::Progress(now) if now.done < now.total => {
                let [done, total] = [now.done, now.total].map(|bytes| bytes as f64 / 1e6);
                say(&format!("downloading {location}: {done:.1} of {total:.1} MB"));
            }
            base_model::News::Progress(_) => {}
            base_model::News::Remark(text) => say(&text),
        }
        std::future::ready(())
    })
    .await?;
    model.remarks.iter().for_each(|remark| say(remark));
    if let Some(origin) = &model.origin {
        say(&format!("{location} is commit {}", origin.commit));
    }
    Ok(model)
}

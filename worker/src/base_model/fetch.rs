//! A job's base model on this machine: fetched, or a folder that is there already.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use ringtune_shared::job::{self, JobSpec, ModelLocation, ModelSpec, PathUse};
use ringtune_sources::{DownloadProgress, LocalModel, ModelSources, progress_channel};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use super::Error;
use crate::{
    access::Access,
    data::tokenizer_folder,
    engine::{ModelOptions, PredictionType},
    journal::Journal,
    session::{Progress, ProgressStage, RankEvent},
};

/// Interval of a download's progress reports, each of which is stored.
const REPORT: Duration = Duration::from_secs(2);

/// Brings the model of a job here, and opens it. What is returned is to be held as long as the job uses it; the path is
/// its tokenizer's folder.
pub(super) async fn materialise(
    spec: &JobSpec,
    access: &Access,
    sources: &ModelSources,
    journal: &Journal,
) -> Result<(LocalModel, PathBuf), Error> {
    let location = spec.common.model.location()?;
    access.fetch(&location)?;
    let variant = &spec.common.model.variant;
    let wanted = WantedFiles::Pictures { variant };
    let model = bring(sources, &location, wanted, journal).await?;
    let (access, asked) = (access.clone(), spec.common.model.clone());
    ringtune_shared::tasks::spawn_blocking(move || open(&access, &asked, model)).await?
}

/// The files of a model to fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WantedFiles<'a> {
    /// A model of pictures, with the weights of this variant; empty: none.
    Pictures { variant: &'a str },
    /// A language model, with its weights or without.
    Words { weights: bool },
}

/// Fetches files of a model that jobs may reach here, and reports progress and outcome to the job.
pub(super) async fn bring(
    sources: &ModelSources,
    location: &ModelLocation,
    wanted: WantedFiles<'_>,
    journal: &Journal,
) -> Result<LocalModel, Error> {
    let tell = |news| async move {
        match news {
            News::Progress(now) => report(journal, now).await,
            News::Remark(text) => journal.warn(format!("model.base: {text}")).await,
        }
    };
    let (model, said) = fetch(sources, location, wanted, tell).await?;
    if said != DownloadProgress::default() {
        report(journal, DownloadProgress { done: said.total, ..said }).await;
    }
    for remark in &model.remarks {
        journal.warn(format!("model.base: {remark}")).await;
    }
    if let Some(origin) = &model.origin {
        journal.info(format!("model: {location}, commit {}", origin.commit)).await;
    } else if matches!(location, ModelLocation::S3(_)) {
        journal.info(format!("model: {location}")).await;
    }
    Ok(model)
}

/// From here on nothing but what is open is read of a model and its tokenizer, whatever becomes of their names. Blocks.
fn open(access: &Access, asked: &ModelSpec, local: LocalModel) -> Result<(LocalModel, PathBuf), Error> {
    const MODEL: &str = "model.base";
    const TOKENIZER: &str = "model.tokenizer";
    // 1. The model.
    let place = match &local.cache {
        Some(cache) => access.fetched(&local.folder, cache).map_err(|error| Error::of_path(MODEL, error))?,
        None => access.place(PathUse::Model, MODEL, &local.folder.to_string_lossy())?,
    };
    let model = access.model(&place).map_err(|error| Error::of_path(MODEL, error))?;
    let folder = model.path.clone();
    let local = local.moved(folder.clone(), model);
    // 2. Its tokenizer: its own, or another one.
    if asked.tokenizer.is_empty() {
        let shown = |path: &Path| path.parent().unwrap_or(path).display().to_string();
        let own = tokenizer_folder(&folder, None).map_err(|problem| {
            // Users know it by its own path.
            let problem = problem.replace(&shown(&folder), &shown(place.shown()));
            Error::Field { field: TOKENIZER, problem }
        })?;
        return Ok((local, own));
    }
    let place = access.place(PathUse::Model, TOKENIZER, &asked.tokenizer)?;
    let tokenizer = access.tokenizer(&place).map_err(|error| Error::of_path(TOKENIZER, error))?;
    let words = tokenizer.path.clone();
    Ok((local.moved(folder, tokenizer), words))
}

/// News of a download.
pub(crate) enum News {
    /// Its progress.
    Progress(DownloadProgress),
    /// A remark: what it waits for.
    Remark(String),
}

/// Brings a model here, and tells every two seconds how far it is, as long as it gets on, and at once what it waits for. Gives
/// what was told last of the former, too.
pub(crate) async fn fetch<Told: Future<Output = ()>>(
    sources: &ModelSources,
    location: &ModelLocation,
    wanted: WantedFiles<'_>,
    tell: impl Fn(News) -> Told,
) -> Result<(LocalModel, DownloadProgress), ringtune_sources::Error> {
    let (sender, receiver) = progress_channel();
    let remarks = sender.remarks();
    let fetching = async {
        match wanted {
            WantedFiles::Pictures { variant } => sources.fetch(location, variant, &sender).await,
            WantedFiles::Words { weights } => sources.fetch_language_model(location, weights, &sender).await,
        }
    };
    telling(fetching, &receiver, remarks, tell).await
}

/// Tells how far it is until it is done.
pub(crate) async fn telling<Told: Future<Output = ()>>(
    fetching: impl Future<Output = Result<LocalModel, ringtune_sources::Error>>,
    progress: &watch::Receiver<DownloadProgress>,
    mut remarks: watch::Receiver<Option<String>>,
    tell: impl Fn(News) -> Told,
) -> Result<(LocalModel, DownloadProgress), ringtune_sources::Error> {
    let mut fetching = Box::pin(fetching);
    let mut ticks = interval(REPORT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = DownloadProgress::default();
    loop {
        tokio::select! {
            fetched = &mut fetching => return Ok((fetched?, told)),
            _ = ticks.tick() => {
                let now = *progress.borrow();
                if now != told {
                    told = now;
                    tell(News::Progress(now)).await;
                }
            }
            Ok(()) = remarks.changed() => {
                let remark = remarks.borrow_and_update().clone();
                if let Some(text) = remark {
                    tell(News::Remark(text)).await;
                }
            }
        }
    }
}

/// A job's options for its model.
pub(crate) fn options_of(spec: &JobSpec) -> ModelOptions {
    let prediction_type = spec.common.model.prediction_type.map(|prediction| match prediction {
        job::PredictionType::Epsilon => PredictionType::Epsilon,
        job::PredictionType::VPrediction => PredictionType::VPrediction,
    });
    ModelOptions {
        variant: spec.common.model.variant.clone(),
        prediction_type,
        rescale_zero_snr: false,
        draws_unet: spec.draws_unet(),
    }
}

async fn report(journal: &Journal, progress: DownloadProgress) {
    let DownloadProgress { done, total } = progress;
    journal.event(RankEvent::Progress(Progress { stage: ProgressStage::Download, done, total })).await;
}

//! A job's base model on this machine: fetched, or a folder that is there already.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use ringtune_shared::job::{self, JobSpec, ModelLocation};
use ringtune_sources::{DownloadProgress, LocalModel, ModelSources, progress_channel};
use tokio::time::{MissedTickBehavior, interval};

use super::Error;
use crate::{
    data::tokenizer_folder,
    engine::{ModelOptions, PredictionType},
    journal::Journal,
    session::{Progress, ProgressStage, RankEvent},
};

/// How often a download says how far it is. Every report is stored.
const REPORT: Duration = Duration::from_secs(2);

/// Brings the model of a job here. What is returned is to be held as long as the job uses it.
pub(super) async fn materialise(
    spec: &JobSpec,
    sources: &ModelSources,
    journal: &Journal,
) -> Result<LocalModel, Error> {
    let location = spec.common.model.location()?;
    let variant = &spec.common.model.variant;
    let (model, said) = fetch(sources, &location, variant, |now| report(journal, now)).await?;
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

/// Brings a model here, and tells every two seconds how far it is, as long as it gets on. Gives what was told last, too.
pub(crate) async fn fetch<Told: Future<Output = ()>>(
    sources: &ModelSources,
    location: &ModelLocation,
    variant: &str,
    tell: impl Fn(DownloadProgress) -> Told,
) -> Result<(LocalModel, DownloadProgress), ringtune_sources::Error> {
    let (sender, receiver) = progress_channel();
    let mut fetching = Box::pin(sources.fetch(location, variant, &sender));
    let mut ticks = interval(REPORT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = DownloadProgress::default();
    loop {
        tokio::select! {
            fetched = &mut fetching => return Ok((fetched?, told)),
            _ = ticks.tick() => {
                let now = *receiver.borrow();
                if now != told {
                    told = now;
                    tell(now).await;
                }
            }
        }
    }
}

/// The folder of the job's tokenizer, where the model lies in `model`.
pub(super) fn tokenizer_folder_of(spec: &JobSpec, model: &Path) -> Result<PathBuf, Error> {
    tokenizer_folder(model, Some(Path::new(&spec.common.model.tokenizer)))
        .map_err(|problem| Error::Field { field: "model.tokenizer", problem })
}

/// What the job says about its model.
pub(super) fn options_of(spec: &JobSpec) -> ModelOptions {
    let prediction_type = spec.common.model.prediction_type.map(|prediction| match prediction {
        job::PredictionType::Epsilon => PredictionType::Epsilon,
        job::PredictionType::VPrediction => PredictionType::VPrediction,
    });
    ModelOptions { variant: spec.common.model.variant.clone(), prediction_type, rescale_zero_snr: false }
}

async fn report(journal: &Journal, progress: DownloadProgress) {
    let DownloadProgress { done, total } = progress;
    journal.event(RankEvent::Progress(Progress { stage: ProgressStage::Download, done, total })).await;
}

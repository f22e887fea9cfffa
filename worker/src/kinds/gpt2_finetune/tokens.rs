//! The files of tokens that a job learns from, brought to this machine and checked.

use std::time::Duration;

use ringtune_shared::{
    ids::{ContentHash, ContentHasher},
    job::{ModelLocation, PathUse, S3Model, kinds::gpt2_finetune::Gpt2Spec},
};
use ringtune_sources::{LocalModel, progress_channel};
use ringtune_text::{MANIFEST_FILE, TRAIN_FILE, TokenFiles, VAL_FILE};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    fault::{Blame, Fault, Refusal, of_path},
    rank::{Error, Rank},
    session::{Progress, ProgressStage, RankEvent},
};

/// The job's field.
pub(super) const FIELD: &str = "gpt2.tokens";
/// The files, in the order of [`TokenFiles::open_with`]'s questions.
const FILES: [&str; 3] = [MANIFEST_FILE, TRAIN_FILE, VAL_FILE];
/// How often a download says how far it is. Every report is stored.
const REPORT: Duration = Duration::from_secs(2);

/// Files of tokens on this machine.
#[derive(Debug)]
pub(super) struct Tokens {
    pub(super) files: TokenFiles,
    /// Of both files' contents.
    pub(super) hash: ContentHash,
    /// What was fetched: not thrown out as long as this is held.
    pub(super) held: Option<LocalModel>,
}

/// Brings the job's files here and reads all of both: they are what their manifest says.
pub(super) async fn bring(rank: &Rank, job: &Gpt2Spec) -> Result<Tokens, Error> {
    let location = job.tokens_location().map_err(crate::base_model::Error::from)?;
    rank.context.access.fetch_named(FIELD, &location)?;
    let (place, held) = match location {
        ModelLocation::Local(_) => (rank.context.access.place(PathUse::Tokens, FIELD, &job.tokens)?, None),
        ModelLocation::Hub(_) => {
            let problem = format!("got {:?}; allowed: a folder or s3://BUCKET/PREFIX", job.tokens);
            return Err(Refusal::of(FIELD, problem).into());
        }
        ModelLocation::S3(bucket) => {
            let local = fetch(rank, &bucket).await?;
            let cache = local.cache.clone().unwrap_or_else(|| local.folder.clone());
            let place = rank.context.access.fetched(&local.folder, &cache);
            let place = place.map_err(|error| crate::base_model::Error::of_path(FIELD, error))?;
            (place, Some(local))
        }
    };
    let open = move || {
        let files = TokenFiles::open_with(place.shown(), |name| place.join(name).open())?;
        let mut hasher = ContentHasher::new();
        hasher.update(&files.manifest.train.sha256.0);
        hasher.update(&files.manifest.val.sha256.0);
        Ok((files, hasher.finish()))
    };
    let opened: Result<_, ringtune_text::Error> = ringtune_shared::tasks::spawn_blocking(open).await?;
    let (files, hash) = opened.map_err(unusable)?;
    let (train, val) = (files.train.tokens(), files.val.tokens());
    rank.journal.info(format!("tokens: {train} to train on, {val} to validate, {hash}")).await;
    Ok(Tokens { files, hash, held })
}

async fn fetch(rank: &Rank, bucket: &S3Model) -> Result<LocalModel, Error> {
    let (sender, receiver) = progress_channel();
    let mut remarks = sender.remarks();
    let needed = |names: &[String]| match FILES.iter().find(|file| names.iter().all(|name| name != *file)) {
        None => Ok(FILES.map(str::to_owned).to_vec()),
        Some(missing) => Err(format!("has no {missing}; allowed: a place that prepare-text wrote to")),
    };
    let mut fetching = Box::pin(rank.context.models.fetch_files(bucket, &needed, &sender));
    let mut ticks = interval(REPORT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Default::default();
    loop {
        tokio::select! {
            fetched = &mut fetching => return Ok(fetched.map_err(|error| NotFetched(Box::new(error)))?),
            Ok(()) = remarks.changed() => {
                let remark = remarks.borrow_and_update().clone();
                if let Some(text) = remark {
                    rank.journal.warn(format!("{FIELD}: {text}")).await;
                }
            }
            _ = ticks.tick() => {
                let now = *receiver.borrow();
                if now != told {
                    told = now;
                    let progress =
                        Progress { stage: ProgressStage::Download, done: now.done, total: now.total };
                    rank.journal.event(RankEvent::Progress(progress)).await;
                }
            }
        }
    }
}

/// They cannot be fetched.
#[derive(Debug, thiserror::Error)]
#[error("gpt2.tokens: {0}")]
struct NotFetched(Box<ringtune_sources::Error>);

impl Blame for NotFetched {
    fn fault(&self) -> Fault {
        self.0.fault()
    }
}

/// The files cannot be read on this machine, or are no files of tokens that the job can use.
#[derive(Debug, thiserror::Error)]
#[error("gpt2.tokens: {0}")]
struct Unreadable(ringtune_text::Error);

impl Blame for Unreadable {
    fn fault(&self) -> Fault {
        match &self.0 {
            ringtune_text::Error::Io { source, .. } => of_path(source),
            ringtune_text::Error::Busy(_)
            | ringtune_text::Error::Stopped { .. }
            | ringtune_text::Error::Room { .. }
            | ringtune_text::Error::Full { .. }
            | ringtune_text::Error::Threads(_)
            | ringtune_text::Error::File(_)
            | ringtune_text::Error::Internal(_) => Fault::Node,
            ringtune_text::Error::Option { .. }
            | ringtune_text::Error::Unusable { .. }
            | ringtune_text::Error::Document { .. }
            | ringtune_text::Error::Documents(_) => Fault::Job,
        }
    }
}

/// What is wrong with files of tokens, as the job's reason.
pub(super) fn unusable(error: ringtune_text::Error) -> Error {
    Unreadable(error).into()
}

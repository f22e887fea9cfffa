//! A rank's journal: lines for job.log, the worker's own log and the coordinator.

mod pace;
mod stages;

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Instant, SystemTime},
};

use ringtune_shared::{daemon::logging::ABOUT, ids::Epoch};
use tokio::sync::mpsc;
use tracing::{Span, error, error_span, field::Empty, info, warn};

use pace::Pace;
use ringtune_shared::trace::TraceContext;
use ringtune_traces::Tracer;
use stages::Stages;

use crate::{
    access::Access,
    session::{Level, RankEvent, RankKey},
};

/// The file's name among a job's artifacts.
pub(crate) const LOG_FILE: &str = "job.log";

/// One rank's journal. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    /// Of the rank's life.
    key: RankKey,
    place: Arc<Mutex<Speaker>>,
    pace: Arc<Mutex<Pace>>,
    stages: Arc<Mutex<Stages>>,
    events: mpsc::Sender<(RankKey, RankEvent)>,
    /// Translates its files' paths for others. None: shown as they are.
    access: Option<Access>,
}

/// The rank that speaks, which changes with the ring.
#[derive(Debug)]
struct Speaker {
    /// Span of the rank's log lines.
    span: Span,
    /// Of its ring, or of the one that it is to join.
    epoch: Epoch,
    /// None: it is joining.
    rank: Option<usize>,
    /// Rank 0's job.log.
    file: Option<File>,
}

impl Journal {
    /// A journal of a rank, or of one that is to join.
    pub(crate) fn new(key: RankKey, rank: Option<usize>, events: mpsc::Sender<(RankKey, RankEvent)>) -> Self {
        // Field names are the same in all daemons' log lines.
        let span = error_span!(target: ABOUT, "rank", job = %key.job, rank = Empty, epoch = Empty);
        let place = Arc::new(Mutex::new(Speaker { span, epoch: key.epoch, rank, file: None }));
        let journal = Self { key, place, pace: Arc::default(), stages: Arc::default(), events, access: None };
        journal.speak_as(rank, key.epoch);
        journal
    }

    /// Sets the gate of the rank's files: lines show their original paths.
    pub(crate) fn of(self, access: Access) -> Self {
        Self { access: Some(access), ..self }
    }

    fn shown(&self, text: String) -> String {
        match &self.access {
            Some(access) => access.shown(text),
            None => text,
        }
    }

    /// For all that is done on behalf of the rank: its log lines say whose they are, in the ring that it is in by then.
    pub(crate) fn span(&self) -> Span {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).span.clone()
    }

    /// Sets rank and epoch of the lines that follow.
    pub(crate) fn speak_as(&self, rank: Option<usize>, epoch: Epoch) {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        (place.rank, place.epoch) = (rank, epoch);
        place.span.record("epoch", epoch.0);
        if let Some(rank) = rank {
            place.span.record("rank", rank as u64);
        }
    }

    /// Writes to this file too from now on. One that cannot be opened is told and left out: what matters more is
    /// written elsewhere and will fail there. Blocks.
    pub(crate) fn write_to(&self, path: &Path) {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .inspect_err(|error| warn!(file = %path.display(), %error, "no job.log"));
        self.place.lock().unwrap_or_else(PoisonError::into_inner).file = file.ok();
    }

    /// Logs at level info.
    pub(crate) async fn info(&self, line: impl Into<String>) {
        self.say(Level::Info, line.into()).await;
    }

    /// Logs at level warn.
    pub(crate) async fn warn(&self, line: impl Into<String>) {
        self.say(Level::Warn, line.into()).await;
    }

    /// Logs at level error: why the rank ended.
    pub(crate) async fn error(&self, line: impl Into<String>) {
        self.say(Level::Error, line.into()).await;
    }

    /// From now on the stages of its progress are spans below this one. None: no longer.
    pub(crate) fn trace_stages(&self, tracer: &Tracer, whole: Option<TraceContext>) {
        *self.stages.lock().unwrap_or_else(PoisonError::into_inner) = Stages::below(tracer, whole);
    }

    /// Sends an event to the session; progress is throttled.
    pub(crate) async fn event(&self, event: RankEvent) {
        if let RankEvent::Progress(progress) = &event {
            self.stages.lock().unwrap_or_else(PoisonError::into_inner).at(progress.stage);
        }
        if let RankEvent::Progress(progress) = event
            && !self.pace.lock().unwrap_or_else(PoisonError::into_inner).is_due(progress, Instant::now())
        {
            return;
        }
        let event = match event {
            RankEvent::Failed { reason, fault } => RankEvent::Failed { reason: self.shown(reason), fault },
            RankEvent::NeighbourLost(reason) => RankEvent::NeighbourLost(self.shown(reason)),
            other => other,
        };
        // The receiver is gone when the worker ends.
        let _ = self.events.send((self.key, event)).await;
    }

    async fn say(&self, level: Level, line: String) {
        let line = self.shown(line);
        self.write(level, &line);
        self.event(RankEvent::Log(level, line)).await;
    }

    fn write(&self, level: Level, line: &str) {
        // The caller need not be in the rank's span.
        let _about = self.span().entered();
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        match level {
            Level::Info => info!("{line}"),
            Level::Warn => warn!("{line}"),
            Level::Error => error!("{line}"),
        }
        let rank = place.rank.map_or_else(|| "joiner".to_owned(), |rank| format!("rank {rank}"));
        if let Some(file) = &mut place.file {
            let text = format!(
                "{} {:5} {rank}: {line}\n",
                humantime::format_rfc3339_seconds(SystemTime::now()),
                level.as_str()
            );
            // A short line: not worth a thread.
            if let Err(error) = file.write_all(text.as_bytes()) {
                warn!(%error, "cannot write job.log");
            }
        }
    }
}

//! What a job leaves behind: events, steps and artifacts.

use ringtune_shared::checkpoint::{file_name, recovery_name, step_of_name, step_of_recovery_name};
use ringtune_shared::ids::{ContentHash, Epoch, JobId};
use serde::{Deserialize, Serialize};

use super::job_state::JobState;
use super::time::Time;

/// Something that happened to a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobEvent {
    /// The job.
    pub job: JobId,
    /// Counts up from 1.
    pub sequence: u64,
    /// When.
    pub time: Time,
    /// What.
    pub body: EventBody,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventBody {
    /// The job went into another state; the first event has no `from`.
    StateChange {
        /// The state before.
        from: Option<JobState>,
        /// The state after.
        to: JobState,
        /// Why.
        reason: String,
    },
    /// An optimizer update.
    Step(StepRecord),
    /// A rank got further with its preparation. Older versions kept this; it is read and passed over.
    Progress(Progress),
    /// A file was kept.
    Artifact(ArtifactRecord),
    /// A line for people.
    Log {
        /// How important it is.
        level: LogLevel,
        /// The rank that says so; none: the coordinator.
        rank: Option<u32>,
        /// The line.
        message: String,
    },
}

impl EventBody {
    /// A line from the coordinator itself.
    pub fn note(level: LogLevel, message: impl Into<String>) -> Self {
        Self::Log { level, rank: None, message: message.into() }
    }

    /// Which kind it is of.
    pub fn kind(&self) -> EventKind {
        match self {
            Self::StateChange { .. } => EventKind::StateChange,
            Self::Step(_) => EventKind::Step,
            Self::Progress(_) => EventKind::Progress,
            Self::Artifact(_) => EventKind::Artifact,
            Self::Log { .. } => EventKind::Log,
        }
    }

    /// The state in which this event ended the job, if it did.
    pub fn ending(&self) -> Option<JobState> {
        match self {
            Self::StateChange { to, .. } if to.is_terminal() => Some(*to),
            _ => None,
        }
    }
}

/// The kinds of events, without what they say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// [`EventBody::StateChange`]
    StateChange,
    /// [`EventBody::Step`]
    Step,
    /// [`EventBody::Progress`], which only older versions kept.
    Progress,
    /// [`EventBody::Artifact`]
    Artifact,
    /// [`EventBody::Log`]
    Log,
}

impl EventKind {
    /// Every kind that there still is.
    pub const ALL: [Self; 4] = [Self::StateChange, Self::Step, Self::Artifact, Self::Log];

    /// The name, which is also that of the kind's bodies as JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StateChange => "state_change",
            Self::Step => "step",
            Self::Progress => "progress",
            Self::Artifact => "artifact",
            Self::Log => "log",
        }
    }
}

/// How important a line is. The words in the store are those of release 0.1.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Worth knowing.
    Info,
    /// Worth a look.
    Warn,
    /// Why something ended.
    Error,
}

/// What a rank is busy with. The words in the store are those of release 0.1.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgressStage {
    /// Fetches training images from the coordinator.
    Fetch,
    /// Fetches the model from a model hub or a bucket; in bytes.
    Download,
    /// Loads the model.
    Load,
    /// Encodes training images.
    Encode,
    /// Draws pictures of a job of kind "generate".
    Draw,
    /// Makes texts of a job of kind "generate_text".
    Write,
    /// A word that only the worker knew: release 0.1.0 stored whatever it was told.
    #[serde(other)]
    Other,
}

/// One optimizer update, as measured by rank 0. Times in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// From 1.
    pub step: u64,
    /// The ring's epoch in which it was made. Rings had only their first in release 0.1.0, which stored none.
    #[serde(default)]
    pub epoch: Epoch,
    /// Mean over the global batch; not finite in a skipped step.
    #[serde(with = "any_float")]
    pub loss: f64,
    /// The schedule's value at `step - 1`.
    #[serde(with = "any_float")]
    pub learning_rate: f64,
    /// The whole step.
    #[serde(with = "any_float")]
    pub step_seconds: f64,
    /// In the engine.
    #[serde(with = "any_float")]
    pub compute_seconds: f64,
    /// Bytes on their way around the ring, while nothing is computed.
    #[serde(with = "any_float")]
    pub exchange_seconds: f64,
    /// Waiting for other ranks.
    #[serde(with = "any_float")]
    pub wait_seconds: f64,
    /// The gradient was not finite: the update was left out.
    pub skipped: bool,
    /// Ranks in the ring at this step.
    pub world_size: u32,
    /// Loss on the held-out draws after this step, where it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<AnyFloat>,
    /// Taking it.
    #[serde(with = "any_float", default)]
    pub validation_seconds: f64,
    /// Drawing pictures.
    #[serde(with = "any_float", default)]
    pub preview_seconds: f64,
    /// The hash of the state after it. None: made by release 0.2.0 or before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ContentHash>,
    /// What travelled, as rank 0 saw it. None: made by release 0.2.0 or before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
}

/// What travelled in a step, as one rank sees it; or on average in several. All finite and not negative.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Seconds of sending and receiving while the rank computed.
    pub hidden_exchange_seconds: f64,
    /// Payload that it sent.
    pub sent_bytes: u64,
    /// Seconds of the ring's collectives, hidden or not, each from the first frame that came.
    pub collective_seconds: f64,
    /// Their bandwidth, as NCCL's tests count it.
    pub bus_bytes_per_second: f64,
}

/// A validation loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Validation {
    /// The step after which it was taken.
    pub step: u64,
    /// The loss, a number.
    pub loss: f64,
}

impl StepRecord {
    /// The validation loss of what a job leaves after this step, which was `before` before it: the lowest one where the result is the
    /// state with that (`keeps_best`), or else the last. Of a loss that is no number there is none.
    pub fn validation(&self, before: Option<Validation>, keeps_best: bool) -> Option<Validation> {
        let Some(AnyFloat(loss)) = self.validation_loss else { return before };
        let is_beaten = |best: &Validation| best.loss <= loss || loss.is_nan();
        match before.filter(|best| keeps_best && is_beaten(best)) {
            Some(best) => Some(best),
            None => (!loss.is_nan()).then_some(Validation { step: self.step, loss }),
        }
    }
}

/// How far a rank is with its preparation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The rank.
    pub rank: u32,
    /// What it does.
    pub stage: ProgressStage,
    /// Done so far, in the stage's own unit.
    pub done: u64,
    /// Of so many; 0: unknown.
    pub total: u64,
}

/// A file kept with a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactRecord {
    /// The job.
    pub job: JobId,
    /// A plain file name.
    pub name: String,
    /// The content.
    pub hash: ContentHash,
    /// Bytes.
    pub size: u64,
    /// As the uploader named it; may be empty.
    pub media_type: String,
    /// When it was kept.
    pub created: Time,
    /// The epoch of the ring that made it; none: a user sent it, or a release before 0.2.0 kept it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
}

impl ArtifactRecord {
    /// The checkpoint that it is, if a rank made it and it is one.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        let epoch = self.epoch?;
        let (step, recovery) = match step_of_name(&self.name) {
            Some(step) => (step, false),
            None => (step_of_recovery_name(&self.name)?, true),
        };
        Some(Checkpoint { step, epoch, hash: self.hash, recovery })
    }
}

/// A state of a job that a rank kept as a file: from here another ring can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Steps done.
    pub step: u64,
    /// Of the ring that made it.
    pub epoch: Epoch,
    /// The file's content.
    pub hash: ContentHash,
    /// It is there for the loss of a whole ring alone, and not one of the files that the user gets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recovery: bool,
}

impl Checkpoint {
    /// The file's name.
    pub fn name(&self) -> String {
        if self.recovery { recovery_name(self.step) } else { file_name(self.step) }
    }
}

/// A number that may not be finite, as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AnyFloat(#[serde(with = "any_float")] pub f64);

/// JSON has no NaN and no infinity: they are written as the strings "NaN", "inf" and "-inf".
mod any_float {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Name(String),
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() { serializer.serialize_f64(*value) } else { serializer.collect_str(value) }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(value) => Ok(value),
            Written::Name(name) => name.parse().map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_as_json_begins_with_its_kind() {
        let progress = Progress { rank: 0, stage: ProgressStage::Load, done: 0, total: 0 };
        let change = EventBody::StateChange { from: None, to: JobState::Queued, reason: String::new() };
        for body in [change, EventBody::Progress(progress), EventBody::note(LogLevel::Info, "")] {
            let written = serde_json::to_string(&body).unwrap();
            assert!(written.starts_with(&format!("{{\"{}\":", body.kind().as_str())), "{written}");
        }
    }

    #[test]
    fn numbers_that_json_lacks_are_read_back() {
        for loss in [0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let step = StepRecord {
                step: 1,
                epoch: Epoch(7),
                loss,
                world_size: 2,
                validation_loss: Some(AnyFloat(loss)),
                preview_seconds: 0.25,
                state: Some(ContentHash::of(b"state")),
                traffic: Some(Traffic {
                    hidden_exchange_seconds: 0.125,
                    sent_bytes: 4096,
                    collective_seconds: 0.25,
                    bus_bytes_per_second: 16_384.0,
                }),
                ..StepRecord::default()
            };
            let written = serde_json::to_string(&EventBody::Step(step)).unwrap();
            let EventBody::Step(read) = serde_json::from_str(&written).unwrap() else { panic!("{written}") };
            assert_eq!(read.loss.to_bits(), loss.to_bits(), "{written}");
            assert_eq!((read.state, read.traffic), (step.state, step.traffic), "{written}");
            assert_eq!(read.validation_loss.map(|one| one.0.to_bits()), Some(loss.to_bits()), "{written}");
            // As a coordinator of an older version stored it.
            assert_eq!(read.epoch, Epoch(7), "{written}");
            let older = written.split(",\"validation_loss\"").next().unwrap().to_owned() + "}}";
            let older = older.replace("\"epoch\":7,", "");
            let EventBody::Step(read) = serde_json::from_str(&older).unwrap() else { panic!("{older}") };
            assert_eq!(read.epoch, Epoch::FIRST);
            assert_eq!((read.world_size, read.validation_loss, read.preview_seconds), (2, None, 0.0));
            assert_eq!((read.state, read.traffic), (None, None));
        }
    }

    #[test]
    fn lines_and_progress_of_release_0_1_0_are_read() {
        let log = r#"{"log":{"level":"warn","rank":null,"message":"slow"}}"#;
        let body: EventBody = serde_json::from_str(log).unwrap();
        assert_eq!(body, EventBody::note(LogLevel::Warn, "slow"));
        assert_eq!(serde_json::to_string(&body).unwrap(), log);
        for (word, stage) in [
            ("fetch", ProgressStage::Fetch),
            ("download", ProgressStage::Download),
            ("load", ProgressStage::Load),
            ("encode", ProgressStage::Encode),
            ("draw", ProgressStage::Draw),
            ("write", ProgressStage::Write),
            ("ponder", ProgressStage::Other),
        ] {
            let stored = format!(r#"{{"progress":{{"rank":1,"stage":"{word}","done":2,"total":3}}}}"#);
            let read: EventBody = serde_json::from_str(&stored).unwrap();
            assert_eq!(read, EventBody::Progress(Progress { rank: 1, stage, done: 2, total: 3 }));
        }
    }
}

//! Chance, a small job, and what belongs to one.

use std::sync::Arc;

use ringtune_coordinator::core::{ArtifactRecord, Input, NewJob, Phase, StepRecord, Time};
use ringtune_shared::ids::{ContentHash, Epoch, JobId, WorkerId};
use ringtune_shared::job::{
    ClusterDraft, JobDraft, JobSpec, ModelDraft,
    pictures::concepts::WordDraft,
    pictures::{DataDraft, TrainDraft},
};

/// Steps of a job.
pub(crate) const STEPS: u64 = 4;

pub(crate) fn step_record(step: u64) -> StepRecord {
    let (step_seconds, compute_seconds, exchange_seconds, wait_seconds) = (1.0, 0.8, 0.1, 0.1);
    StepRecord {
        step,
        loss: 0.5,
        learning_rate: 1e-3,
        step_seconds,
        compute_seconds,
        exchange_seconds,
        wait_seconds,
        world_size: 1,
        ..StepRecord::default()
    }
}

/// The state of a job after a step, whoever makes it.
pub(crate) fn state_after(job: JobId, step: u64) -> ContentHash {
    ContentHash::of(format!("{job} {step}").as_bytes())
}

pub(crate) fn spec(world_size: i64, min_world_size: i64) -> JobSpec {
    JobSpec::from_draft(JobDraft {
        kind: Some("textual_inversion".to_owned()),
        model: ModelDraft { base: Some("/models/sd".to_owned()), ..ModelDraft::default() },
        data: DataDraft { images: Some("/images".to_owned()), ..DataDraft::default() },
        word: WordDraft {
            placeholder_token: Some("<star>".to_owned()),
            initializer_token: Some("star".to_owned()),
            ..WordDraft::default()
        },
        train: TrainDraft { max_train_steps: Some(i64::try_from(STEPS).unwrap()), ..TrainDraft::default() },
        cluster: ClusterDraft {
            world_size: Some(world_size),
            min_world_size: Some(min_world_size),
            ..ClusterDraft::default()
        },
        ..JobDraft::default()
    })
    .unwrap()
}

/// A job of nobody.
pub(crate) fn new_job(id: JobId, spec: JobSpec) -> NewJob {
    let (spec, queue) = (Arc::new(spec), Arc::default());
    NewJob { id, spec, queue, request: None, resumed: None, trace: None, sweep: None }
}

/// A small generator (splitmix64) so that a seed means the same for ever.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((bits ^ (bits >> 31)) % limit as u64).unwrap()
    }
}

pub(crate) fn file(job: JobId, name: String, epoch: Option<Epoch>, created: Time) -> ArtifactRecord {
    let hash = ContentHash::of(format!("{job} {name} {epoch:?}").as_bytes());
    ArtifactRecord { job, name, hash, size: 1, media_type: String::new(), created, epoch }
}

/// The ranks of which an input says that they are ready, or further.
pub(crate) fn said_ready(input: &Input) -> Vec<(WorkerId, JobId, Epoch)> {
    let (worker, held) = match input {
        Input::Hello { hello, .. } => (hello.worker, hello.held.as_slice()),
        Input::Heartbeat(sender, held) => (sender.worker, held.as_slice()),
        Input::RankReport(sender, report) => (sender.worker, std::slice::from_ref(&report.held)),
        _ => return Vec::new(),
    };
    let ready = held.iter().filter(|held| held.phase >= Phase::Ready && held.rank.is_some());
    ready.map(|held| (worker, held.job, held.epoch)).collect()
}

pub(crate) fn uuid_of(number: u64) -> uuid::Uuid {
    uuid::Uuid::from_u128(u128::from(number))
}

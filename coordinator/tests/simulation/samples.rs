//! A small job, and a step of it.

use ringtune_coordinator::core::StepRecord;
use ringtune_shared::ids::Epoch;
use ringtune_shared::job::{
    ClusterDraft, JobDraft, JobSpec, ModelDraft,
    kinds::textual_inversion::{DataDraft, TrainDraft},
};

/// Steps of a job.
pub(crate) const STEPS: u64 = 4;

pub(crate) fn step_record(step: u64) -> StepRecord {
    StepRecord {
        step,
        epoch: Epoch::FIRST,
        loss: 0.5,
        learning_rate: 1e-3,
        step_seconds: 1.0,
        compute_seconds: 0.8,
        exchange_seconds: 0.1,
        wait_seconds: 0.1,
        skipped: false,
        world_size: 1,
        validation_loss: None,
        validation_seconds: 0.0,
        preview_seconds: 0.0,
    }
}

pub(crate) fn spec(world_size: i64, min_world_size: i64) -> JobSpec {
    JobSpec::from_draft(JobDraft {
        kind: Some("textual_inversion".to_owned()),
        model: ModelDraft { base: Some("/models/sd".to_owned()), ..ModelDraft::default() },
        data: DataDraft { images: Some("/images".to_owned()), folders: None },
        train: TrainDraft {
            placeholder_token: Some("<star>".to_owned()),
            initializer_token: Some("star".to_owned()),
            max_train_steps: Some(i64::try_from(STEPS).unwrap()),
            ..TrainDraft::default()
        },
        cluster: ClusterDraft {
            world_size: Some(world_size),
            min_world_size: Some(min_world_size),
            ..ClusterDraft::default()
        },
        ..JobDraft::default()
    })
    .unwrap()
}

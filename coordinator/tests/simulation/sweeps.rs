//! Sweeps whose worse half ends at a rung, whatever happens to their jobs.

use std::collections::BTreeMap;

use ringtune_coordinator::core::{AnyFloat, Input, Job, JobState, NewJob, SweepPlace};
use ringtune_shared::ids::{ContentHash, JobId, SweepId};
use ringtune_shared::job::Rung;

use crate::samples::{new_job, spec, uuid_of};
use crate::world::World;

/// Early enough that no job is done before it has left its ring.
const RUNGS: [Rung; 2] = [Rung { step: 1, keep: 2 }, Rung { step: 2, keep: 1 }];

/// The validation loss of a job after a step, whoever computes it. Of one in sixteen it is no number.
pub(crate) fn validation_loss(job: JobId, step: u64) -> AnyFloat {
    let ContentHash([first, second, ..]) = ContentHash::of(format!("loss of {job} {step}").as_bytes());
    AnyFloat(if first < 16 { f64::NAN } else { f64::from(second) })
}

/// As of a comparison: no number is more than any.
fn height(loss: AnyFloat) -> f64 {
    if loss.0.is_nan() { f64::INFINITY } else { loss.0 }
}

impl World {
    /// A user asks for three jobs at once, or for nothing where there is no room for all.
    pub(crate) fn create_sweep(&mut self) {
        let sweep = SweepId(uuid_of(5000 + self.names));
        let points = (1..=3).map(|point| {
            self.names += 1;
            let place = SweepPlace {
                sweep,
                point,
                points: 3,
                settings: BTreeMap::new(),
                rungs: RUNGS.to_vec(),
                passed: 0,
                scores: Vec::new(),
            };
            NewJob { sweep: Some(place), ..new_job(JobId(uuid_of(self.names)), spec(1, 1)) }
        });
        let points: Vec<NewJob> = points.collect();
        let ids: Vec<JobId> = points.iter().map(|point| point.id).collect();
        let made = self.apply(Input::CreateSweep(points));
        assert!(ids.iter().all(|id| self.disk.jobs.contains_key(id) == made), "half of a sweep");
    }

    /// Every job has ended: nobody was dropped for one that was worse, or for less than as many as were to go on.
    pub(crate) fn check_sweeps(&self) {
        let mut sweeps: BTreeMap<SweepId, Vec<(&Job, &SweepPlace)>> = BTreeMap::new();
        for job in self.disk.jobs.values() {
            if let Some(place) = &job.sweep {
                sweeps.entry(place.sweep).or_default().push((job, place));
            }
        }
        for jobs in sweeps.values() {
            for (at, rung) in RUNGS.iter().enumerate() {
                let loss = |job: &Job| height(validation_loss(job.id, rung.step));
                let passed: Vec<&Job> = jobs
                    .iter()
                    .filter(|(_, place)| place.passed as usize > at)
                    .map(|(job, _)| *job)
                    .collect();
                let dropped = jobs.iter().filter(|(job, place)| {
                    job.state == JobState::Cancelled && place.passed as usize == at && place.score().is_some()
                });
                let dropped: Vec<&Job> = dropped.map(|(job, _)| *job).collect();
                assert!(passed.len() <= rung.keep as usize, "{jobs:?}");
                assert!(dropped.is_empty() || passed.len() == rung.keep as usize, "{jobs:?}");
                let worst = passed.iter().map(|job| loss(job)).fold(f64::NEG_INFINITY, f64::max);
                let scores: Vec<_> = jobs
                    .iter()
                    .map(|(job, place)| (job.id, job.state, place.passed, &place.scores, loss(job)))
                    .collect();
                assert!(dropped.iter().all(|job| loss(job) >= worst), "rung {at}: {scores:?}");
            }
        }
    }
}

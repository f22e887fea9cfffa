//! Jobs that were asked for at once: see [`crate::core::sweeps`].

use std::sync::Arc;

use ringtune_shared::ids::{JobId, SweepId};

use super::Turn;
use crate::core::input::NewJob;
use crate::core::record::{EventBody, LogLevel, StepRecord};
use crate::core::refusal::Refusal;
use crate::core::sweep_place::SweepPlace;
use crate::core::sweeps::{Verdict, ends, judge};

impl Turn<'_> {
    /// Queues all jobs of a sweep or none, unless the same request did so before. Gives the first of them. All have the same owner.
    pub(super) fn create_sweep(&mut self, points: Vec<NewJob>) -> Result<JobId, Refusal> {
        self.queue_new(points, None)
    }

    /// Cancels all jobs of a sweep that have not ended.
    pub(super) fn cancel_sweep(&mut self, sweep: SweepId, reason: &str) -> Result<(), Refusal> {
        let jobs: Vec<JobId> = self.cluster.jobs_of_sweep(sweep).map(|job| job.id).collect();
        jobs.into_iter().try_for_each(|job| self.cancel_job(job, reason))
    }

    /// A new step of a job is stored: it may have come to a rung of its sweep.
    pub(super) fn look_at_rung(&mut self, id: JobId, step: &StepRecord) {
        // One that is about to end is compared with nobody.
        let job = self.cluster.jobs.get(&id).filter(|job| !ends(job));
        let place = job.and_then(|job| job.sweep.as_ref()?.after(step));
        let Some(place) = place else { return };
        self.sweeps.insert(place.sweep);
        self.set_place(id, place);
    }

    /// Decides on the sweeps of which a job came to its rung or ended.
    pub(super) fn judge_sweeps(&mut self) {
        while let Some(sweep) = self.sweeps.pop_first() {
            match judge(self.cluster.jobs_of_sweep(sweep)) {
                None => {}
                // One that is about to end is none of those that are left; workers of release 0.2.0 do not pause: their job goes on
                // until the others have come as far.
                Some(Verdict::Wait(jobs)) => jobs.into_iter().for_each(|job| drop(self.pause_job(job))),
                Some(Verdict::Halve { rung, kept, dropped }) => {
                    let (all, best) = (kept.len() + dropped.len(), kept.len());
                    let after = format!("of the {all} jobs of its sweep after step {}", rung.step);
                    for (job, loss) in kept {
                        self.pass_rung(
                            job,
                            &format!("validation loss {loss}: among the best {best} {after}"),
                        );
                    }
                    for (job, loss) in dropped {
                        let reason = format!("validation loss {loss}: not among the best {best} {after}");
                        // It has not ended.
                        let _ = self.give_up(job, reason);
                    }
                }
            }
        }
    }

    fn set_place(&mut self, id: JobId, place: SweepPlace) {
        if let Some(job) = self.job_mut(id) {
            job.sweep = Some(Arc::new(place));
        }
    }

    /// A job that waits at its rung, or was not good enough, does so no longer.
    pub(super) fn forget_score(&mut self, id: JobId) {
        let Some(place) = self.cluster.jobs.get(&id).and_then(|job| job.sweep.clone()) else { return };
        if place.score().is_some() {
            let mut place = (*place).clone();
            place.scores.truncate(place.passed as usize);
            self.set_place(id, place);
        }
    }

    fn pass_rung(&mut self, id: JobId, said: &str) {
        let Some(place) = self.cluster.jobs.get(&id).and_then(|job| job.sweep.clone()) else { return };
        let place = SweepPlace { passed: place.passed + 1, ..(*place).clone() };
        let is_at_next = place.score().is_some();
        // It may be at the next one already.
        self.sweeps.insert(place.sweep);
        self.set_place(id, place);
        self.record(id, EventBody::note(LogLevel::Info, said));
        if !is_at_next {
            // It is among those that have not ended.
            let _ = self.resume_job(id);
        }
    }
}

#[cfg(test)]
mod tests;

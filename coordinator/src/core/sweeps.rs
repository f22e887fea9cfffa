//! Sweeps: jobs that were asked for at once, and that may be compared while they run.
//!
//! 1. A job that comes to a rung of its sweep waits there without workers; its validation loss after that very step counts, however
//!    many steps it does before it has left its ring.
//! 2. Once all jobs that are left have come there, the best go on, and the others are cancelled, in one turn.
//! 3. A job that fails, or that a user ends, is no longer one of those that are left. One that a user paused is: the others wait.
//!
//! What a job waits for follows from the jobs alone, so that nothing but jobs is stored of a sweep.

use ringtune_shared::ids::JobId;
use ringtune_shared::job::Rung;

use super::job::Job;
use super::job_state::JobState;
use super::sweep_place::SweepPlace;

impl Job {
    /// Whether it waits for the other jobs of its sweep, or was worse than these.
    pub fn is_at_rung(&self) -> bool {
        self.sweep.as_ref().is_some_and(|place| place.score().is_some())
    }

    /// What a pause of it is for.
    pub(super) fn why_it_pauses(&self) -> String {
        match self.sweep.as_deref().filter(|place| place.score().is_some()).and_then(SweepPlace::rung) {
            Some(rung) => format!("waits for the other jobs of its sweep after step {}", rung.step),
            None => "paused by request".to_owned(),
        }
    }
}

/// Whether a job is about to end.
pub(super) fn ends(job: &Job) -> bool {
    job.stop.as_ref().is_some_and(|stop| stop.goal.state() != JobState::Queued)
}

/// What becomes of the jobs of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Verdict {
    /// Some are on their way to the rung; these wait for them.
    Wait(Vec<JobId>),
    /// All have come there.
    Halve {
        /// The rung.
        rung: Rung,
        /// The best, with their losses, from the lowest on.
        kept: Vec<(JobId, f64)>,
        /// The others, likewise.
        dropped: Vec<(JobId, f64)>,
    },
}

/// What becomes of these jobs of a sweep, which are all that are left of it. Of equal losses that of the earlier point counts as
/// lower.
pub(super) fn judge<'a>(jobs: impl Iterator<Item = &'a Job>) -> Option<Verdict> {
    let left = jobs.filter(|job| !ends(job) && !job.state.is_terminal());
    let left: Vec<(&Job, &SweepPlace)> = left.filter_map(|job| Some((job, job.sweep.as_deref()?))).collect();
    let rung = left.first()?.1.rung()?;
    let mut scored: Vec<(JobId, f64, u32)> =
        left.iter().filter_map(|(job, place)| Some((job.id, place.score()?, place.point))).collect();
    if scored.len() < left.len() {
        return Some(Verdict::Wait(scored.into_iter().map(|(job, ..)| job).collect()));
    }
    scored.sort_by(|one, other| one.1.total_cmp(&other.1).then(one.2.cmp(&other.2)));
    let mut kept: Vec<(JobId, f64)> = scored.into_iter().map(|(job, loss, _)| (job, loss)).collect();
    let dropped = kept.split_off(kept.len().min(rung.keep as usize));
    Some(Verdict::Halve { rung, kept, dropped })
}

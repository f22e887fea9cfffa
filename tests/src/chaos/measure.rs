//! What a fault cost, by what the coordinator tells programs: states, reason codes, phases and epochs, no words.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ringtune_proto::v1::{self, JobReason, JobState, RankPhase};

use super::story::{self, Seen};

/// What a fault cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// From the first fault to the first sign of it in the job.
    pub detect: Option<Duration>,
    /// From that sign to the first step of a newer ring.
    pub resume: Option<Duration>,
    /// Steps that were stored and done again.
    pub steps_lost: i64,
}

/// What GetJob says of a job and its ring at a moment, for programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sight {
    /// When it came, by this process's own clock.
    pub at: Instant,
    /// The job's state.
    pub state: JobState,
    /// Why it is in it.
    pub reason: JobReason,
    /// The ring's epoch; 0: there is no ring.
    pub epoch: u64,
    /// A member has left its ring, which broke, or has failed.
    pub member_is_out: bool,
}

impl Sight {
    /// Of an answer.
    pub fn of(job: &v1::Job, at: Instant) -> Self {
        let members = job.ring.as_ref().map(|ring| &*ring.members).unwrap_or_default();
        let is_out = |phase| matches!(phase, RankPhase::Waiting | RankPhase::Failed);
        Self {
            at,
            state: job.state(),
            reason: job.reason_code(),
            epoch: job.ring.as_ref().map_or(0, |ring| ring.epoch),
            member_is_out: members.iter().any(|member| is_out(member.phase())),
        }
    }

    /// The same, at another time.
    pub fn says_the_same(&self, other: &Self) -> bool {
        *self == Self { at: self.at, ..*other }
    }

    /// A ring is without a member, or was since the one of this epoch.
    pub fn tells_of_a_loss(&self, epoch: u64) -> bool {
        let reasons = [JobReason::Reforming, JobReason::WaitingForSpare, JobReason::Recovering];
        let back = epoch > 0 && self.epoch == 0 && self.state == JobState::Queued;
        self.member_is_out
            || self.epoch > epoch
            || reasons.contains(&self.reason)
            || self.state == JobState::Failed
            || back
    }
}

/// What a fault at `since` cost, when the newest ring's epoch was `epoch`.
///
/// # Errors
/// A newer ring did steps, and its rank 0 never said where it began: whether any was lost is not known then.
pub fn measure(events: &[Seen], sights: &[Sight], since: Instant, epoch: u64) -> Result<Measured> {
    let sign = sights.iter().find(|sight| sight.at >= since && sight.tells_of_a_loss(epoch));
    let mut newer = events.iter().filter(|seen| seen.at >= since);
    let newer = newer.find(|seen| story::step(seen).is_some_and(|step| step.epoch > epoch));
    // Between two looks at the job both may come.
    let detected = [sign.map(|sight| sight.at), newer.map(|seen| seen.at)].into_iter().flatten().min();
    let steps_lost = steps_done_again(events, since, epoch)?;
    Ok(Measured {
        detect: detected.map(|at| at.duration_since(since)),
        resume: newer.zip(detected).map(|(seen, detected)| seen.at.duration_since(detected)),
        steps_lost,
    })
}

/// A step that is stored is not stored again, so it is rank 0 that says where its ring begins: "resumed after step N; …", or
/// "training: N steps" from the first one on.
fn steps_done_again(events: &[Seen], since: Instant, epoch: u64) -> Result<i64> {
    let (mut lost, mut newest, mut beginnings, mut newest_epoch) = (0, 0, 0, epoch);
    for seen in events {
        let later = seen.at >= since;
        if let Some(step) = story::step(seen) {
            newest = newest.max(step.step);
            if later && step.epoch > newest_epoch {
                newest_epoch = step.epoch;
                Some(())
                    .filter(|()| beginnings > 0)
                    .with_context(|| format!("nobody said where the ring of epoch {newest_epoch} began"))?;
                beginnings = 0;
            }
        }
        if later && let Some(begins_after) = beginning(seen) {
            lost += (newest - begins_after).max(0);
            beginnings += 1;
        }
    }
    Ok(lost)
}

/// After which step a ring begins, if this says so.
fn beginning(seen: &Seen) -> Option<i64> {
    let said = story::line(seen).filter(|line| line.rank == Some(0))?;
    match said.message.strip_prefix("resumed after step ") {
        Some(rest) => rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok(),
        None => said.message.starts_with("training: ").then_some(0),
    }
}

#[cfg(test)]
mod tests {
    use ringtune_proto::v1::job_event::Event;

    use super::*;

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn told(start: Instant) -> Vec<Seen> {
        let seen = |at, event| Seen { at: start + milliseconds(at), event };
        let step = |step, epoch| Event::Step(v1::StepReport { step, epoch, ..Default::default() });
        let said = |rank, text: &str| {
            Event::Log(v1::LogLine { message: text.to_owned(), rank, ..Default::default() })
        };
        let log = |text: &str| said(Some(0), text);
        vec![
            seen(0, log("training: 60 steps")),
            seen(100, step(1, 1)),
            seen(200, step(2, 1)),
            seen(300, step(3, 1)),
            seen(500, said(None, "rank 1 was lost, gone, broken and away")),
            seen(1000, said(Some(1), "resumed after step 2; training: steps 3 to 60")),
            seen(1000, log("resumed after step 2; training: steps 3 to 60")),
            seen(1200, step(4, 2)),
        ]
    }

    fn job(state: JobState, reason: JobReason, epoch: u64, phases: &[RankPhase]) -> v1::Job {
        let member = |phase: &RankPhase| v1::ring::Member { phase: (*phase).into(), ..Default::default() };
        let ring = v1::Ring { epoch, members: phases.iter().map(member).collect() };
        let mut job = v1::Job { ring: (epoch > 0).then_some(ring), ..Default::default() };
        job.set_state(state);
        job.set_reason_code(reason);
        job
    }

    const TRAINING: [RankPhase; 2] = [RankPhase::Training; 2];

    #[test]
    fn the_first_sign_the_first_step_and_the_steps_done_again_are_measured() {
        let start = Instant::now();
        let running = job(JobState::Running, JobReason::Training, 1, &TRAINING);
        let reforming = job(JobState::Running, JobReason::Reforming, 2, &TRAINING);
        let sights = [(0, &running), (900, &reforming), (1200, &running)];
        let sights = sights.map(|(at, job)| Sight::of(job, start + milliseconds(at)));
        let measured = measure(&told(start), &sights, start + milliseconds(400), 1).unwrap();
        let wanted =
            Measured { detect: Some(milliseconds(500)), resume: Some(milliseconds(300)), steps_lost: 1 };
        assert_eq!(measured, wanted);
    }

    #[test]
    fn what_was_before_the_fault_and_words_alone_do_not_count() {
        let start = Instant::now();
        let sights = [Sight::of(&job(JobState::Running, JobReason::Training, 2, &TRAINING), start)];
        let measured = measure(&told(start), &sights, start + milliseconds(400), 2).unwrap();
        assert_eq!(measured, Measured { steps_lost: 1, ..Measured::default() });
        assert_eq!(
            measure(&told(start), &sights, start + milliseconds(1300), 2).unwrap(),
            Measured::default()
        );
    }

    #[test]
    fn a_ring_of_which_nobody_says_where_it_began_is_an_error() {
        let start = Instant::now();
        let mut events = told(start);
        events.retain(|seen| story::line(seen).is_none());
        let error = measure(&events, &[], start + milliseconds(400), 1).unwrap_err().to_string();
        assert!(error.contains("epoch 2"), "{error}");
    }

    #[test]
    fn each_sign_of_a_loss_is_one_and_a_ring_that_is_whole_is_none() {
        let sees = |job: v1::Job| Sight::of(&job, Instant::now()).tells_of_a_loss(1);
        let running =
            |reason, epoch, phases: &[RankPhase]| sees(job(JobState::Running, reason, epoch, phases));
        assert!(!running(JobReason::Training, 1, &TRAINING));
        assert!(!running(JobReason::Training, 1, &[RankPhase::Done; 2]));
        assert!(running(JobReason::Training, 2, &TRAINING));
        assert!(running(JobReason::Training, 1, &[RankPhase::Training, RankPhase::Waiting]));
        assert!(running(JobReason::Training, 1, &[RankPhase::Failed, RankPhase::Training]));
        assert!(running(JobReason::Reforming, 1, &TRAINING));
        assert!(running(JobReason::WaitingForSpare, 1, &TRAINING));
        assert!(sees(job(JobState::Queued, JobReason::Recovering, 0, &[])));
        assert!(sees(job(JobState::Queued, JobReason::WaitingForWorkers, 0, &[])));
        assert!(sees(job(JobState::Failed, JobReason::WorkerLost, 0, &[])));
        assert!(!sees(job(JobState::Succeeded, JobReason::Completed, 0, &[])));
    }
}

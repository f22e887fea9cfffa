//! What a fake worker holds and says, as a function of what it hears and of the time.
//!
//! It is a worker's own state machine without the work: a rank is ready at once, makes a step whenever one is due, and
//! has finished after its last. Ended ranks stay held until the coordinator lets them go; steps stay until they are
//! stored.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use ringtune_proto::v1::{self, RankPhase, session_request::Message as Up};

/// A job and an epoch.
type Key = (String, u64);

/// The ranks of one worker.
#[derive(Debug, Default)]
pub(super) struct Ranks(BTreeMap<Key, Held>);

#[derive(Debug)]
struct Held {
    rank: i32,
    world_size: i32,
    phase: RankPhase,
    step: i64,
    total: i64,
    step_time: Duration,
    /// When the next step is due; none before training.
    next: Option<Instant>,
    /// Steps made that are not stored yet; of rank 0 alone.
    unstored: VecDeque<i64>,
}

/// What follows from something heard.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Goes up, in order.
    pub(super) messages: Vec<Up>,
    /// Job and step of those steps that are new.
    pub(super) made: Vec<(String, i64)>,
    /// A rank was let go: a heartbeat is due now.
    pub(super) heartbeat: bool,
    /// A rank 0 that had finished was let go.
    pub(super) finished: bool,
}

impl Ranks {
    /// Takes a rank; it is ready at once. One that is known already says where it stands.
    pub(super) fn assigned(&mut self, assignment: v1::Assignment, step_time: Duration) -> Said {
        let Some(ring) = assignment.ring else { return Said::default() };
        let key = (ring.job_id, ring.epoch);
        if let Some(held) = self.0.get(&key) {
            return Said { messages: vec![held.report(&key)], ..Said::default() };
        }
        let train = assignment.spec.and_then(|spec| spec.train).unwrap_or_default();
        let mut held = Held {
            rank: assignment.rank,
            world_size: i32::try_from(ring.members.len()).unwrap_or(i32::MAX),
            phase: RankPhase::Preparing,
            step: 0,
            total: train.max_train_steps.unwrap_or_default(),
            step_time,
            next: None,
            unstored: VecDeque::new(),
        };
        let preparing = held.report(&key);
        held.phase = RankPhase::Ready;
        let messages = vec![preparing, held.report(&key)];
        self.0.insert(key, held);
        Said { messages, ..Said::default() }
    }

    /// All ranks of a ring are ready.
    pub(super) fn start(&mut self, start: v1::StartRank, now: Instant) -> Said {
        let key = (start.job_id, start.epoch);
        let Some(held) = self.0.get_mut(&key) else { return Said::default() };
        if held.phase != RankPhase::Ready {
            return Said::default();
        }
        held.phase = RankPhase::Training;
        held.next = Some(now + held.step_time);
        Said { messages: vec![held.report(&key)], ..Said::default() }
    }

    /// Lets a rank go; `keep_artifacts`: one that has not ended yet says first that it stopped.
    pub(super) fn stop(&mut self, stop: v1::StopRank) -> Said {
        let key = (stop.job_id, stop.epoch);
        let Some(held) = self.0.get_mut(&key) else { return Said::default() };
        if stop.keep_artifacts && !held.ended() {
            held.phase = RankPhase::Stopped;
            return Said { messages: vec![held.report(&key)], ..Said::default() };
        }
        let finished = held.phase == RankPhase::Finished && held.rank == 0;
        self.0.remove(&key);
        Said { heartbeat: true, finished, ..Said::default() }
    }

    /// Steps up to this one are stored; returns how many that this worker waited for.
    pub(super) fn stored(&mut self, stored: &v1::StepsStored) -> u64 {
        let mut count = 0;
        if let Some(held) = self.0.get_mut(&(stored.job_id.clone(), stored.epoch)) {
            while held.unstored.front().is_some_and(|step| *step <= stored.step) {
                held.unstored.pop_front();
                count += 1;
            }
        }
        count
    }

    /// Makes the steps that are due. `holding`: not those that have a pace.
    pub(super) fn step(&mut self, now: Instant, holding: bool) -> Said {
        let mut said = Said::default();
        for (key, held) in &mut self.0 {
            if held.phase != RankPhase::Training || (holding && !held.step_time.is_zero()) {
                continue;
            }
            while held.step < held.total
                && let Some(due) = held.next.filter(|due| *due <= now)
            {
                held.step += 1;
                held.next = Some(due + held.step_time);
                if held.rank == 0 {
                    held.unstored.push_back(held.step);
                    said.messages.push(held.step_report(key, held.step));
                    said.made.push((key.0.clone(), held.step));
                }
            }
            if held.step == held.total {
                held.phase = RankPhase::Finished;
                said.messages.push(held.report(key));
            }
        }
        said
    }

    /// When the next step is due.
    pub(super) fn next_step(&self) -> Option<Instant> {
        let training = self.0.values().filter(|held| held.phase == RankPhase::Training);
        training.filter_map(|held| held.next).min()
    }

    /// What a heartbeat shows.
    pub(super) fn held(&self) -> Vec<v1::HeldRank> {
        self.0.iter().map(|(key, held)| held.shown(key, held.phase)).collect()
    }

    /// What a hello shows: a rank has not ended for the coordinator before all of its steps are stored.
    pub(super) fn held_for_hello(&self) -> Vec<v1::HeldRank> {
        let phase = |held: &Held| match held.ended() && !held.unstored.is_empty() {
            true => RankPhase::Training,
            false => held.phase,
        };
        self.0.iter().map(|(key, held)| held.shown(key, phase(held))).collect()
    }

    /// What the coordinator may have missed: steps that are not stored, and then where each rank stands.
    pub(super) fn missed(&self) -> Vec<Up> {
        let one = |(key, held): (&Key, &Held)| {
            let steps = held.unstored.iter().map(|step| held.step_report(key, *step));
            steps.chain([held.report(key)]).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(one).collect()
    }
}

impl Held {
    fn ended(&self) -> bool {
        matches!(self.phase, RankPhase::Finished | RankPhase::Failed | RankPhase::Stopped)
    }

    fn shown(&self, (job_id, epoch): &Key, phase: RankPhase) -> v1::HeldRank {
        v1::HeldRank {
            job_id: job_id.clone(),
            epoch: *epoch,
            rank: self.rank,
            phase: phase.into(),
            step: self.step,
            ..v1::HeldRank::default()
        }
    }

    fn report(&self, (job_id, epoch): &Key) -> Up {
        Up::RankReport(v1::RankReport {
            job_id: job_id.clone(),
            epoch: *epoch,
            rank: self.rank,
            phase: self.phase.into(),
            step: self.step,
            ..v1::RankReport::default()
        })
    }

    fn step_report(&self, (job_id, epoch): &Key, step: i64) -> Up {
        let seconds = self.step_time.as_secs_f64();
        let report = v1::StepReport {
            step,
            loss: loss_of(step),
            learning_rate: 5e-4,
            step_seconds: seconds,
            compute_seconds: seconds,
            world_size: self.world_size,
            ..v1::StepReport::default()
        };
        Up::RankStep(v1::RankStep { job_id: job_id.clone(), epoch: *epoch, step: Some(report) })
    }
}

/// The loss that every fake job has at a step.
pub(super) fn loss_of(step: i64) -> f64 {
    1.0 / step as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment(rank: i32, steps: i64) -> v1::Assignment {
        let ring = v1::RingView {
            job_id: "a".to_owned(),
            epoch: 1,
            members: vec![v1::RingMember::default(); 2],
            protocol: 1,
        };
        let train = v1::TrainSpec { max_train_steps: Some(steps), ..v1::TrainSpec::default() };
        let spec = v1::JobSpec { train: Some(train), ..v1::JobSpec::default() };
        v1::Assignment { ring: Some(ring), rank, spec: Some(spec), ..v1::Assignment::default() }
    }

    fn phases(messages: &[Up]) -> Vec<RankPhase> {
        let phase = |message: &Up| match message {
            Up::RankReport(report) => Some(report.phase()),
            _ => None,
        };
        messages.iter().filter_map(phase).collect()
    }

    fn training(rank: i32, steps: i64, step_time: Duration, now: Instant) -> Ranks {
        let mut ranks = Ranks::default();
        let taken = ranks.assigned(assignment(rank, steps), step_time);
        assert_eq!(phases(&taken.messages), [RankPhase::Preparing, RankPhase::Ready]);
        let started = ranks.start(v1::StartRank { job_id: "a".to_owned(), epoch: 1 }, now);
        assert_eq!(phases(&started.messages), [RankPhase::Training]);
        ranks
    }

    fn stop(keep_artifacts: bool) -> v1::StopRank {
        v1::StopRank { job_id: "a".to_owned(), epoch: 1, reason: String::new(), keep_artifacts }
    }

    #[test]
    fn a_quick_rank_makes_all_its_steps_and_is_held_until_it_is_let_go() {
        let now = Instant::now();
        let mut ranks = training(0, 3, Duration::ZERO, now);
        let said = ranks.step(now, true);
        assert_eq!(said.made.iter().map(|(_, step)| *step).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(phases(&said.messages), [RankPhase::Finished]);
        assert!(ranks.step(now, false).messages.is_empty());
        let let_go = ranks.stop(stop(false));
        assert!(let_go.heartbeat && let_go.finished && ranks.held().is_empty());
    }

    #[test]
    fn a_paced_rank_steps_when_it_is_time_and_not_while_it_is_held_back() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut ranks = training(0, 9, second, now);
        assert!(ranks.step(now, false).made.is_empty());
        assert_eq!(ranks.next_step(), Some(now + second));
        // Two steps fell due while nobody listened.
        assert_eq!(ranks.step(now + 2 * second, false).made.len(), 2);
        assert!(ranks.step(now + 9 * second, true).made.is_empty());
        // Other ranks step in silence.
        let mut other = training(1, 9, second, now);
        assert!(other.step(now + 2 * second, false).messages.is_empty());
        assert_eq!(other.held()[0].step, 2);
    }

    #[test]
    fn what_is_not_stored_is_said_again_before_the_end() {
        let now = Instant::now();
        let mut ranks = training(0, 3, Duration::ZERO, now);
        ranks.step(now, false);
        assert_eq!(ranks.held_for_hello()[0].phase(), RankPhase::Training);
        assert_eq!(ranks.stored(&v1::StepsStored { job_id: "a".to_owned(), step: 2, epoch: 1 }), 2);
        let missed = ranks.missed();
        assert!(matches!(&missed[0], Up::RankStep(step) if step.step.as_ref().is_some_and(|s| s.step == 3)));
        assert_eq!((missed.len(), phases(&missed)), (2, vec![RankPhase::Finished]));
        ranks.stored(&v1::StepsStored { job_id: "a".to_owned(), step: 3, epoch: 1 });
        assert_eq!(ranks.held_for_hello()[0].phase(), RankPhase::Finished);
    }

    #[test]
    fn a_cancelled_rank_says_that_it_stopped_and_then_goes() {
        let now = Instant::now();
        let mut ranks = training(0, 9, Duration::from_secs(1), now);
        assert_eq!(phases(&ranks.stop(stop(true)).messages), [RankPhase::Stopped]);
        assert!(ranks.step(now + Duration::from_secs(5), false).made.is_empty());
        let let_go = ranks.stop(stop(false));
        assert!(let_go.heartbeat && !let_go.finished && ranks.held().is_empty());
    }
}

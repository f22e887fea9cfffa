//! What must be true of the simulated world, whatever happens in it.

use std::collections::BTreeMap;

use ringtune_coordinator::core::{Assignment, Checkpoint, EventBody, Job, JobState, RingPlace};
use ringtune_shared::ids::{Epoch, JobId};

use crate::samples::STEPS;
use crate::world::World;

impl World {
    /// What must be true between any two inputs.
    pub(crate) fn check(&self) {
        let mut ranks = BTreeMap::new();
        for job in self.cluster.jobs() {
            assert!(!job.state.is_terminal());
            let waits = matches!(job.state, JobState::Queued | JobState::Paused);
            assert_eq!(job.ring.is_some(), !waits, "{job:?}");
            assert!(job.pin.is_some() || job.ring.is_none(), "{job:?}");
            if let Some(ring) = &job.ring {
                assert_eq!(ring.epoch, Epoch(job.rings));
                assert_eq!(ring.started, job.state == JobState::Running, "{job:?}");
                let size = ring.present().count();
                let cluster = &job.spec.common.cluster;
                assert!(size + ring.joining.len() <= cluster.world_size as usize, "{job:?}");
                assert!(size >= cluster.min_world_size as usize || self.may_be_small(job), "{job:?}");
                for (rank, member) in ring.present() {
                    let place = RingPlace::Rank(job.id, u32::try_from(rank).unwrap());
                    let other = ranks.insert(member.worker, place);
                    assert_eq!(other, None, "{} is in two rings", member.worker);
                }
                for joiner in &ring.joining {
                    let other = ranks.insert(joiner.member.worker, RingPlace::Joins(job.id));
                    assert_eq!(other, None, "{} is in a ring and prepares to join", joiner.member.worker);
                    assert!(ring.reforms(), "{job:?}");
                }
            }
            assert_eq!(job.as_stored(), self.disk.jobs[&job.id], "the row is not what the core holds");
            let there: Vec<Checkpoint> = self.cluster.checkpoints(job.id).copied().collect();
            assert_eq!(there, self.stored_checkpoints(job.id), "{job:?}");
        }
        for daemon in &self.daemons {
            let given = ranks.get(&daemon.id).copied();
            assert_eq!(self.cluster.place_of(daemon.id), given, "a place that its ring does not give");
        }
        for (id, job) in &self.disk.jobs {
            assert_eq!(job.state.is_terminal(), self.cluster.job(*id).is_none(), "lost: {job:?}");
            let events = &self.disk.events[id];
            assert_eq!(events.len() as u64, job.last_sequence);
            let told = events.iter().rev().find_map(|event| match &event.body {
                EventBody::StateChange { to, .. } => Some(*to),
                _ => None,
            });
            assert_eq!(told, Some(job.state), "the history tells another state");
            let steps = self.disk.steps.get(id).map_or(0, |steps| steps.last().map_or(0, |last| last.step));
            assert_eq!(steps, job.step);
            assert_eq!(job.checkpoint, self.stored_checkpoints(*id).first().copied(), "{job:?}");
            if job.state.is_terminal() {
                assert!(job.ring.is_none() && job.ended.is_some() && job.stop.is_none());
            }
        }
    }

    /// Whether a ring may have fewer members than its job wants: the others wait for more, or for one that may come back, or
    /// have done all steps, or the job is on its way out.
    fn may_be_small(&self, job: &Job) -> bool {
        let waits = job.ring.as_ref().and_then(|ring| ring.reforming.as_ref()?.spare_by).is_some();
        let all_done = self.daemons.iter().any(|daemon| daemon.holds_all_of(job.id));
        // After a restart of the coordinator some members may not be back yet.
        let ring = job.ring.as_ref();
        let expected =
            ring.is_some_and(|ring| ring.present().any(|(_, one)| self.cluster.worker(one.worker).is_none()));
        waits || all_done || expected || job.step >= STEPS || job.stop.is_some()
    }

    /// A job that runs does not leave its ring while somebody lives who has its state, unless it was asked to keep it.
    pub(crate) fn check_kept(&self, before: &Job, after: &Job) {
        let (Some(ring), JobState::Queued) = (&before.ring, after.state) else { return };
        if before.state != JobState::Running || before.stop.is_some() {
            return;
        }
        for (rank, member) in ring.present() {
            let alive = self.daemons.iter().find(|daemon| daemon.id == member.worker && !daemon.hangs);
            let keeps =
                alive.is_some_and(|daemon| daemon.session.is_some() && daemon.has_state_of(before.id));
            assert!(!keeps, "rank {rank} has the state, and is let go: {before:?} {after:?}");
        }
    }

    /// The newest first.
    fn stored_checkpoints(&self, job: JobId) -> Vec<Checkpoint> {
        let files = self.disk.files.range((job, String::new())..).take_while(|((of, _), _)| *of == job);
        let mut checkpoints: Vec<Checkpoint> = files.filter_map(|(_, file)| file.checkpoint()).collect();
        checkpoints.sort_by_key(|one| std::cmp::Reverse(one.step));
        checkpoints
    }

    /// A rank is told to start: every rank of its ring said in this epoch that it is ready.
    pub(crate) fn check_start(&self, job: JobId, epoch: Epoch) {
        // It may have come to its end in the same moment.
        let Some(ring) = self.cluster.job(job).and_then(|job| job.ring.as_ref()) else { return };
        if ring.epoch != epoch {
            // Or its members changed.
            assert!(ring.epoch > epoch && ring.reformed > 0, "{job}");
            return;
        }
        for member in &ring.members {
            let said = self.ready.contains(&(member.worker, job, epoch));
            assert!(said, "{} was not ready in epoch {epoch} of job {job}", member.worker);
        }
    }
}

/// A rank is given: as the job's pin says, to workers of its class.
pub(crate) fn check_assignment(world: &World, given: &Assignment) {
    let pin = world.disk.jobs[&given.job].pin.as_ref().expect("a pin");
    assert_eq!(given.numerics_class, pin.numerics_class);
    assert_eq!((given.threads_per_rank, given.precision), (pin.threads_per_rank, pin.precision));
    assert_eq!(given.version, pin.version);
    for (worker, _) in &given.members {
        let daemon = world.daemons.iter().find(|daemon| daemon.id == *worker).expect("a daemon");
        assert_eq!(daemon.class, pin.numerics_class, "a worker of another class");
    }
}

/// A row takes the place of another one.
pub(crate) fn check_rewrite(before: &Job, after: &Job) {
    assert!(!before.state.is_terminal(), "an ended job changed: {before:?} {after:?}");
    let kept = before.state == after.state || before.state.may_become(after.state);
    let quick = before.state == JobState::Preparing && after.state == JobState::Succeeded;
    assert!(kept || quick, "{} -> {}", before.state, after.state);
    assert!(
        before.rings <= after.rings && after.tries <= u64::from(after.queue.worker_retries) + 1,
        "{after:?}"
    );
    let unbound = matches!(after.state, JobState::Queued | JobState::Paused) && after.pin.is_none();
    assert!(
        before.pin.is_none() || before.pin == after.pin || unbound,
        "the pin changed: {before:?} {after:?}"
    );
}

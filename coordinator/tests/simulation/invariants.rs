//! What must be true of the simulated world, whatever happens in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringtune_coordinator::core::{Assignment, Checkpoint, EventBody, Job, JobState, Phase, Time};
use ringtune_shared::ids::{Epoch, JobId};

use crate::world::{World, options};

impl World {
    /// What must be true between any two inputs.
    pub(crate) fn check(&self) {
        let mut ranks = BTreeMap::new();
        for job in self.cluster.jobs() {
            assert!(!job.state.is_terminal());
            assert_eq!(job.ring.is_some(), job.state != JobState::Queued, "{job:?}");
            // No ring that started is given up here.
            assert_eq!(job.pin.is_some(), job.ring.is_some(), "{job:?}");
            if let Some(ring) = &job.ring {
                assert_eq!(ring.epoch, Epoch(job.rings));
                assert_eq!(ring.started, job.state == JobState::Running, "{job:?}");
                let size = ring.members.len();
                assert!(size >= job.spec.common.cluster.min_world_size as usize);
                assert!(size <= job.spec.common.cluster.world_size as usize);
                for (rank, member) in (0..).zip(&ring.members) {
                    let other = ranks.insert(member.worker, (job.id, rank));
                    assert_eq!(other, None, "{} is in two rings", member.worker);
                }
            }
            assert_eq!(row(job), self.disk.jobs[&job.id], "the row is not what the core holds");
            let there: Vec<Checkpoint> = self.cluster.checkpoints(job.id).copied().collect();
            assert_eq!(there, self.stored_checkpoints(job.id), "{job:?}");
        }
        for daemon in &self.daemons {
            let given = ranks.get(&daemon.id).copied();
            assert_eq!(self.cluster.rank_of(daemon.id), given, "a rank that its ring does not give");
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
        assert_eq!(ring.epoch, epoch);
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
    assert!(before.rings <= after.rings && after.rings <= options().tries, "{after:?}");
    let unbound = after.state == JobState::Queued && after.pin.is_none();
    assert!(
        before.pin.is_none() || before.pin == after.pin || unbound,
        "the pin changed: {before:?} {after:?}"
    );
}

/// What of a job is stored: the phases of its ranks are not.
pub(crate) fn row(job: &Job) -> Job {
    let mut row = job.clone();
    if let Some(ring) = row.ring.as_mut().map(Arc::make_mut) {
        ring.patience = Time::default();
        ring.broken = None;
        for member in &mut ring.members {
            member.phase = Phase::Assigned;
            member.last_step = 0;
        }
    }
    if let Some(stop) = &mut row.stop {
        stop.deadline = Time::default();
    }
    row
}

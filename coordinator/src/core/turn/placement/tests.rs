//! Placement over indexes against the simplest way to say the same: look at all jobs and all workers each time.

use std::sync::Arc;

use proptest::prelude::*;
use ringtune_shared::ids::{JobId, WorkerId};
use ringtune_shared::job::{JobSpec, MixedPrecision, parse_job_toml};
use ringtune_shared::version::Dialect;

use super::{Decision, place, problem};
use crate::core::scheduler::{Candidate, Listed};
use crate::core::{
    Capabilities, Cluster, Fault, HeldRank, Hello, Input, Job, JobState, NewJob, Options, Phase, Pin,
    RankReport, Recovered, Sender, SessionId, Time, Worker, WorkerState,
};

fn spec(world_size: u8, min_world_size: u8) -> Arc<JobSpec> {
    let spec = parse_job_toml(&format!(
        "kind = \"textual_inversion\"\n[model]\nbase = \"/models/sd\"\n[data]\nimages = \"/images\"\n\
         [train]\nplaceholder_token = \"<star>\"\ninitializer_token = \"star\"\n\
         [cluster]\nworld_size = {world_size}\nmin_world_size = {min_world_size}\n"
    ));
    Arc::new(spec.unwrap())
}

fn candidates(cluster: &Cluster, wanted: impl Fn(&Worker) -> bool) -> Vec<Candidate> {
    let wanted = cluster.workers().filter(|worker| worker.rests_until.is_none() && wanted(worker));
    wanted
        .map(|worker| Candidate {
            worker: worker.id,
            host_name: worker.host_name.clone(),
            numerics_class: worker.capabilities.numerics_class.clone(),
            bf16: worker.capabilities.bf16,
            threads: worker.capabilities.threads,
        })
        .collect()
}

/// What becomes of each queued job, by the rule in words: the oldest first; a job that could run if all connected workers
/// were free keeps those behind it waiting, one that could not even then lets them pass.
fn reference(cluster: &Cluster) -> Vec<(JobId, Result<Vec<WorkerId>, String>)> {
    let mut free = candidates(cluster, |worker| cluster.worker_state(worker) == WorkerState::Idle);
    let connected = candidates(cluster, |worker| worker.session.is_some());
    let resting = cluster.workers().filter(|one| one.session.is_some() && one.rests_until.is_some()).count();
    let mut queue: Vec<&Arc<Job>> = cluster.jobs().filter(|job| job.state == JobState::Queued).collect();
    queue.sort_by_key(|job| job.number);
    let mut ahead = None;
    let mut outcome = Vec::new();
    for job in queue {
        let decision = match (place(&problem(job), &Listed(&free)), ahead) {
            (Decision::Place(placement), None) => {
                free.retain(|one| !placement.members.contains(&one.worker));
                Ok(placement.members)
            }
            (Decision::Place(_), Some(first)) => Err(format!("waiting for workers: job {first} comes first")),
            (Decision::Wait(missing), _) => {
                if matches!(place(&problem(job), &Listed(&connected)), Decision::Place(_)) {
                    ahead = ahead.or(Some(job.id));
                }
                let suffix = format!("; {resting} more are resting after they failed to prepare");
                Err(if resting > 0 { missing + &suffix } else { missing })
            }
        };
        outcome.push((job.id, decision));
    }
    outcome
}

/// Queued jobs that did steps before, each with its class and the fewest workers that it starts on.
fn going_on(jobs: &[(u8, u8)]) -> Recovered {
    let mut cluster = Cluster::recover(Options::default(), Recovered::default(), Time(0));
    let made = jobs.iter().map(|(class, size)| {
        let (id, spec) = (JobId::new(), spec(*size, *size));
        let new = NewJob { id, spec, request: None, resumed: None, queue: Arc::default(), trace: None };
        cluster.apply(Input::CreateJob(new), Time(0)).unwrap();
        let mut job = (**cluster.job(id).unwrap()).clone();
        let pin = Pin {
            numerics_class: format!("class-{class}"),
            threads_per_rank: 1,
            precision: MixedPrecision::No,
            version: String::new(),
        };
        (job.pin, job.step) = (Some(Arc::new(pin)), 5);
        job
    });
    let jobs: Vec<Job> = made.collect();
    Recovered { last_number: jobs.len() as u64, jobs, ..Recovered::default() }
}

struct World {
    cluster: Cluster,
    now: Time,
    workers: Vec<Sender>,
    jobs: Vec<JobId>,
    sessions: u64,
}

impl World {
    fn apply(&mut self, input: Input) {
        self.now = self.now.plus(1);
        let _ = self.cluster.apply(input, self.now);
        self.cluster.check_indexes().unwrap();
    }

    fn hello(&mut self, class: u8, host: u8) {
        self.sessions += 1;
        let (worker, session) = (WorkerId::new(), SessionId(self.sessions));
        let capabilities = Capabilities {
            version: ringtune_shared::version::VERSION.to_owned(),
            numerics_class: format!("class-{}", class % 3),
            threads: 1,
            ..Capabilities::default()
        };
        let hello = Hello {
            worker,
            incarnation: 1,
            host_name: format!("host-{}", host % 4),
            address: format!("host:{session:?}"),
            capabilities: Arc::new(capabilities),
            held: Vec::new(),
            dialect: Dialect::ours(),
        };
        self.apply(Input::Hello { session, hello });
        self.workers.push(Sender { worker, session });
    }

    /// A rank of a ring that prepares fails by a fault of its node: its job is queued again, bound to its class if it did
    /// steps before, unless it was tried too often.
    fn fail_a_node(&mut self, which: u8) {
        let preparing = self.cluster.jobs().filter(|job| job.state == JobState::Preparing);
        let ring = preparing.filter_map(|job| Some((job.id, job.ring.clone()?)));
        let rings: Vec<_> = ring.collect();
        let Some((job, ring)) = rings.get(usize::from(which) % rings.len().max(1)) else { return };
        let rank = usize::from(which) % ring.members.len();
        let worker = ring.members[rank].worker;
        let Some(sender) = self.workers.iter().find(|one| one.worker == worker).copied() else { return };
        let held = HeldRank {
            phase: Phase::Failed,
            fault: Fault::Node,
            ..HeldRank::of(*job, ring.epoch, Some(rank as u32))
        };
        self.apply(Input::RankReport(sender, RankReport { held, progress: None }));
    }

    /// Places, and compares.
    fn place(&mut self) {
        let before = self.cluster.clone();
        let expected = reference(&before);
        self.cluster.place(self.now);
        self.cluster.check_indexes().unwrap();
        for (id, outcome) in &expected {
            let job = self.cluster.job(*id).unwrap();
            let ring =
                job.ring.as_ref().map(|ring| ring.members.iter().map(|one| one.worker).collect::<Vec<_>>());
            assert_eq!(ring.as_ref(), outcome.as_ref().ok(), "{id}");
        }
        for (id, outcome) in reference(&self.cluster) {
            assert_eq!(self.cluster.waiting().reason(id), outcome.err(), "{id}");
        }
    }
}

proptest! {
    #[test]
    fn indexes_decide_as_a_look_at_everything_does(
        bound in prop::collection::vec((0u8..3, 1u8..4), 0..6),
        steps in prop::collection::vec((0u8..15, any::<u8>(), any::<u8>()), 1..100),
    ) {
        let recovered = going_on(&bound);
        let jobs = recovered.jobs.iter().map(|job| job.id).collect();
        let cluster = Cluster::recover(Options::default(), recovered, Time(0));
        let mut world = World { cluster, now: Time(1), workers: vec![], jobs, sessions: 0 };
        for (what, one, other) in steps {
            match what {
                0..3 => world.hello(one, other),
                3 if !world.workers.is_empty() => {
                    let sender = world.workers[usize::from(one) % world.workers.len()];
                    world.apply(Input::SessionEnded(sender));
                }
                4 if !world.jobs.is_empty() => {
                    let job = world.jobs[usize::from(one) % world.jobs.len()];
                    world.apply(Input::CancelJob { job, reason: String::new() });
                }
                5 => {
                    world.now = world.now.plus(20_000);
                    world.apply(Input::Tick);
                }
                6..9 => {
                    let id = JobId::new();
                    let spec = spec(one % 6 + 1, other % (one % 6 + 1) + 1);
                    world.apply(Input::CreateJob(NewJob { id, spec, request: None, resumed: None, queue: Arc::default(), trace: None }));
                    world.jobs.push(id);
                }
                9 if !world.workers.is_empty() => {
                    // It lets go of what it was told to.
                    let sender = world.workers[usize::from(one) % world.workers.len()];
                    world.apply(Input::Heartbeat(sender, Vec::new()));
                }
                10..13 => world.fail_a_node(one),
                _ => world.place(),
            }
        }
        world.place();
    }
}

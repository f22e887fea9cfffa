//! Invariants, and the disk that shows some of them.

use std::collections::{BTreeMap, BTreeSet};

use ringtune_coordinator::core::{
    Account, ArtifactRecord, Down, Effects, Failure, Job, JobState, Recovered, StepRecord, Write,
};
use ringtune_shared::ids::{ContentHash, JobId, WorkerId};
use ringtune_shared::job::{LiveOrder, Order};
use ringtune_worker::session::Assignment;

use crate::{chain, coordinator::short, world::World};

/// The learning rate of a step, by what was ordered.
pub(crate) fn rate_of(step: u64, orders: &[LiveOrder]) -> f64 {
    let holds = |order: &&LiveOrder| order.settled.is_some_and(|after| after < step);
    let newest = orders.iter().filter(holds).max_by_key(|order| (order.settled, order.number));
    match newest.map(|order| &order.order) {
        Some(Order::LearningRate(rate)) => *rate,
        _ => 1e-3,
    }
}

/// State that survives the coordinator.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) steps: BTreeMap<JobId, Vec<StepRecord>>,
    pub(crate) files: BTreeMap<(JobId, String), ArtifactRecord>,
    drained: BTreeSet<WorkerId>,
    accounts: BTreeMap<String, Account>,
    /// Files of which a worker was told that they are there, or were.
    acknowledged: Vec<(JobId, String, ContentHash)>,
}

impl Disk {
    pub(crate) fn recover(&self) -> Recovered {
        let jobs: Vec<Job> = self.jobs.values().filter(|job| !job.state.is_terminal()).cloned().collect();
        let lives = |id: &JobId| jobs.iter().any(|job| job.id == *id);
        let files = self.files.values().filter(|file| lives(&file.job));
        let checkpoints = files.filter_map(|file| Some((file.job, file.checkpoint()?))).collect();
        let steps = self.steps.iter().filter(|(id, _)| lives(id));
        let hashes = steps
            .flat_map(|(id, steps)| steps.iter().filter_map(|step| Some((*id, step.step, step.state?))))
            .collect();
        let last_number = self.jobs.values().map(|job| job.number).max().unwrap_or(0);
        let drained = self.drained.iter().copied().collect();
        let accounts = self.accounts.clone().into_iter().collect();
        Recovered { jobs, checkpoints, hashes, drained, accounts, last_number }
    }

    /// The steps of a job's checkpoints that are there, the oldest first.
    pub(crate) fn checkpoints_of(&self, job: JobId) -> Vec<u64> {
        let files = self.files.values().filter(|file| file.job == job);
        let mut steps: Vec<u64> = files.filter_map(ArtifactRecord::checkpoint).map(|one| one.step).collect();
        steps.sort_unstable();
        steps
    }

    fn newest(&self, job: JobId) -> Option<u64> {
        self.checkpoints_of(job).last().copied()
    }
}

impl World {
    /// Writes a commit; each change of the disk is checked.
    pub(crate) fn write(&mut self, all: &[Effects]) {
        for write in all.iter().flat_map(|effects| &effects.writes) {
            match write {
                Write::InsertJob(job) => self.write_job(job),
                Write::UpdateJob(job) => self.write_job(job),
                Write::UpdateProgress { job, step, loss, validation, last_sequence, artifacts, updated } => {
                    let row = self.coordinator.disk.jobs.get_mut(job).expect("a row");
                    (row.step, row.loss, row.validation, row.updated) = (*step, *loss, *validation, *updated);
                    (row.last_sequence, row.artifacts) = (*last_sequence, *artifacts);
                }
                Write::AppendEvent(event) => {
                    use ringtune_coordinator::core::EventBody;
                    if let EventBody::Log { message, .. } = &event.body {
                        self.tell(|| format!("{}: {message}", short(event.job)));
                    }
                }
                Write::AppendStep(job, step) => self.write_step(*job, *step),
                Write::SetDraining(worker, true) => drop(self.coordinator.disk.drained.insert(*worker)),
                Write::SetDraining(worker, false) => drop(self.coordinator.disk.drained.remove(worker)),
                Write::SetAccount(owner, Some(account)) => {
                    self.coordinator.disk.accounts.insert(owner.clone(), *account);
                }
                Write::SetAccount(owner, None) => drop(self.coordinator.disk.accounts.remove(owner)),
                Write::PutArtifact(file) => {
                    self.tell(|| format!("{} has {}", short(file.job), file.name));
                    self.coordinator.disk.files.insert((file.job, file.name.clone()), file.clone());
                }
                Write::DropArtifact(job, name) => self.drop_file(*job, name),
            }
        }
    }

    fn write_job(&mut self, job: &Job) {
        let row = job.as_stored();
        let (id, state, failure) = (row.id, row.state, row.failure);
        let before = self.coordinator.disk.jobs.insert(id, row).map(|before| before.state);
        assert!(before.is_none_or(|before| !before.is_terminal()), "{} changes after its end", short(id));
        if before != Some(state) {
            self.tell(|| format!("{} is {state}: {}", short(id), job.reason));
        }
        assert_ne!(failure, Some(Failure::Diverged), "{}: {}", short(id), job.reason);
        assert_ne!(state, JobState::Failed, "{} failed: {}", short(id), job.reason);
    }

    /// The history has every step once, in its order, with the state that it has where nothing goes wrong.
    fn write_step(&mut self, job: JobId, step: StepRecord) {
        let steps = self.coordinator.disk.steps.entry(job).or_default();
        let last = steps.last().map_or(0, |last| last.step);
        steps.push(step);
        assert!(
            step.step == last + 1,
            "{}: step {} comes after {last} in the history",
            short(job),
            step.step
        );
        self.tell(|| format!("{}: step {} of epoch {} is stored", short(job), step.step, step.epoch));
        let right = self.right(job, step.step);
        assert_eq!(
            step.state,
            Some(chain::hash(right)),
            "{}: the state stored with step {}",
            short(job),
            step.step
        );
    }

    fn right(&mut self, job: JobId, step: u64) -> chain::State {
        self.wanted(job).right[step as usize]
    }

    fn drop_file(&mut self, job: JobId, name: &str) {
        self.tell(|| format!("{} has {name} no more", short(job)));
        let before = self.coordinator.disk.newest(job);
        self.coordinator.disk.files.remove(&(job, name.to_owned()));
        let after = self.coordinator.disk.newest(job);
        assert!(after >= before, "{}: {name} is taken off, and was the newest", short(job));
    }

    /// A worker was told that its file is there.
    pub(crate) fn acknowledged(&mut self, job: JobId, name: String, hash: ContentHash) {
        if let Some(step) = ringtune_shared::checkpoint::step_of_name(&name) {
            let wanted = self.wanted(job);
            wanted.kept = wanted.kept.max(step);
        }
        self.coordinator.disk.acknowledged.push((job, name, hash));
        self.check_acknowledged();
    }

    /// Checks that each acknowledged file is there, or its replacement.
    pub(crate) fn check_acknowledged(&self) {
        let disk = &self.coordinator.disk;
        for (job, name, _) in &disk.acknowledged {
            let step = ringtune_shared::checkpoint::step_of_name(name);
            let newer = step.is_some() && disk.newest(*job) >= step;
            let there = disk.files.contains_key(&(*job, name.clone()));
            assert!(there || newer, "{}: {name} was acknowledged, and is not there", short(*job));
        }
        for wanted in &self.jobs {
            assert!(
                disk.jobs.contains_key(&wanted.id),
                "{} was accepted, and is not there",
                short(wanted.id)
            );
        }
    }

    /// Checks that a worker is not told of stored steps that are not.
    pub(crate) fn check_word(&self, down: &Down) {
        if let Down::StepsStored(job, _, step) = down {
            let steps = self.coordinator.disk.steps.get(job);
            let last = steps.and_then(|steps| steps.last()).map_or(0, |last| last.step);
            assert!(*step <= last, "{}: step {step} is said to be stored, {last} are", short(*job));
        }
    }

    /// Checks that a rank's settled state equals all others'.
    pub(crate) fn check_state(&mut self, worker: usize) {
        let Some(life) = &self.nodes[worker].life else { return };
        let (job, step, state, key) = (life.key.job, life.step, life.state, life.ring_key());
        let right = self.right(job, step);
        assert_eq!(state, right, "worker {worker} has another state after step {step} of {}", short(job));
        // No member of its ring has done more before it came in.
        let Some(ring) = self.rings.get(&key) else { return };
        for (rank, seat) in ring.seats.iter().enumerate() {
            let Some(seat) = seat.as_ref().filter(|seat| seat.open) else { continue };
            let other = ring.members[rank];
            if let Some(other) = self.nodes[other].life_is(seat.life).filter(|other| other.ring_key() == key)
            {
                let ahead = other.step.saturating_sub(step);
                assert!(
                    ahead <= 1,
                    "rank {rank} of {} is {ahead} steps ahead of worker {worker}",
                    short(job)
                );
            }
        }
    }

    /// A step that is done again has the learning rate that is stored with it.
    pub(crate) fn check_rate(&mut self, worker: usize, step: u64, rate: f64) {
        let job = self.life(worker).key.job;
        let stored = self.coordinator.disk.steps.get(&job).and_then(|steps| steps.get(step as usize - 1));
        let stored = stored.map(|stored| stored.learning_rate);
        assert!(
            stored.is_none_or(|stored| stored == rate),
            "worker {worker} does step {step} of {} with rate {rate}, {stored:?} is stored",
            short(job)
        );
    }

    /// No ring goes on below what is kept; but for the one step by which those may be behind who are left, and do it again.
    pub(crate) fn check_entered(&self, worker: usize) {
        let Some(life) = &self.nodes[worker].life else { return };
        let (job, step) = (life.key.job, life.step);
        // A worker that was frozen may be in an old ring.
        let is_present = self.coordinator.disk.jobs[&job].rings == life.ring.epoch.0;
        let newest = self.coordinator.disk.newest(job);
        assert!(
            !is_present || newest <= Some(step + 1),
            "{}: a ring is entered after step {step}, {newest:?} is kept",
            short(job)
        );
    }

    /// A ring from the queue goes on from the newest checkpoint that anybody was told is there.
    pub(crate) fn check_resumed(&mut self, job: JobId, given: &Assignment, step: u64) {
        let stored = self.coordinator.disk.steps.get(&job).and_then(|steps| steps.last());
        let stored = stored.map_or(0, |last| last.step);
        assert!(step <= stored, "{} goes on from {step}, {stored} is stored", short(job));
        let kept = self.wanted(job).kept;
        let rings = self.coordinator.disk.jobs[&job].rings;
        // A worker that was frozen may hear of an old ring.
        if given.rank.is_some() && given.ring.epoch.0 == rings {
            assert!(
                step >= kept || given.ring.epoch.0 == 1,
                "{} goes on from {step}, {kept} is kept",
                short(job)
            );
        }
    }

    /// Checks that no worker is in two rings.
    pub(crate) fn check_cluster(&self) {
        let Some(cluster) = &self.coordinator.cluster else { return };
        let mut placed: Vec<WorkerId> = Vec::new();
        for job in cluster.jobs() {
            let Some(ring) = &job.ring else { continue };
            for worker in ring.workers() {
                assert!(!placed.contains(&worker), "worker {worker} is in two rings");
                placed.push(worker);
            }
        }
    }

    /// Nothing goes wrong any more, every job has ended, and nobody holds anything of one.
    pub(crate) fn is_over(&self) -> bool {
        self.calm
            && self.coordinator.cluster.as_ref().is_some_and(|cluster| cluster.jobs().next().is_none())
            && self
                .nodes
                .iter()
                .all(|node| node.alive && node.session.held().is_empty() && node.life.is_none())
    }

    /// For people.
    pub(crate) fn what_is_left(&self) -> String {
        let jobs = self.coordinator.cluster.iter().flat_map(|cluster| cluster.jobs());
        let jobs: Vec<String> = jobs
            .map(|job| format!("{} is {} at step {}: {:?}", short(job.id), job.state, job.step, job.ring))
            .collect();
        let held: Vec<String> = self
            .nodes
            .iter()
            .enumerate()
            .map(|(worker, node)| {
                let at = node.life.as_ref().map(|life| (&life.at, life.key, life.ring.epoch));
                format!("worker {worker} holds {:?} and is at {at:?}", node.session.held())
            })
            .collect();
        format!("{}\n{}", jobs.join("\n"), held.join("\n"))
    }

    /// Each job has all its steps and its results, unless it was cancelled.
    pub(crate) fn check_the_end(&mut self) {
        self.check_acknowledged();
        for wanted in &self.jobs {
            let row = &self.coordinator.disk.jobs[&wanted.id];
            assert!(row.state.is_terminal(), "{} is {}", short(wanted.id), row.state);
            if wanted.cancelled {
                continue;
            }
            assert_eq!(row.state, JobState::Succeeded, "{}: {}", short(wanted.id), row.reason);
            let stored = self.coordinator.disk.steps.get(&wanted.id).into_iter().flatten();
            let orders: Vec<LiveOrder> = row.orders.iter().map(|order| order.live.clone()).collect();
            for step in stored.clone() {
                let rate = rate_of(step.step, &orders);
                assert!(step.learning_rate == rate, "{}: {step:?}, {rate} was ordered", short(wanted.id));
            }
            let steps: BTreeSet<u64> = stored.map(|step| step.step).collect();
            assert_eq!(steps.len() as u64, wanted.steps, "steps of {}", short(wanted.id));
            let results = (wanted.id, "learned_embeds.bin".to_owned());
            assert!(
                self.coordinator.disk.files.contains_key(&results),
                "{} has no results",
                short(wanted.id)
            );
        }
    }
}

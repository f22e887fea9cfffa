//! Why queued jobs wait, and until when: computed when somebody asks.

use std::cell::OnceCell;

use ringtune_shared::ids::JobId;

use super::cluster::Cluster;
use super::job::Job;
use super::job_state::JobState;
use super::precedence::Precedence;
use super::queue_walk::QueueWalk;
use super::scheduler::{ClassWish, FreeWorkers as _, Problem, choose_class};
use super::time::Time;

/// Why a job waits that another one keeps waiting, for whoever is not to know which.
pub const BEHIND_ANOTHER: &str = "waiting for workers: another job comes first";

/// What a job in the queue waits for. Workers are counted that could take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Workers that it needs to start.
    pub needed: u32,
    /// Those of one numerics class that are free, at most.
    pub free: usize,
    /// Those that there would be if no other job had one.
    pub usable: usize,
    /// Jobs before it in the queue.
    pub ahead: usize,
    /// The first of the jobs that the free workers are kept for.
    pub behind: Option<JobId>,
    /// Since when it waits.
    pub since: Time,
    /// When it may start, by what the jobs that run have left to do and what is needed before it. None: nobody can say.
    pub start: Option<Time>,
}

/// The answer for any number of jobs, as of one state of the cluster.
pub struct Waiting<'a> {
    cluster: &'a Cluster,
    /// Which free workers are kept, and for which jobs.
    walk: QueueWalk,
    /// All jobs in the queue, in their order, with the workers that each needs: found out once it is asked for.
    order: OnceCell<Vec<(Precedence, &'a Job)>>,
}

impl<'a> Waiting<'a> {
    fn of(cluster: &'a Cluster) -> Self {
        let mut walk = QueueWalk::default();
        while let Some(job) = walk.next(cluster).and_then(|id| cluster.jobs.get(&id)) {
            walk.keep(cluster, job);
        }
        Self { cluster, walk, order: OnceCell::new() }
    }

    /// Tells a job, as far as it is in the queue, why it waits.
    pub fn explain(&self, job: &mut Job) {
        // A job that was read from the store lacks what only memory has of it.
        if let (Some(reason), Some(live)) = (self.reason(job.id), self.cluster.jobs.get(&job.id)) {
            let wait = self.wait(live);
            (job.reason, job.waits_behind, job.wait) = (reason, wait.behind.is_some(), Some(wait));
        }
    }

    fn wait(&self, job: &Job) -> Wait {
        let (_, needed) = job.ranks();
        let open = self.cluster.open_to(job);
        let fits = |class: &str| job.bound_to().is_none_or(|bound| bound == class);
        let free = open.classes().filter(|(class, _)| fits(class)).map(|(_, free)| free).max();
        let before = self.before(job);
        Wait {
            needed,
            free: free.unwrap_or(0),
            usable: open.usable(job),
            ahead: before.len(),
            behind: self.first(job),
            since: job.waits_since,
            start: self.start(job, before),
        }
    }

    /// The jobs before this one in the queue.
    fn before(&self, job: &Job) -> &[(Precedence, &'a Job)] {
        let order = self.order.get_or_init(|| {
            let queued = self.cluster.jobs().filter(|job| job.state == JobState::Queued);
            let queued = queued.map(|job| (self.cluster.precedence_of(job), &**job));
            let mut order: Vec<(Precedence, &Job)> = queued.collect();
            order.sort_by_key(|(precedence, _)| *precedence);
            order
        });
        let own = self.cluster.precedence_of(job);
        order.get(..order.partition_point(|(precedence, _)| *precedence < own)).unwrap_or_default()
    }

    /// When a job may start: once as many workers of a class are free as it needs, and as those before it need that could have
    /// them. Jobs that run free theirs at their end.
    fn start(&self, job: &Job, before: &[(Precedence, &'a Job)]) -> Option<Time> {
        let mut earliest: Option<Time> = None;
        for class in
            self.cluster.pool.classes().filter(|class| job.bound_to().is_none_or(|bound| bound == *class))
        {
            let rivals =
                before.iter().filter(|(_, other)| other.bound_to().is_none_or(|bound| bound == class));
            let ahead: u64 = rivals.map(|(_, other)| u64::from(other.ranks().1)).sum();
            let needed = usize::try_from(ahead + u64::from(job.ranks().1)).unwrap_or(usize::MAX);
            let mut free: Vec<Time> = self.free_times(job, class).collect();
            free.sort_unstable();
            let time = needed.checked_sub(1).and_then(|last| free.get(last)).copied();
            earliest = earliest.into_iter().chain(time).min();
        }
        earliest
    }

    /// When each worker of a class that could take the job will be free, as far as that is known.
    fn free_times(&self, job: &Job, class: &str) -> impl Iterator<Item = Time> {
        let (cluster, now) = (self.cluster, self.cluster.latest);
        let usable = cluster.available().filter(move |(worker, availability)| {
            availability.usable() && worker.capabilities.numerics_class == class && job.takes(worker)
        });
        usable.filter_map(move |(worker, _)| match cluster.place_of(worker.id) {
            None => Some(now),
            Some(place) => cluster.job(place.job())?.end(now),
        })
    }

    /// The job that comes first where one could run, but the workers are kept for others: the first of those.
    fn first(&self, job: &Job) -> Option<JobId> {
        let (problem, open) = (problem(job), self.cluster.open_to(job));
        let own = self.cluster.precedence_of(job);
        let (all, left) = (open.clone(), open.without_reserved(self.walk.kept(), own));
        if choose_class(&problem, &all).is_err() || choose_class(&problem, &left).is_ok() {
            return None;
        }
        let fits = |class: &str| job.bound_to().is_none_or(|bound| bound == class);
        let enough = all.classes().filter(|(_, free)| *free >= problem.min_world_size as usize);
        let enough: Vec<&str> = enough.map(|(class, _)| class).filter(|class| fits(class)).collect();
        let keepers = self
            .walk
            .kept()
            .iter()
            .filter(|((class, needs), _)| enough.contains(&class.as_str()) && all.has_free(class, needs));
        keepers.map(|(_, keeper)| keeper).filter(|(before, _)| *before < own).min().map(|(_, first)| *first)
    }

    /// Why a job waits; none where it is not in the queue.
    pub fn reason(&self, id: JobId) -> Option<String> {
        let job = self.cluster.jobs.get(&id).filter(|job| job.state == JobState::Queued)?;
        let (room, (_, needed)) = (self.cluster.room_of(&job.queue.owner), job.ranks());
        if room < needed {
            let limit = self.cluster.options.limits.owner_ranks;
            return Some(format!(
                "waiting for workers: its owner holds {} ranks, {needed} more are needed; allowed: {limit}, by \
                 limits.owner_ranks",
                self.cluster.shares.held(&job.queue.owner)
            ));
        }
        let open = self.cluster.open_to(job);
        if let Err(mut missing) = choose_class(&problem(job), &open) {
            if let Some(constraints) = open.needs().constraints() {
                let (fitting, all) = (open.usable(job), self.cluster.pool.connected());
                missing += &format!("; {fitting} of {all} workers have {constraints}");
            }
            let (refusing, resting) = (open.left_out(), self.cluster.pool.resting() + open.resting());
            if refusing > 0 {
                missing += &format!("; {refusing} more keep from the job what it asks for");
            }
            if resting > 0 {
                missing += &format!("; {resting} more are resting after they failed to prepare");
            }
            return Some(missing);
        }
        Some(match self.first(job) {
            Some(first) => format!("waiting for workers: job {first} comes first"),
            None => "submitted".to_owned(),
        })
    }
}

impl Job {
    /// When it will have done all its steps, at the pace of its ring. None: it does none, or has done too few of them.
    fn end(&self, now: Time) -> Option<Time> {
        let (since, first) = self.ring.as_ref()?.paced?;
        let done = self.step.checked_sub(first).filter(|done| *done > 0)?;
        let left = self.total_steps().saturating_sub(self.step);
        let took = now.0.saturating_sub(since.0).max(0) as f64;
        Some(now.plus((took / done as f64 * left as f64) as i64))
    }
}

impl Cluster {
    /// Why queued jobs wait, as of now.
    pub fn waiting(&self) -> Waiting<'_> {
        Waiting::of(self)
    }
}

/// What a job wishes for: what its first ring had, or else what its checkpoint's steps were computed on, or else what its
/// spec says.
pub(super) fn problem(job: &Job) -> Problem<'_> {
    let spec = &job.spec;
    let (class, decided_threads, precision) = match (&job.pin, &job.resumed) {
        (Some(pin), _) => (ClassWish::Only(&pin.numerics_class), Some(pin.threads_per_rank), pin.precision),
        (None, Some(resumed)) => {
            let (numerics, wanted) = (&resumed.numerics, spec.common.cluster.threads_per_rank);
            let threads = if wanted == 0 { numerics.threads_per_rank } else { wanted };
            (ClassWish::Preferred(&numerics.class), Some(threads), spec.mixed_precision())
        }
        (None, None) => (ClassWish::Any, None, spec.mixed_precision()),
    };
    let (world_size, min_world_size) = job.ranks();
    Problem {
        world_size,
        min_world_size,
        precision,
        threads_per_rank: decided_threads.unwrap_or(spec.common.cluster.threads_per_rank),
        class,
        topology: spec.common.cluster.wanted_topology(),
    }
}

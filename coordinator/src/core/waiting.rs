//! Why queued jobs wait, and until when: computed when somebody asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ringtune_shared::ids::JobId;

use super::cluster::Cluster;
use super::job::{Job, Wait};
use super::job_state::JobState;
use super::needs::{Abilities, Needs};
use super::precedence::Precedence;
use super::queue_walk::QueueWalk;
use super::scheduler::{ClassWish, FreeWorkers as _, Problem, choose_class};
use super::time::Time;

/// Why a job waits that another one keeps waiting, for whoever is not to know which.
pub const BEHIND_ANOTHER: &str = "waiting for workers: another job comes first";

/// How long the job waits that waits for longest, of one owner and one numerics class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongestWait {
    /// Whose.
    pub owner: String,
    /// What the job is bound to; none: any will do.
    pub class: Option<String>,
    /// Up to now.
    pub milliseconds: i64,
}

/// When workers are free, the first ones first.
type FreeTimes = BTreeMap<(Needs, String), Arc<[Time]>>;

/// All jobs in the queue.
struct Order {
    /// Their places, in their order.
    jobs: Vec<Precedence>,
    /// By class: how many workers of it the jobs before each could take to start, one entry more than there are jobs.
    needed: BTreeMap<String, Vec<usize>>,
}

/// How many jobs are before one, and when workers are free, as of one state of the cluster. What it takes a look at all jobs and
/// workers to find out is found out once it is asked for, and may serve for a moment afterwards: see `service/outlooks.rs`.
pub struct Outlook {
    cluster: Cluster,
    order: OnceLock<Order>,
    /// By what jobs need of workers, and by class.
    free: Mutex<FreeTimes>,
}

/// The answer for any number of jobs, as of one state of the cluster.
pub struct Waiting<'a> {
    cluster: &'a Cluster,
    /// Which free workers are kept, and for which jobs.
    walk: QueueWalk,
    outlook: Arc<Outlook>,
}

impl Outlook {
    /// As of this state.
    pub fn of(cluster: &Cluster) -> Self {
        Self { cluster: cluster.clone(), order: OnceLock::new(), free: Mutex::default() }
    }

    fn order(&self) -> &Order {
        self.order.get_or_init(|| {
            let queued = self.cluster.jobs().filter(|job| job.state == JobState::Queued);
            let queued = queued.map(|job| (self.cluster.precedence_of(job), &**job));
            let mut jobs: Vec<(Precedence, &Job)> = queued.collect();
            jobs.sort_by_key(|(precedence, _)| *precedence);
            let needed = self.cluster.pool.classes().map(|class| {
                let of_class = jobs.iter().scan(0, |sum, (_, job)| {
                    *sum += if may_have(job, class) { job.ranks().1 as usize } else { 0 };
                    Some(*sum)
                });
                (class.to_owned(), std::iter::once(0).chain(of_class).collect())
            });
            let needed = needed.collect();
            Order { jobs: jobs.into_iter().map(|(precedence, _)| precedence).collect(), needed }
        })
    }

    /// How many jobs are before one with this place.
    fn ahead(&self, own: Precedence) -> usize {
        self.order().jobs.partition_point(|precedence| *precedence < own)
    }

    /// When a job with this place may start: once as many workers of a class are free as it needs, and as those before it need that
    /// could have them. Jobs that run free theirs at their end.
    fn start(&self, job: &Job, own: Precedence, needs: &Needs) -> Option<Time> {
        let ahead = self.ahead(own);
        let classes = self.order().needed.iter().filter(|(class, _)| may_have(job, class));
        let starts = classes.filter_map(|(class, needed)| {
            let last = needed.get(ahead)? + job.ranks().1 as usize - 1;
            self.free_times(needs, class).get(last).copied()
        });
        starts.min()
    }

    /// When the workers of a class are free that have what is needed, as far as that is known: the first ones first.
    fn free_times(&self, needs: &Needs, class: &str) -> Arc<[Time]> {
        let key = (needs.clone(), class.to_owned());
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let times = free.entry(key).or_insert_with(|| {
            let (cluster, now) = (&self.cluster, self.cluster.latest);
            let usable = cluster.available().filter(|(worker, availability)| {
                let fits = worker.capabilities.numerics_class == class;
                availability.usable() && fits && needs.are_met(&Abilities::of(worker))
            });
            let times = usable.filter_map(|(worker, _)| match cluster.place_of(worker.id) {
                None => Some(now),
                Some(place) => cluster.job(place.job())?.end(now),
            });
            let mut times: Vec<Time> = times.collect();
            times.sort_unstable();
            times.into()
        });
        Arc::clone(times)
    }
}

impl<'a> Waiting<'a> {
    fn of(cluster: &'a Cluster, outlook: Arc<Outlook>) -> Self {
        let mut walk = QueueWalk::default();
        while let Some(job) = walk.next(cluster).and_then(|id| cluster.jobs.get(&id)) {
            walk.keep(cluster, job);
        }
        Self { cluster, walk, outlook }
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
        let free = open.classes().filter(|(class, _)| may_have(job, class)).map(|(_, free)| free).max();
        let own = self.cluster.precedence_of(job);
        Wait {
            needed,
            free: free.unwrap_or(0),
            usable: open.usable(job),
            ahead: self.outlook.ahead(own),
            behind: self.first(job),
            since: job.waits_since,
            start: self.outlook.start(job, own, open.needs()),
        }
    }

    /// The job that comes first where one could run, but the workers are kept for others: the first of those.
    fn first(&self, job: &Job) -> Option<JobId> {
        let (problem, open) = (problem(job), self.cluster.open_to(job));
        let own = self.cluster.precedence_of(job);
        let (all, left) = (open.clone(), open.without_reserved(self.walk.kept(), own));
        if choose_class(&problem, &all).is_err() || choose_class(&problem, &left).is_ok() {
            return None;
        }
        let enough = all.classes().filter(|(_, free)| *free >= problem.min_world_size as usize);
        let enough: Vec<&str> = enough.map(|(class, _)| class).filter(|class| may_have(job, class)).collect();
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

/// Whether a job may have workers of a class.
fn may_have(job: &Job, class: &str) -> bool {
    job.bound_to().is_none_or(|bound| bound == class)
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
    /// How long the jobs wait that wait for longest, of each owner and class: at most so many of them, the longest first.
    pub fn longest_waits(&self, now: Time, most: usize) -> Vec<LongestWait> {
        let mut since: BTreeMap<(&str, Option<&str>), Time> = BTreeMap::new();
        for job in self.jobs().filter(|job| job.state == JobState::Queued) {
            let first = since.entry((&job.queue.owner, job.bound_to())).or_insert(job.waits_since);
            *first = (*first).min(job.waits_since);
        }
        let mut waits: Vec<(Time, (&str, Option<&str>))> =
            since.into_iter().map(|(who, since)| (since, who)).collect();
        waits.sort_unstable();
        let wait = |(since, (owner, class)): (Time, (&str, Option<&str>))| LongestWait {
            owner: owner.to_owned(),
            class: class.map(str::to_owned),
            milliseconds: now.0.saturating_sub(since.0).max(0),
        };
        waits.into_iter().take(most).map(wait).collect()
    }

    /// Why queued jobs wait, as of now.
    pub fn waiting(&self) -> Waiting<'_> {
        self.waiting_by(Arc::new(Outlook::of(self)))
    }

    /// As above, where how many are before one and when it starts may be as of a moment ago.
    pub fn waiting_by(&self, outlook: Arc<Outlook>) -> Waiting<'_> {
        Waiting::of(self, outlook)
    }

    /// Jobs in the queue and workers: what it costs to look at all of them.
    pub fn size(&self) -> usize {
        self.count_jobs(JobState::Queued) + self.workers.size()
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

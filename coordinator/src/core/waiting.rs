//! Why queued jobs wait: computed when somebody asks.

use ringtune_shared::ids::JobId;

use super::cluster::Cluster;
use super::job::Job;
use super::job_state::JobState;
use super::queue_walk::QueueWalk;
use super::scheduler::{ClassWish, FreeWorkers as _, Problem, choose_class};

/// Why a job waits that another one keeps waiting, for whoever is not to know which.
pub const BEHIND_ANOTHER: &str = "waiting for workers: another job comes first";

/// The answer for any number of jobs, as of one state of the cluster.
pub struct Waiting<'a> {
    cluster: &'a Cluster,
    /// Which free workers are kept, and for which jobs.
    walk: QueueWalk,
}

impl<'a> Waiting<'a> {
    fn of(cluster: &'a Cluster) -> Self {
        let mut walk = QueueWalk::default();
        while let Some(job) = walk.next(cluster).and_then(|id| cluster.jobs.get(&id)) {
            walk.keep(cluster, job);
        }
        Self { cluster, walk }
    }

    /// Tells a job, as far as it is in the queue, why it waits.
    pub fn explain(&self, job: &mut Job) {
        if let Some(reason) = self.reason(job.id) {
            job.reason = reason;
            job.waits_behind = self.first(job).is_some();
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
        let fits = |class: &str| job.bound_to().is_none_or(|bound| bound == class);
        let enough = all.classes().filter(|(_, free)| *free >= problem.min_world_size as usize);
        let keepers =
            enough.filter(|(class, _)| fits(class)).filter_map(|(class, _)| self.walk.kept().get(class));
        keepers.filter(|(before, _)| *before < own).min().map(|(_, first)| *first)
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
    }
}

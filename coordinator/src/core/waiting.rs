//! Why queued jobs wait: computed when somebody asks.

use ringtune_shared::ids::JobId;

use super::cluster::Cluster;
use super::job::Job;
use super::job_state::JobState;
use super::scheduler::{ClassWish, Problem, choose_class};

/// Why a job waits that another one keeps waiting, for whoever is not to know which.
pub const BEHIND_ANOTHER: &str = "waiting for workers: another job comes first";

/// The answer for any number of jobs, as of one state of the cluster.
pub struct Waiting<'a> {
    cluster: &'a Cluster,
    /// The job that keeps those behind it waiting, with its number.
    first: Option<(u64, JobId)>,
}

impl<'a> Waiting<'a> {
    fn of(cluster: &'a Cluster) -> Self {
        Self { cluster, first: cluster.next_in_queue() }
    }

    /// Tells a job, as far as it is in the queue, why it waits.
    pub fn explain(&self, job: &mut Job) {
        if let Some(reason) = self.reason(job.id) {
            job.reason = reason;
            job.waits_behind = self.is_behind(job);
        }
    }

    /// Whether it could run, but another one comes first.
    fn is_behind(&self, job: &Job) -> bool {
        self.first.is_some_and(|(number, _)| number < job.number)
            && choose_class(&problem(job), &self.cluster.pool.open_to(job)).is_ok()
    }

    /// Why a job waits; none where it is not in the queue.
    pub fn reason(&self, id: JobId) -> Option<String> {
        let job = self.cluster.jobs.get(&id).filter(|job| job.state == JobState::Queued)?;
        if let Err(missing) = choose_class(&problem(job), &self.cluster.pool.open_to(job)) {
            let resting = self.cluster.pool.resting();
            return Some(match resting {
                0 => missing,
                _ => format!("{missing}; {resting} more are resting after they failed to prepare"),
            });
        }
        Some(match self.first {
            Some((number, first)) if number < job.number => {
                format!("waiting for workers: job {first} comes first")
            }
            _ => "submitted".to_owned(),
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

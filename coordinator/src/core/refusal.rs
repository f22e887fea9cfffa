//! Why an input is not accepted.

use ringtune_shared::ids::{Epoch, JobId, WorkerId};
use ringtune_shared::version::Misfit;

/// Between whose a request is and what the client called it.
pub const REQUEST_OWNER: char = '\u{1f}';

/// Why an input was not accepted. The state is as it was before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue is at its limit.
    #[error(
        "{limit} jobs are queued or paused, which is the limit (limits.queued_jobs): cancel one or wait until one starts"
    )]
    QueueFull {
        /// The limit.
        limit: usize,
    },
    /// As many jobs of this owner are queued or paused as may be.
    #[error(
        "{limit} jobs of {owner:?} are queued or paused, which is the limit (limits.owner_queued_jobs): cancel one or wait until one starts"
    )]
    OwnerQueueFull {
        /// Whose.
        owner: String,
        /// The limit.
        limit: usize,
    },
    /// The job needs more ranks than one owner may have.
    #[error("got {needed}; allowed: at most {limit}, which is what one owner may have (limits.owner_ranks)")]
    TooManyRanks {
        /// Ranks that it needs to start.
        needed: u32,
        /// The limit.
        limit: u32,
    },
    /// As many workers are connected as may be.
    #[error("{limit} workers are known, which is the limit")]
    TooManyWorkers {
        /// The limit.
        limit: usize,
    },
    /// The job has as many files as it may have.
    #[error("the job has {limit} artifacts, which is the limit")]
    TooManyArtifacts {
        /// The limit.
        limit: u64,
    },
    /// No such job is queued or active.
    #[error("job {0} is not queued or active")]
    NotActive(JobId),
    /// The job is cancelled, or has failed or done everything, and its ranks are still to end.
    #[error("job {0} is about to end")]
    AboutToEnd(JobId),
    /// The job is paused for its sweep's sake.
    #[error(
        "job {0} waits for the other jobs of its sweep, and goes on by itself if it is one of the best: cancel those that it waits for to have it go on now"
    )]
    WaitsForSweep(JobId),
    /// A sweep without jobs.
    #[error("a sweep has no jobs")]
    EmptySweep,
    /// The job's workers cannot go on later from where they are.
    #[error(
        "job {0} runs on workers of an earlier release, which could not go on from where they are: upgrade them, or cancel it"
    )]
    CannotPause(JobId),
    /// The job learns nothing.
    #[error("job {0} takes no orders: it learns nothing")]
    TakesNoOrders(JobId),
    /// The job's workers do not know orders.
    #[error(
        "job {0} runs on workers of an earlier release, or has no others, and these carry out no orders: upgrade them, or pause and \
         resume the job once there are others"
    )]
    CannotOrder(JobId),
    /// The step that an order waits for is over, or behind the job's end.
    #[error("got {given}, but step {done} is done; allowed: {}", steps_to_come(*first, *last))]
    StepIsOver {
        /// As given.
        given: u64,
        /// The job's last stored step.
        done: u64,
        /// The first step after which the order could be carried out.
        first: u64,
        /// The last one.
        last: u64,
    },
    /// The job has as many orders as it may have.
    #[error("{limit} orders were given to the job, which is the limit")]
    TooManyOrders {
        /// The limit.
        limit: usize,
    },
    /// No worker that is known could take the job.
    #[error("no worker has what cluster.constraints asks for: {constraints}; {known}")]
    NobodyFits {
        /// What is asked for.
        constraints: String,
        /// What workers have.
        known: String,
    },
    /// Active jobs ask for as many different things as they may.
    #[error(
        "active jobs have {limit} different cluster.constraints, which is the limit: use those of another job, or wait until one ends"
    )]
    TooManyNeeds {
        /// The limit.
        limit: usize,
    },
    /// The request id names a job that was asked for with another spec or queue.
    #[error("request_id {:?} was used for job {job} with another spec or queue", as_given(request_id))]
    RequestReused {
        /// As given, behind whose it is, where that is known: see [`REQUEST_OWNER`].
        request_id: String,
        /// The job it names.
        job: JobId,
    },
    /// The worker speaks no protocol of this coordinator's.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// A newer start of the same worker is known.
    #[error("incarnation {newest} of this worker is known, which is newer than {given}")]
    OlderIncarnation {
        /// As given.
        given: u64,
        /// The newest one.
        newest: u64,
    },
    /// A rank of a ring that is no more, or never was, speaks for its job.
    #[error("it comes from epoch {given} of the ring of job {job}, which {}", at_epoch(.now))]
    OtherEpoch {
        /// The job.
        job: JobId,
        /// As given.
        given: Epoch,
        /// The ring's, if the job has one now.
        now: Option<Epoch>,
    },
    /// Another worker that is connected has the address.
    #[error(
        "address {address:?} is that of worker {holder}, which is connected: give each worker an address of its own \
         (advertise_address), or wait until that one is gone"
    )]
    AddressTaken {
        /// As given.
        address: String,
        /// Who has it.
        holder: WorkerId,
    },
    /// No such worker is known.
    #[error("there is no worker {0}")]
    NoSuchWorker(WorkerId),
    /// The session is not the worker's newest one.
    #[error("the session was replaced or is over")]
    StaleSession,
}

/// What the client itself called its request.
fn as_given(request_id: &str) -> &str {
    request_id.split_once(REQUEST_OWNER).map_or(request_id, |(_, id)| id)
}

fn steps_to_come(first: u64, last: u64) -> String {
    match first > last {
        true => "no order any more, as the job is at its last step".to_owned(),
        false => format!("0, for as soon as it may be, or {first} to {last}"),
    }
}

fn at_epoch(now: &Option<Epoch>) -> String {
    now.map_or_else(|| "has no ring now".to_owned(), |epoch| format!("is at epoch {epoch} now"))
}

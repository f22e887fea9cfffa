//! The calls of users: jobs created by several at once, and the list read meanwhile.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use ringtune_proto::v1;
use ringtune_tests::swarm::{JobList, quick_job};
use tokio::task::JoinSet;

use crate::{arguments::RANKS, probes::Samples};

/// Steps of the jobs that wait and then pass through.
pub(crate) const QUICK_STEPS: i64 = 3;
/// Whose the jobs are.
const OWNERS: usize = 200;
/// Jobs on the pages that are read.
const PAGE: i32 = 50;
/// Between two readings of the list.
const PAUSE: Duration = Duration::from_millis(25);

/// The result.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub(crate) created: usize,
    pub(crate) create: Samples,
    pub(crate) list: Samples,
    /// Calls that failed, by what was said.
    pub(crate) failed: BTreeMap<String, usize>,
}

/// Jobs to create.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// The numbers of the first job and of the one after the last.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) in_flight: usize,
    /// Nothing is created after this.
    pub(crate) deadline: Instant,
}

/// Creates jobs, `in_flight` at a time, while pages of the list are read one after the other.
pub(crate) async fn create_jobs(jobs: &JobList, plan: Plan) -> Load {
    let next = Arc::new(AtomicUsize::new(plan.from));
    let mut creating = JoinSet::new();
    for _ in 0..plan.in_flight {
        creating.spawn(create_some(jobs.clone(), next.clone(), plan));
    }
    let mut load = Load::default();
    let everything_created = async {
        let mut parts = Vec::new();
        while let Some(part) = creating.join_next().await {
            parts.extend(part);
        }
        parts
    };
    let mut listing = Load::default();
    let parts = tokio::select! {
        parts = everything_created => parts,
        () = read_lists(jobs.clone(), &mut listing) => Vec::new(),
    };
    for part in parts.into_iter().chain([listing]) {
        load.created += part.created;
        load.create.extend(&part.create);
        load.list.extend(&part.list);
        for (reason, count) in part.failed {
            *load.failed.entry(reason).or_default() += count;
        }
    }
    load
}

async fn create_some(mut jobs: JobList, next: Arc<AtomicUsize>, plan: Plan) -> Load {
    let mut load = Load::default();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= plan.to || Instant::now() >= plan.deadline {
            return load;
        }
        let start = Instant::now();
        let (spec, request) = (quick_job(RANKS as i64, QUICK_STEPS), format!("quick-{number}"));
        match jobs.create(spec, queue_of(number), request).await {
            Ok(_) => load.created += 1,
            Err(error) => load.note("CreateJob", &error),
        }
        load.create.0.push(start.elapsed());
    }
}

/// Whose a job is, and how urgent: of a hundred one may take ranks from others.
fn queue_of(number: usize) -> v1::QueueSpec {
    let priority = match number % 100 {
        0 => 200,
        1..10 => 99,
        10..40 => 50,
        _ => 0,
    };
    // Not the same owners for all of a priority.
    let owner = format!("owner-{}", number * 7 / 5 % OWNERS);
    v1::QueueSpec { owner, priority, ..v1::QueueSpec::default() }
}

/// The first page, the one behind it, the first again.
async fn read_lists(mut jobs: JobList, load: &mut Load) {
    let mut page_token = String::new();
    loop {
        let first = page_token.is_empty();
        let start = Instant::now();
        match jobs.page(PAGE, page_token).await {
            Ok((_, next)) => page_token = if first { next } else { String::new() },
            Err(error) => {
                load.note("ListJobs", &error);
                page_token = String::new();
            }
        }
        load.list.0.push(start.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
}

impl Load {
    fn note(&mut self, call: &str, error: &anyhow::Error) {
        *self.failed.entry(format!("{call}: {error}")).or_default() += 1;
    }
}

/// Runs a call for each of some jobs, several at a time; the answers come in any order.
pub(crate) async fn for_each_job<Answer, Call>(
    jobs: &JobList,
    ids: &[String],
    call: impl Fn(JobList, String) -> Call,
) -> Result<Vec<Answer>>
where
    Answer: Send + 'static,
    Call: Future<Output = Result<Answer>> + Send + 'static,
{
    let mut answers = Vec::new();
    for some in ids.chunks(16) {
        let mut calls = JoinSet::new();
        for id in some {
            calls.spawn(call(jobs.clone(), id.clone()));
        }
        while let Some(answer) = calls.join_next().await {
            answers.push(answer??);
        }
    }
    Ok(answers)
}

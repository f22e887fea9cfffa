//! The jobs of a cluster that is about to be removed.

use std::{path::PathBuf, time::Duration};

use ringtune_proto::{
    convert::{is_terminal, job_state_name},
    v1::{self, JobState},
};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::{
    client::Client,
    cloud_arguments::DownArguments,
    commands::{destination::Destination, fetch, follow::job_id, plural, reach::client_of, title},
    common_arguments::CoordinatorArguments,
    error::Error,
    output::{Output, remark},
};

/// How long a coordinator may take to answer: it may be gone, or let nobody in from here.
const ANSWER: Duration = Duration::from_secs(15);
/// How long a cancelled job may take to save what it has.
const END: Duration = Duration::from_secs(600);
/// Between two looks at a job.
const PAUSE: Duration = Duration::from_secs(1);

/// Jobs that have not ended, and their coordinator.
pub(super) struct Unfinished {
    client: Client,
    jobs: Vec<v1::Job>,
}

/// Finds them; an error, if there are any that may not be cancelled. None: nobody knows, or there is no coordinator. `url`: the
/// coordinator's; none: there is none yet.
pub(super) async fn find(
    arguments: &DownArguments,
    url: Option<String>,
) -> Result<Option<Unfinished>, Error> {
    let named = arguments.coordinator.clone();
    let Some(url) = named.or_else(|| url.and_then(|url| url.parse().ok())) else { return Ok(None) };
    let asked = CoordinatorArguments { coordinator: Some(url.clone()), credentials: None, ca: None };
    let found = timeout(ANSWER, unfinished(&asked)).await;
    let found = found.unwrap_or_else(|_| Err(Error::Usage(format!("{url} does not answer"))));
    let found = match found {
        Ok(found) => found,
        Err(error) if arguments.force => {
            remark(&format!("warning: nobody knows which jobs run: {error}"));
            return Ok(None);
        }
        Err(error) => {
            return Err(Error::Usage(format!(
                "nobody knows which jobs run: {error}\n  log in to {url} from a network of its --clients, or give --force, \
                 which removes the cluster all the same"
            )));
        }
    };
    if found.jobs.is_empty() || arguments.force {
        return Ok(Some(found));
    }
    let list: Vec<String> = found.jobs.iter().map(text).collect();
    Err(Error::Usage(format!(
        "{} {} not ended: {}\n  wait for them (ringtune watch), or give --force, which cancels them and saves what they have",
        list.len(),
        if list.len() == 1 { "job has" } else { "jobs have" },
        list.join(", ")
    )))
}

/// Cancels jobs, and saves what they have.
pub(super) async fn save(
    arguments: &DownArguments,
    Unfinished { client, jobs }: Unfinished,
) -> Result<(), Error> {
    if jobs.is_empty() {
        return Ok(());
    }
    // All are stopped before the first is waited for.
    for job in &jobs {
        client.cancel_job(job_id(job)?, "the cluster is removed").await?;
    }
    let base = arguments.output_dir.clone();
    let base = base.unwrap_or_else(|| PathBuf::from("ringtune-out").join(&arguments.cluster.name));
    let output = Output::of_work(arguments.cluster.output.output);
    for job in &jobs {
        let id = job_id(job)?;
        wait(&client, id).await?;
        let place = Destination::prepare(Some(base.join(&job.job_id)), &job.name).await?;
        let saved = fetch::save_artifacts(&client, id, &place, &[], output).await?;
        remark(&format!("{} is cancelled; {}", title(job), fetch::saved_text(&saved, &place)));
    }
    let count = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    remark(&format!(
        "{count} {} saved in {}; where one has a checkpoint, --set train.resume_from_checkpoint=FILE goes on from it",
        plural(count, "job"),
        base.display()
    ));
    Ok(output.complete()?)
}

async fn unfinished(coordinator: &CoordinatorArguments) -> Result<Unfinished, Error> {
    let client = client_of(coordinator).await?;
    let states = [JobState::Queued, JobState::Preparing, JobState::Running, JobState::Paused];
    let wanted = v1::ListJobsRequest {
        states: states.map(|state| state as i32).to_vec(),
        ..v1::ListJobsRequest::default()
    };
    let jobs = client.list_jobs(wanted, usize::MAX).await?;
    Ok(Unfinished { client, jobs })
}

/// "green star (RUNNING, step 3 of 40)".
fn text(job: &v1::Job) -> String {
    let state = job_state_name(job.state());
    format!("{} ({state}, step {} of {})", title(job), job.step, job.total_steps)
}

async fn wait(client: &Client, job: Uuid) -> Result<(), Error> {
    let begun = Instant::now();
    while !is_terminal(client.get_job(job).await?.state()) {
        if begun.elapsed() > END {
            return Err(Error::JobEnded(format!(
                "job {job} was cancelled and has not ended after {} s: nothing was removed",
                END.as_secs()
            )));
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

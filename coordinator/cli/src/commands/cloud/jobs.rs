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

/// Sees to it that no job is lost: an error while any has not ended, unless they may be cancelled and saved. `url`: the
/// coordinator's; none: there is none yet.
pub(super) async fn settle(arguments: &DownArguments, url: Option<String>) -> Result<(), Error> {
    // 1. Which have not ended.
    let named = arguments.coordinator.clone();
    let Some(url) = named.or_else(|| url.and_then(|url| url.parse().ok())) else { return Ok(()) };
    let asked = CoordinatorArguments { coordinator: Some(url.clone()), credentials: None, ca: None };
    let found = timeout(ANSWER, unfinished(&asked)).await;
    let found = found.unwrap_or_else(|_| Err(Error::Usage(format!("{url} does not answer"))));
    let (client, jobs) = match found {
        Ok(found) => found,
        Err(error) if arguments.force => {
            remark(&format!("warning: nobody knows which jobs run: {error}"));
            return Ok(());
        }
        Err(error) => {
            return Err(Error::Usage(format!(
                "nobody knows which jobs run: {error}\n  log in to {url} from a network of its --clients, or give --force, \
                 which removes the cluster all the same"
            )));
        }
    };
    if jobs.is_empty() {
        return Ok(());
    }
    if !arguments.force {
        let list: Vec<String> = jobs.iter().map(text).collect();
        return Err(Error::Usage(format!(
            "{} {} not ended: {}\n  wait for them (ringtune watch), or give --force, which cancels them and saves what they have",
            jobs.len(),
            if jobs.len() == 1 { "job has" } else { "jobs have" },
            list.join(", ")
        )));
    }
    // 2. All are stopped before the first is waited for.
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

async fn unfinished(coordinator: &CoordinatorArguments) -> Result<(Client, Vec<v1::Job>), Error> {
    let client = client_of(coordinator).await?;
    let states = [JobState::Queued, JobState::Preparing, JobState::Running];
    let wanted = v1::ListJobsRequest {
        states: states.map(|state| state as i32).to_vec(),
        ..v1::ListJobsRequest::default()
    };
    let jobs = client.list_jobs(wanted, usize::MAX).await?;
    Ok((client, jobs))
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

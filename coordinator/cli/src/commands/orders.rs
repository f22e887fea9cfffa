//! `order`, `fork` and `queue`.

use std::time::{Duration, SystemTime};

use ringtune_proto::{
    convert::{job_state_name, milliseconds},
    v1::{self, JobState, order::What},
};
use ringtune_shared::{
    checkpoint::step_of_name,
    job::{Order, OrdersSpec, SpecError},
};
use uuid::Uuid;

use super::{
    checked_job::CheckedJob,
    follow::follow,
    reach::client_of,
    resolve,
    table::{print_table, table},
    title,
};
use crate::{
    client::Client,
    common_arguments::AskArguments,
    error::Error,
    interrupt::Interrupts,
    job_file::{JobFile, JobFileError},
    objects::JobObject,
    order_arguments::{ForkArguments, OrderArguments},
    output::{Output, remark},
    references::short_id,
};

/// Jobs that `queue` lists.
const MOST_LISTED: usize = 20_000;

/// `ringtune order`.
pub(super) async fn order(arguments: OrderArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    let what = match (arguments.learning_rate, arguments.prompt) {
        (Some(rate), _) => What::LearningRate(rate),
        (None, Some(prompt)) => What::Prompt(prompt),
        (None, None) if arguments.stop => What::Stop(true),
        (None, None) => What::Snapshot(true),
    };
    let order = v1::Order { after_step: arguments.after.unwrap_or(0), what: Some(what) };
    let job = resolve::job(&client, &arguments.job).await?;
    let (job, number) = client.order_job(job, order).await?;
    output.json(&JobObject::from(&job))?;
    let settled = job.orders.iter().find(|order| order.number == number).and_then(|order| order.settled_step);
    remark(&match (settled, arguments.after) {
        (Some(step), _) => format!("order {number}: after step {step}"),
        (None, Some(step)) => format!("order {number}: after step {step}, or as soon as it may be"),
        (None, None) => format!("order {number}: as soon as the step that is being computed is done"),
    });
    Ok(())
}

/// `ringtune fork`.
pub(super) async fn fork(arguments: ForkArguments, interrupts: &Interrupts) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    // 1. The state that it goes on from.
    let id = resolve::job(&client, &arguments.job).await?;
    let job = client.get_job(id).await?;
    let (step, uri) = checkpoint_of(&client, id, arguments.step).await?;
    // 2. The job that goes on, without what was ordered for later.
    let mut file = JobFile::of_job(&job, &arguments.set)?;
    file.add_labels(&arguments.label)?;
    if let Some(rate) = arguments.learning_rate {
        let wrong = |error: SpecError| Error::from(JobFileError::Labels(error));
        Order::LearningRate(rate).check().map_err(wrong)?;
    }
    let ordered = forked(&file.spec.common.orders, step, arguments.learning_rate);
    file.spec.common.orders = ordered;
    let kind = file.spec.kind();
    match file.spec.resume_from_mut() {
        Some(place) => *place = uri,
        None => return Err(Error::Usage(format!("a job of kind {:?} has no state", kind.as_str()))),
    }
    remark(&format!("going on after step {step} of job {id}"));
    let checked = CheckedJob::check(file, None).await?;
    let request = Uuid::new_v4().to_string();
    let fork = tokio::select! {
        fork = checked.submit(&client, &request) => fork?,
        () = interrupts.first() => return Err(Error::Interrupted("stopped before the job was submitted".to_owned())),
    };
    output.data(&fork.job_id, &JobObject::from(&fork))?;
    if arguments.watch { follow(&client, &fork, output, interrupts).await } else { Ok(()) }
}

/// A job's orders as those of a job that goes on from its state after `step`.
fn forked(orders: &OrdersSpec, step: u64, rate: Option<f64>) -> OrdersSpec {
    let mut forked = OrdersSpec { stop_after: None, ..orders.up_to(step) };
    if let Some(rate) = rate {
        forked.learning_rate.insert(step.to_string(), rate);
    }
    forked
}

/// The step and address of a checkpoint that a job has at the coordinator: the one after `step`, or the newest.
async fn checkpoint_of(client: &Client, job: Uuid, step: Option<u64>) -> Result<(u64, String), Error> {
    let artifacts = client.list_artifacts(job).await?;
    let kept = artifacts.into_iter().filter_map(|one| Some((step_of_name(&one.name)?, one.uri)));
    let mut kept: Vec<(u64, String)> = kept.collect();
    kept.sort_unstable();
    let found = match step {
        Some(step) => kept.iter().rfind(|(kept, _)| *kept == step),
        None => kept.last(),
    };
    found.cloned().ok_or_else(|| {
        let steps: Vec<String> = kept.iter().map(|(step, _)| step.to_string()).collect();
        let there = match steps.is_empty() {
            true => "it has none".to_owned(),
            false => format!("it has those after {}", steps.join(", ")),
        };
        let wanted = step.map_or_else(String::new, |step| format!(" after step {step}"));
        Error::Usage(format!(
            "job {job} has no checkpoint{wanted}: {there}; `ringtune order {} --snapshot` keeps one",
            short_id(&job.to_string())
        ))
    })
}

/// `ringtune queue`.
pub(super) async fn queue(arguments: AskArguments) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let client = client_of(&arguments.coordinator).await?;
    let states = [JobState::Running, JobState::Preparing, JobState::Paused, JobState::Queued];
    let wanted = v1::ListJobsRequest {
        states: states.map(i32::from).to_vec(),
        order_by: "create_time".to_owned(),
        ..v1::ListJobsRequest::default()
    };
    let mut jobs = client.list_jobs(wanted, MOST_LISTED).await?;
    // What runs first, then what waits, in the order in which it comes.
    let place = |job: &v1::Job| {
        let state = states.iter().position(|state| *state == job.state());
        (state, job.waiting.as_ref().map_or(0, |waiting| waiting.ahead))
    };
    jobs.sort_by_key(place);
    if output.is_json() {
        return jobs.iter().try_for_each(|job| Ok(output.json(&JobObject::from(job))?));
    }
    if jobs.is_empty() {
        remark("no job runs or waits");
        return Ok(());
    }
    let mut table = table(&["JOB", "NAME", "OWNER", "PRIORITY", "STATE", "RANKS", "SINCE", "WHY"]);
    let now = SystemTime::now();
    for job in &jobs {
        let queue = job.queue.clone().unwrap_or_default();
        table.add_row([
            short_id(&job.job_id).to_owned(),
            title(job),
            queue.owner,
            queue.priority.to_string(),
            job_state_name(job.state()).to_owned(),
            ranks(job),
            since(job).map(|since| ago(since, now)).unwrap_or_default(),
            why(job, now),
        ]);
    }
    print_table(output, &table)
}

/// How many ranks a job has, or needs, of how many it wants.
fn ranks(job: &v1::Job) -> String {
    let cluster = job.spec.as_ref().and_then(|spec| spec.cluster.clone()).unwrap_or_default();
    let wanted = cluster.world_size.unwrap_or(1);
    match (&job.ring, &job.waiting) {
        (Some(ring), _) => format!("{}/{wanted}", ring.members.len()),
        (None, Some(waiting)) if i64::from(waiting.needed) < wanted => format!("{}-{wanted}", waiting.needed),
        (None, _) => wanted.to_string(),
    }
}

fn since(job: &v1::Job) -> Option<prost_types::Timestamp> {
    match &job.waiting {
        Some(waiting) => waiting.since,
        None => job.start_time.or(job.update_time),
    }
}

/// Why a job waits, and until when; or how far it is.
fn why(job: &v1::Job, now: SystemTime) -> String {
    let Some(waiting) = &job.waiting else {
        return match job.state() {
            JobState::Running => format!("step {} of {}", job.step, job.total_steps),
            _ => job.state_reason.clone(),
        };
    };
    waiting_text(waiting, &job.state_reason, now)
}

/// Why a job waits, in a sentence. `reason`: in the coordinator's words.
pub(super) fn waiting_text(waiting: &v1::Waiting, reason: &str, now: SystemTime) -> String {
    let ahead = match waiting.ahead {
        0 => "first in the queue".to_owned(),
        1 => "1 job ahead".to_owned(),
        jobs => format!("{jobs} jobs ahead"),
    };
    let start = match &waiting.estimated_start_time {
        Some(time) => match to_come(*time, now) {
            left if left.as_secs() < 1 => "may start now".to_owned(),
            left => format!("may start in {}", span(left)),
        },
        None => "nobody can say when it starts".to_owned(),
    };
    format!("{reason}; {ahead}; {start}")
}

fn to_come(time: prost_types::Timestamp, now: SystemTime) -> Duration {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(milliseconds(&time)).unwrap_or(0));
    at.duration_since(now).unwrap_or_default()
}

fn ago(time: prost_types::Timestamp, now: SystemTime) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(milliseconds(&time)).unwrap_or(0));
    span(now.duration_since(at).unwrap_or_default())
}

/// "3 min", in the largest unit that it has at least two of.
fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_job_waits_is_said_in_a_sentence() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let waiting =
            |ahead, start| v1::Waiting { ahead, estimated_start_time: start, ..v1::Waiting::default() };
        for (ahead, start, said) in [
            (0, at(1000), "1 free, 2 needed; first in the queue; may start now"),
            (1, at(1090), "1 free, 2 needed; 1 job ahead; may start in 90 s"),
            (7, at(8200), "1 free, 2 needed; 7 jobs ahead; may start in 2 h"),
            (2, None, "1 free, 2 needed; 2 jobs ahead; nobody can say when it starts"),
        ] {
            assert_eq!(waiting_text(&waiting(ahead, start), "1 free, 2 needed", now), said);
        }
        assert_eq!(
            [119, 120, 7199, 7200, 172_800].map(|seconds| span(Duration::from_secs(seconds))),
            ["119 s", "2 min", "119 min", "2 h", "2 d"]
        );
    }

    #[test]
    fn a_fork_keeps_what_was_carried_out_and_nothing_later() {
        let rates =
            |all: &[(&str, f64)]| all.iter().map(|(step, rate)| ((*step).to_owned(), *rate)).collect();
        let orders = OrdersSpec {
            stop_after: Some(9),
            learning_rate: rates(&[("3", 0.5), ("5", 0.25), ("7", 0.125)]),
        };
        let kept = OrdersSpec { stop_after: None, learning_rate: rates(&[("3", 0.5)]) };
        assert_eq!(forked(&orders, 5, None), kept);
        let other = OrdersSpec { stop_after: None, learning_rate: rates(&[("3", 0.5), ("5", 1.0)]) };
        assert_eq!(forked(&orders, 5, Some(1.0)), other);
    }
}

//! The commands that ask one question: `list`, `status`, `cancel`, `delete`, `workers`, `drain`, `undrain`.

use std::{collections::BTreeMap, time::SystemTime};

use comfy_table::CellAlignment;
use ringtune_proto::{
    convert::{job_reason_name, job_state_name, rank_phase_name, worker_state_name},
    v1::{self, JobReason, JobState},
};

use super::{
    orders::waiting_text,
    reach::client_of,
    resolve,
    table::{facts, print_table, table},
    title,
};
use crate::{
    arguments::{
        CancelArguments, DeleteArguments, JobArguments, LimitsArguments, ListArguments, WorkerArguments,
    },
    client::named,
    common_arguments::AskArguments,
    error::Error,
    job_file::Label,
    objects::{DeletedObject, JobObject, LimitsObject, StatusObject, WorkerObject},
    output::{Output, remark, size_text, time_text},
    progress::timing_text,
};

const BYTES_PER_GIB: f64 = (1_u64 << 30) as f64;

/// `ringtune list`.
pub(super) async fn list(arguments: ListArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    let wanted = v1::ListJobsRequest {
        states: arguments.state.iter().map(|state| *state as i32).collect(),
        filter: filter_of(&arguments.filter, &arguments.label),
        order_by: arguments.order_by,
        ..v1::ListJobsRequest::default()
    };
    let jobs = client.list_jobs(wanted, arguments.limit as usize).await?;
    if output.is_json() {
        return jobs.iter().try_for_each(|job| Ok(output.json(&JobObject::from(job))?));
    }
    if jobs.is_empty() {
        remark("no jobs");
        return Ok(());
    }
    let mut table = table(&["JOB", "NAME", "OWNER", "PRIORITY", "STATE", "STEP", "LOSS", "CREATED"]);
    for job in &jobs {
        let queue = job.queue.clone().unwrap_or_default();
        table.add_row([
            job.job_id.clone(),
            title(job),
            queue.owner,
            queue.priority.to_string(),
            job_state_name(job.state()).to_owned(),
            format!("{}/{}", job.step, job.total_steps),
            job.loss.map(|loss| format!("{loss:.4}")).unwrap_or_default(),
            time_text(job.create_time.as_ref()),
        ]);
    }
    print_table(output, &table)
}

/// A filter with labels beside it.
fn filter_of(filter: &str, labels: &[Label]) -> String {
    let given = Some(filter.trim().to_owned()).filter(|filter| !filter.is_empty());
    let labels = labels.iter().map(|label| named(&format!("labels.{}", label.key), &label.value));
    given.into_iter().chain(labels).collect::<Vec<_>>().join(" AND ")
}

/// `ringtune status`.
pub(super) async fn status(arguments: JobArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    let answer = client.get_status(resolve::job(&client, &arguments.job).await?).await?;
    let (job, timings) = (answer.job.unwrap_or_default(), answer.timings.unwrap_or_default().ranks);
    Ok(output.data(&job_text(&job, &timings), &StatusObject::new(&job, &timings))?)
}

/// `ringtune cancel`.
pub(super) async fn cancel(arguments: CancelArguments) -> Result<(), Error> {
    let output = Output::new(arguments.job.ask.output.output);
    let client = client_of(&arguments.job.ask.coordinator).await?;
    let job = client.cancel_job(resolve::job(&client, &arguments.job.job).await?, &arguments.reason).await?;
    output.json(&JobObject::from(&job))?;
    match job.state() {
        JobState::Cancelled => remark("cancelled"),
        state => remark(&format!("asked to stop; the job is still {}", job_state_name(state))),
    }
    Ok(())
}

/// `ringtune pause`.
pub(super) async fn pause(arguments: JobArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    let job = client.pause_job(resolve::job(&client, &arguments.job).await?).await?;
    output.json(&JobObject::from(&job))?;
    match job.state() {
        JobState::Paused => remark("paused"),
        state => remark(&format!("asked to pause; the job is still {}", job_state_name(state))),
    }
    Ok(())
}

/// `ringtune resume`.
pub(super) async fn resume(arguments: JobArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    let job = client.resume_job(resolve::job(&client, &arguments.job).await?).await?;
    output.json(&JobObject::from(&job))?;
    remark(&format!("the job is {}", job_state_name(job.state())));
    Ok(())
}

/// `ringtune delete`: all that can be, whatever becomes of the others.
pub(super) async fn delete(arguments: DeleteArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    // All are found before any is gone: `last` is to mean the same however often it is said.
    let mut meant = Vec::new();
    for given in &arguments.jobs {
        let found = resolve::job(&client, given).await;
        if !found.as_ref().is_ok_and(|job| meant.iter().flatten().any(|other| other == job)) {
            meant.push(found);
        }
    }
    let mut first = None;
    for found in meant {
        let deleted = match found {
            Ok(job) => client.delete_job(job).await.map(|()| job).map_err(Error::from),
            Err(error) => Err(error),
        };
        match deleted {
            Ok(job) => output.data(&job.to_string(), &DeletedObject::from(job))?,
            // Neither would the others be.
            Err(Error::Client(error)) if error.is_away() => return Err(error.into()),
            // The command's own last words are about the first.
            Err(error) if first.is_none() => first = Some(error),
            Err(error) => remark(&format!("error: {error}")),
        }
    }
    first.map_or(Ok(()), Err)
}

/// `ringtune workers`.
pub(super) async fn workers(arguments: AskArguments) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let workers = client_of(&arguments.coordinator).await?.list_workers().await?;
    if output.is_json() {
        return workers.iter().try_for_each(|worker| Ok(output.json(&WorkerObject::from(worker))?));
    }
    if workers.is_empty() {
        remark("no workers; start one with `ringtune-worker --coordinator URL`");
        return Ok(());
    }
    let mut table =
        table(&["WORKER", "HOST", "STATE", "JOB", "RANK", "THREADS", "GIB", "BF16", "ADDRESS", "CPU"]);
    for worker in &workers {
        let capabilities = worker.capabilities.clone().unwrap_or_default();
        let rank = worker.rank.map(|rank| rank.to_string()).unwrap_or_default();
        table.add_row([
            worker.worker_id.clone(),
            worker.host_name.clone(),
            worker_state(worker),
            worker.job_id.clone(),
            rank,
            format!("{}/{}", capabilities.threads, capabilities.cores),
            format!("{:.0}", capabilities.memory_bytes as f64 / BYTES_PER_GIB),
            if capabilities.bf16 { "yes" } else { "no" }.to_owned(),
            worker.address.clone(),
            capabilities.cpu_model,
        ]);
    }
    for column in [4, 5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    print_table(output, &table)
}

/// `ringtune limits`.
pub(super) async fn limits(arguments: LimitsArguments) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let answer = client_of(&arguments.ask.coordinator).await?.get_limits(&arguments.owner).await?;
    if output.is_json() {
        return Ok(output.json(&LimitsObject::from(&answer))?);
    }
    let mut table = table(&["WHAT", "NOW", "ALLOWED", "BY THE SETTING"]);
    for limit in &answer.limits {
        let number = |number: i64| match limit.setting.as_str() {
            "limits.owner_bytes" => size_text(number),
            _ => number.to_string(),
        };
        table.add_row([
            limit.what.clone(),
            limit.used.map_or_else(|| "-".to_owned(), number),
            limit.allowed.map_or_else(|| "any".to_owned(), number),
            limit.setting.clone(),
        ]);
    }
    for column in [1, 2] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    print_table(output, &table)
}

/// `ringtune drain` and `ringtune undrain`.
pub(super) async fn drain(arguments: WorkerArguments, draining: bool) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    let worker = resolve::worker(&client, &arguments.worker).await?;
    let worker = client.drain_worker(worker, draining).await?;
    output.json(&WorkerObject::from(&worker))?;
    remark(&match (draining, worker.job_id.as_str()) {
        (false, _) => format!("{} takes jobs again", worker.host_name),
        (true, "") => format!("{} takes no new job", worker.host_name),
        (true, job) => format!("{} takes no new job, and leaves job {job} after this step", worker.host_name),
    });
    Ok(())
}

/// "IDLE", "BUSY, draining", or "IDLE, resting".
fn worker_state(worker: &v1::Worker) -> String {
    let draining = if worker.draining { ", draining" } else { "" };
    let resting = if worker.rest_until_time.is_some() { ", resting" } else { "" };
    format!("{}{draining}{resting}", worker_state_name(worker.state()))
}

/// A job for people, one fact a line; `timings`: what the steps of its ranks take.
fn job_text(job: &v1::Job, timings: &[v1::RankTiming]) -> String {
    let mut lines = vec![("job", job.job_id.clone()), ("name", job.name.clone())];
    lines.push(("state", job_state_name(job.state()).to_owned()));
    let reason = match &job.waiting {
        Some(waiting) => waiting_text(waiting, &job.state_reason, SystemTime::now()),
        None => job.state_reason.clone(),
    };
    if !reason.is_empty() {
        lines.push(("reason", reason));
    }
    if job.reason_code() != JobReason::Unspecified {
        lines.push(("code", job_reason_name(job.reason_code()).to_owned()));
    }
    let queue = job.queue.clone().unwrap_or_default();
    if !queue.owner.is_empty() {
        lines.push(("owner", queue.owner));
    }
    lines.push(("priority", queue.priority.to_string()));
    let labels: BTreeMap<String, String> = queue.labels.into_iter().collect();
    lines.extend(labels.iter().map(|(key, value)| ("label", format!("{key}={value}"))));
    if let Some(v1::SweepPlace { sweep_id, point, points, settings, .. }) = &job.sweep {
        let settings: Vec<String> =
            settings.iter().map(|(option, value)| format!("{option}={value}")).collect();
        lines.push(("sweep", format!("{sweep_id}: {point} of {points}, {}", settings.join(" "))));
    }
    lines.push(("step", format!("{} of {}", job.step, job.total_steps)));
    if let Some(verification) = &job.verification {
        let v1::Verification { job_id, first_step, last_step, .. } = verification;
        lines.push(("verifies", format!("steps {first_step}-{last_step} of {job_id}")));
        lines.push(("same up to", format!("step {}", verification.compared)));
        if let Some(difference) = &verification.difference {
            lines.push(("differs", format!("step {}", difference.step)));
            lines.push(("stored", format!("sha256:{}", difference.stored_sha256)));
            lines.push(("computed", format!("sha256:{}", difference.computed_sha256)));
        }
    }
    if let Some(loss) = job.loss {
        lines.push(("loss", format!("{loss:.6}")));
    }
    if let Some(v1::ValidationLoss { step, loss }) = &job.validation {
        lines.push(("validation", format!("{loss:.6} after step {step}")));
    }
    if !job.precision.is_empty() {
        lines.push(("precision", job.precision.clone()));
    }
    if let Some(ring) = &job.ring {
        lines.push(("epoch", ring.epoch.to_string()));
        let rank = |member: &v1::ring::Member| {
            let phase = rank_phase_name(member.phase()).to_lowercase();
            format!("{}: {phase} on {} ({})", member.rank, member.host_name, member.worker_id)
        };
        lines.extend(ring.members.iter().map(|member| ("rank", rank(member))));
        let timing = |timing: &v1::RankTiming| format!("{}: {}", timing.rank, timing_text(timing));
        lines.extend(timings.iter().map(|rank| ("a step", timing(rank))));
    }
    for (label, time) in [
        ("created", &job.create_time),
        ("started", &job.start_time),
        ("updated", &job.update_time),
        ("ended", &job.end_time),
    ] {
        if time.is_some() {
            lines.push((label, time_text(time.as_ref())));
        }
    }
    facts(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queued_job_says_what_it_waits_for_and_nothing_that_is_not_known() {
        let job = v1::Job {
            job_id: "x".into(),
            state: JobState::Queued as i32,
            state_reason: "waiting for workers: 1 free, 2 needed".into(),
            total_steps: 30,
            ..v1::Job::default()
        };
        let text = job_text(&job, &[]);
        assert!(text.contains("QUEUED") && text.contains("1 free, 2 needed"), "{text}");
        assert!(!text.contains("loss") && !text.contains("ended") && !text.contains("code"), "{text}");
    }

    #[test]
    fn a_running_job_shows_its_entry_in_the_queue_and_its_ring() {
        let queue = v1::QueueSpec {
            owner: "ada".into(),
            labels: [("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())].into(),
            priority: 7,
            ..v1::QueueSpec::default()
        };
        let member = v1::ring::Member {
            rank: 0,
            worker_id: "w".into(),
            host_name: "node-1".into(),
            phase: v1::RankPhase::Training as i32,
            ..v1::ring::Member::default()
        };
        let job = v1::Job {
            state: JobState::Running as i32,
            reason_code: JobReason::Training as i32,
            queue: Some(queue),
            ring: Some(v1::Ring { epoch: 1, members: vec![member] }),
            ..v1::Job::default()
        };
        let timing = v1::RankTiming { compute_seconds: 0.25, wait_seconds: 1.5, ..v1::RankTiming::default() };
        let text = job_text(&job, &[timing]);
        let after_name = text.split_once("RUNNING\n").expect("a state").1;
        let expected = "code       TRAINING\nowner      ada\npriority   7\nlabel      a=1\nlabel      b=2\n\
                        step       0 of 0\nepoch      1\nrank       0: training on node-1 (w)\n\
                        a step     0: compute 250 ms, exchange 0 ms, wait 1.5 s";
        assert_eq!(after_name, expected);
    }

    #[test]
    fn a_verification_says_what_it_verifies_and_what_it_found() {
        let difference =
            Some(v1::StateDifference { step: 7, stored_sha256: "aa".into(), computed_sha256: "bb".into() });
        let verification =
            v1::Verification { job_id: "x".into(), first_step: 3, last_step: 9, compared: 6, difference };
        let job = v1::Job { name: "star".into(), verification: Some(verification), ..v1::Job::default() };
        assert_eq!(title(&job), "verify x steps 3-9");
        let text = job_text(&job, &[]);
        let expected = "verifies   steps 3-9 of x\nsame up to step 6\ndiffers    step 7\n\
                        stored     sha256:aa\ncomputed   sha256:bb";
        assert!(text.contains(expected), "{text}");
        let line = serde_json::to_value(JobObject::from(&job)).expect("serializes");
        assert_eq!(line["verification"]["difference"]["computed_sha256"], "bb");
        assert_eq!(line["verification"]["compared"], 6);
    }

    #[test]
    fn labels_are_put_beside_a_filter() {
        let label = |text: &str| text.parse::<Label>().expect("a label");
        assert_eq!(filter_of(" ", &[]), "");
        assert_eq!(filter_of("owner=ada", &[]), "owner=ada");
        let both = filter_of("owner=ada", &[label("a=1"), label("b=x \"y\" \\")]);
        assert_eq!(both, r#"owner=ada AND labels.a="1" AND labels.b="x \"y\" \\""#);
    }
}

//! The commands that ask one question: `list`, `status`, `cancel`, `workers`.

use comfy_table::{CellAlignment, Table, presets};
use ringtune_proto::{
    convert::{job_state_name, worker_state_name},
    v1::{self, JobState},
};

use crate::{
    arguments::{CancelArguments, JobArguments, ListArguments, WorkersArguments},
    client::Client,
    error::Error,
    output::{JobObject, Output, WorkerObject, remark, time_text},
};

const BYTES_PER_GIB: f64 = (1_u64 << 30) as f64;

/// `ringtune list`.
pub(super) async fn list(arguments: ListArguments) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let client = Client::new(&arguments.coordinator.coordinator);
    let jobs = client.list_jobs(&arguments.state, arguments.limit as usize).await?;
    if output.is_json() {
        return jobs.iter().try_for_each(|job| Ok(output.json(&JobObject::from(job))?));
    }
    if jobs.is_empty() {
        remark("no jobs");
        return Ok(());
    }
    let mut table = table(&["JOB", "NAME", "STATE", "STEP", "LOSS", "CREATED"]);
    for job in &jobs {
        table.add_row([
            job.job_id.clone(),
            job.name.clone(),
            job_state_name(job.state()).to_owned(),
            format!("{}/{}", job.step, job.total_steps),
            job.loss.map(|loss| format!("{loss:.4}")).unwrap_or_default(),
            time_text(job.create_time.as_ref()),
        ]);
    }
    print_table(output, &table)
}

/// `ringtune status`.
pub(super) async fn status(arguments: JobArguments) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let job = Client::new(&arguments.coordinator.coordinator).get_job(arguments.job).await?;
    Ok(output.data(&job_text(&job), &JobObject::from(&job))?)
}

/// `ringtune cancel`.
pub(super) async fn cancel(arguments: CancelArguments) -> Result<(), Error> {
    let output = Output::new(arguments.job.output.output);
    let client = Client::new(&arguments.job.coordinator.coordinator);
    let job = client.cancel_job(arguments.job.job, &arguments.reason).await?;
    output.json(&JobObject::from(&job))?;
    match job.state() {
        JobState::Cancelled => remark("cancelled"),
        state => remark(&format!("asked to stop; the job is still {}", job_state_name(state))),
    }
    Ok(())
}

/// `ringtune workers`.
pub(super) async fn workers(arguments: WorkersArguments) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let workers = Client::new(&arguments.coordinator.coordinator).list_workers().await?;
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
            worker_state_name(worker.state()).to_owned(),
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

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

fn print_table(output: Output, table: &Table) -> Result<(), Error> {
    Ok(output.data(&table.to_string(), &())?)
}

/// A job for people, one fact a line.
fn job_text(job: &v1::Job) -> String {
    let mut lines = vec![("job", job.job_id.clone()), ("name", job.name.clone())];
    lines.push(("state", job_state_name(job.state()).to_owned()));
    if !job.state_reason.is_empty() {
        lines.push(("reason", job.state_reason.clone()));
    }
    lines.push(("step", format!("{} of {}", job.step, job.total_steps)));
    if let Some(loss) = job.loss {
        lines.push(("loss", format!("{loss:.6}")));
    }
    if !job.precision.is_empty() {
        lines.push(("precision", job.precision.clone()));
    }
    if !job.worker_ids.is_empty() {
        lines.push(("workers", format!("{} (ring epoch {})", job.worker_ids.join(" "), job.epoch)));
    }
    for (label, time) in
        [("created", &job.create_time), ("started", &job.start_time), ("ended", &job.end_time)]
    {
        if time.is_some() {
            lines.push((label, time_text(time.as_ref())));
        }
    }
    lines.iter().map(|(label, value)| format!("{label:<10} {value}")).collect::<Vec<_>>().join("\n")
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
        let text = job_text(&job);
        assert!(text.contains("QUEUED") && text.contains("1 free, 2 needed"), "{text}");
        assert!(!text.contains("loss") && !text.contains("ended"), "{text}");
    }
}

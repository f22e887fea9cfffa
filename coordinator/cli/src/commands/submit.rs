//! `submit`.

use ringtune_proto::{convert::job_state_name, v1};
use ringtune_shared::{checkpoint::step_of_name, job::Setting, trace::TraceContext};
use uuid::Uuid;

use super::{
    checked_job::CheckedJob, destination::Destination, fetch::save, follow::follow, reach::client_of,
    resolve, sweeps,
};
use crate::{
    arguments::SubmitArguments,
    client::Client,
    error::Error,
    interrupt::Interrupts,
    job_file::{Asked, JobFile},
    objects::JobObject,
    output::{Output, remark},
    references::{JobReference, short_id},
    sweep_objects::SweepObject,
    traces::Traces,
};

/// `ringtune submit`.
pub(super) async fn submit(arguments: SubmitArguments, interrupts: &Interrupts) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let place = match arguments.output_dir.clone() {
        Some(place) => Some(Destination::prepare(Some(place), "").await?),
        None => None,
    };
    let traces = Traces::of_environment();
    let (mut span, trace) = traces.begin("submit");
    let sent = Box::pin(send(&arguments, trace, interrupts)).await;
    match &sent {
        Ok((_, Sent::Job(job))) => span.set("job", job.job_id.clone()),
        Ok((_, Sent::Sweep(sweep))) => span.set("sweep", sweep.sweep_id.clone()),
        Err(_) => span.fail(),
    }
    drop(span);
    if let Ok((_, sent)) = &sent {
        match sent {
            Sent::Job(job) => output.data(&job.job_id, &JobObject::from(&**job))?,
            Sent::Sweep(sweep) => output.data(&sweep.sweep_id, &SweepObject::from(sweep))?,
        }
    }
    traces.finish().await;
    let (client, job) = match sent? {
        (client, Sent::Job(job)) => (client, job),
        (client, Sent::Sweep(sweep)) if arguments.watch => {
            return sweeps::follow(&client, &sweep, output, interrupts).await;
        }
        (_, Sent::Sweep(sweep)) => {
            let (jobs, id) = (sweep.points.len(), short_id(&sweep.sweep_id));
            remark(&format!("{jobs} jobs: `ringtune sweep {id}` shows how far they are"));
            return Ok(());
        }
    };
    if !arguments.watch {
        remark(&state_text(&job));
        return Ok(());
    }
    let ended = follow(&client, &job, output, interrupts).await;
    match (&ended, place) {
        (Ok(()) | Err(Error::JobEnded(_)), Some(place)) => {
            let output = Output::of_work(arguments.ask.output.output);
            let saved = save(&client, &job, &place, &[], output).await;
            ended.and(saved)?;
            Ok(output.complete()?)
        }
        _ => ended,
    }
}

/// What was submitted.
enum Sent {
    Job(Box<v1::Job>),
    Sweep(v1::Sweep),
}

/// Creates what the arguments mean.
async fn send(
    arguments: &SubmitArguments,
    trace: Option<TraceContext>,
    interrupts: &Interrupts,
) -> Result<(Client, Sent), Error> {
    // 1. What is asked for?
    let client = client_of(&arguments.ask.coordinator).await?.within(trace);
    let mut asked = match (&arguments.job, &arguments.again) {
        (Some(path), _) => JobFile::read_all(path, &arguments.set)?,
        (None, Some(earlier)) => Asked::Job(Box::new(again(&client, earlier, &arguments.set).await?)),
        (None, None) => return Err(Error::Usage("which job? give a job file".to_owned())),
    };
    let checkpoint = match &arguments.resume_from {
        Some(earlier) => Some(newest_checkpoint(&client, resolve::job(&client, earlier).await?).await?),
        None => None,
    };
    for file in asked.jobs_mut() {
        file.add_labels(&arguments.label)?;
        let Some(checkpoint) = &checkpoint else { continue };
        let Some(place) = file.spec.resume_from_mut() else {
            let kind = file.spec.kind();
            return Err(Error::Usage(format!(
                "--resume-from: a job of kind {:?} has no checkpoints",
                kind.as_str()
            )));
        };
        place.clone_from(checkpoint);
    }
    if let Some(warning) = asked.jobs_mut().iter().find_map(|file| file.hub_warning()) {
        remark(&format!("warning: {warning}"));
    }
    // 2. It is checked, and goes to the coordinator with all that it needs.
    let output = Output::new(arguments.ask.output.output);
    let request_id = arguments.request_id.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
    let file = match asked {
        Asked::Job(file) => *file,
        Asked::Sweep(_) if arguments.output_dir.is_some() => {
            return Err(Error::Usage(
                "--output-dir: the job file makes several jobs; `ringtune fetch` saves the files of one"
                    .to_owned(),
            ));
        }
        Asked::Sweep(sweep) => {
            let sending = sweeps::send(&client, sweep, output, &request_id, interrupts);
            let sweep = Box::pin(sending).await?;
            return Ok((client, Sent::Sweep(sweep)));
        }
    };
    let mut checked = tokio::select! {
        checked = CheckedJob::check(file, None) => checked?,
        () = interrupts.first() => return Err(Error::Interrupted("stopped before the job was submitted".to_owned())),
    };
    checked.complete_class(&client, None, output, interrupts).await?;
    let job = tokio::select! {
        job = checked.submit(&client, &request_id) => job?,
        () = interrupts.first() => return Err(Error::Interrupted("stopped before the job was submitted".to_owned())),
    };
    Ok((client, Sent::Job(Box::new(job))))
}

/// An earlier job, to be submitted again: from the contents that the coordinator has of it.
async fn again(client: &Client, earlier: &JobReference, settings: &[Setting]) -> Result<JobFile, Error> {
    let job = client.get_job(resolve::job(client, earlier).await?).await?;
    if let Some(verification) = &job.verification {
        return Err(Error::Usage(format!(
            "--again: job {} verifies another one: ringtune verify {}",
            job.job_id, verification.job_id
        )));
    }
    remark(&format!("job {} again: {}", job.job_id, job.name));
    Ok(JobFile::of_job(&job, settings)?)
}

/// The address of the newest checkpoint that a job has at the coordinator.
async fn newest_checkpoint(client: &Client, job: Uuid) -> Result<String, Error> {
    let artifacts = client.list_artifacts(job).await?;
    let checkpoints =
        artifacts.into_iter().filter_map(|artifact| Some((step_of_name(&artifact.name)?, artifact.uri)));
    let newest = checkpoints.max_by_key(|(step, _)| *step);
    let (step, uri) =
        newest.ok_or_else(|| Error::Usage(format!("--resume-from: job {job} has no checkpoint")))?;
    remark(&format!("resuming after step {step} of job {job}"));
    Ok(uri)
}

fn state_text(job: &v1::Job) -> String {
    let state = job_state_name(job.state()).to_lowercase();
    if job.state_reason.is_empty() { state } else { format!("{state}: {}", job.state_reason) }
}

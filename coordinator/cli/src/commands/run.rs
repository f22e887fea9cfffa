//! `ringtune run`: a job from its file to its artifacts, on daemons that live no longer than it.

use std::path::PathBuf;

use ringtune_proto::v1::JobState;
use ringtune_shared::job::{JobRequest, JobSpec};
use uuid::Uuid;

use super::{
    checked_job::CheckedJob,
    destination::{check_folder, output_folder, prepare_folder},
    fetch::{save_job, saved_text},
    follow::{Follow, OnInterrupt, Outcome, job_id, steps},
    keep::Keeper,
    pipeline, plural,
};
use crate::{
    argument_values::MOST_WORKERS,
    checkpoints::has_checkpoint,
    cluster::{ClusterPlan, KeptRun, LocalCluster, Ports, RunFolder, RunRecord},
    error::Error,
    interrupt::Interrupts,
    job_file::JobFile,
    objects::JobObject,
    output::{Output, remark},
    run_arguments::RunArguments,
    traces::Traces,
};

/// Runs the job; the result is the job's outcome.
pub(super) async fn run(arguments: RunArguments, interrupts: &Interrupts) -> Result<(), Error> {
    let output = Output::of_work(arguments.output.output);

    // 1. Everything that can be wrong is found before anything starts.
    let (mut file, output_dir) = job_of(&arguments)?;
    file.add_labels(&arguments.label)?;
    let workers = workers_to_start(&file.spec, arguments.workers)?;
    if arguments.print_job {
        print_job(&file, Output::new(arguments.output.output))?;
    }
    let artifacts_folder = output_folder(output_dir, &file.spec.common.name);
    check_folder(&artifacts_folder)?;
    pipeline::check(&file.spec, &artifacts_folder)?;
    let mut checked = tokio::select! {
        checked = CheckedJob::check(file, Some(artifacts_folder.clone())) => checked?,
        () = interrupts.first() => return Err(Error::Interrupted("stopped before anything was started".to_owned())),
    };
    checked.file.check_places()?;
    if arguments.print_job {
        return Ok(());
    }
    let artifacts_folder = prepare_folder(Some(artifacts_folder), &checked.file.spec.common.name)?;

    // 2. The daemons.
    let mut state = RunFolder::create()?;
    KeptRun::remark_of_all(&KeptRun::all()).iter().for_each(|text| remark(text));
    let plan = ClusterPlan { folder: state.path().to_owned(), workers, ports: Ports::Free };
    remark(&format!("starting a coordinator and {workers} {}", plural(workers, "worker")));
    let mut cluster = tokio::select! {
        cluster = LocalCluster::start(&plan) => cluster?,
        () = interrupts.first() => return Err(stopped_early()),
    };

    // 3. The job, and whatever comes of it, the end of the daemons.
    let folder = artifacts_folder.clone();
    let running = run_job(&mut cluster, &mut state, &mut checked, artifacts_folder, output, interrupts);
    let outcome = Box::pin(running).await;
    // A job that failed says why itself.
    if let Err(Error::JobEnded(_)) = &outcome
        && cluster.lost_a_daemon()
        && !interrupted_already(interrupts).await
    {
        remark(&format!("the ends of the daemons' logs:\n{}", cluster.log_tails()));
    }
    cluster.stop().await;
    // What could not be saved is kept, and said where.
    drop(state);
    outcome?;
    // 4. What is made of the artifacts.
    if checked.file.spec.wants_full_pipeline() {
        pipeline::make(&checked.file.spec, &folder, output, interrupts).await?;
    }
    if let Some(line) = pipeline::try_it(&checked.file.spec, &folder) {
        remark(&format!("try it:\n  {line}"));
    }
    Ok(output.complete()?)
}

/// The job, from its file or from a command line, and the folder for its artifacts if one is given.
fn job_of(arguments: &RunArguments) -> Result<(JobFile, Option<PathBuf>), Error> {
    let output_dir = arguments.output_dir.clone();
    if let Some(line) = &arguments.from_diffusers_args {
        let (file, translated) = JobFile::from_diffusers(line, &arguments.set)?;
        translated.remarks.iter().for_each(|line| remark(line));
        return Ok((file, output_dir.or(translated.output_dir.map(PathBuf::from))));
    }
    match &arguments.job {
        Some(path) => Ok((JobFile::read(path, &arguments.set)?, output_dir)),
        None => Err(Error::Usage("which job? give a job file".to_owned())),
    }
}

/// `state`: keeps the job's files until they are saved.
async fn run_job(
    cluster: &mut LocalCluster,
    state: &mut RunFolder,
    checked: &mut CheckedJob,
    artifacts_folder: PathBuf,
    output: Output,
    interrupts: &Interrupts,
) -> Result<(), Error> {
    let traces = Traces::of_environment();
    let (mut span, trace) = traces.begin("run");
    let client = cluster.client()?.within(trace);
    let workers = cluster.workers().len();

    // 1. Until the job is there, an interrupt just stops everything.
    let joined = |count| remark(&format!("{count} of {workers} {} joined", plural(workers as u32, "worker")));
    tokio::select! {
        joined = cluster.wait_for_workers(&client, joined) => joined?,
        () = interrupts.first() => return Err(stopped_early()),
    }
    Box::pin(checked.complete_class(&client, Some(&mut *cluster), output, interrupts)).await?;
    let request_id = Uuid::new_v4().to_string();
    let submitted = tokio::select! {
        job = Box::pin(checked.submit(&client, &request_id)) => job,
        () = interrupts.first() => Err(stopped_early()),
    };
    match &submitted {
        Ok(job) => span.set("job", job.job_id.clone()),
        Err(_) => span.fail(),
    }
    drop(span);
    traces.finish().await;
    let job = submitted?;
    output.json(&JobObject::from(&job))?;
    let job_id = job_id(&job)?;
    let first_step = checked.start.first_step();
    state.holds(&RunRecord {
        job_id,
        name: job.name.clone(),
        // Whoever recovers it may be elsewhere.
        output_dir: std::path::absolute(&artifacts_folder).unwrap_or_else(|_| artifacts_folder.clone()),
        resume_option: checked.file.spec.resume_option().map(str::to_owned),
        first_step,
    })?;
    remark(&format!("job {job_id}"));

    // 2. From now on it cancels the job, whose artifacts are still saved.
    let limit = checked.file.spec.checkpoints_total_limit();
    let keeper = Keeper::start(client.clone(), artifacts_folder.clone(), limit);
    let follow = Follow {
        client: &client,
        job_id,
        steps: steps(&job),
        output,
        on_interrupt: OnInterrupt::Cancel,
        cluster: Some(cluster),
        keeper: Some(&keeper),
    };
    let followed = follow.until_the_end(interrupts).await;
    keeper.finish().await;
    let outcome = followed?;
    let saved = save_job(&client, job_id, first_step, &artifacts_folder, output).await;
    if saved.is_ok() {
        state.is_saved();
        checked.keep_sources(&job, &artifacts_folder)?;
    }
    let cancelled = outcome.state == JobState::Cancelled;
    let option = checked.file.spec.resume_option().filter(|_| cancelled && saved.is_ok());
    if let Some(option) = option.filter(|_| has_checkpoint(&artifacts_folder)) {
        remark(&format!(
            "to go on from the newest checkpoint, run it again with:\n  -o {} --set {option}=latest",
            artifacts_folder.display()
        ));
    }
    finish(
        outcome,
        job_id,
        saved.map(|saved| (!saved.is_empty()).then(|| saved_text(&saved, artifacts_folder.display()))),
    )
}

/// The job's own failure matters more than one to save its artifacts. `saved`: what is said of those that were.
fn finish(outcome: Outcome, job_id: Uuid, saved: Result<Option<String>, Error>) -> Result<(), Error> {
    match (outcome.into_result(job_id), saved) {
        (ended, Ok(said)) => {
            said.iter().for_each(|line| remark(line));
            ended
        }
        (Ok(()), Err(error)) => Err(error),
        (Err(ended), Err(error)) => {
            remark(&format!("error: {error}"));
            Err(ended)
        }
    }
}

fn workers_to_start(spec: &JobSpec, asked: Option<u32>) -> Result<u32, Error> {
    let workers = asked.unwrap_or(spec.common.cluster.world_size);
    let least = spec.common.cluster.min_world_size;
    if workers < least {
        return Err(Error::Usage(format!(
            "--workers {workers} is fewer than the job's cluster.min_world_size = {least}; \
             use --workers {least} or more, or lower min_world_size in the job file"
        )));
    }
    if workers > MOST_WORKERS {
        return Err(Error::Usage(format!(
            "{workers} workers on one machine are too many; use --workers with a number from {least} to {MOST_WORKERS}"
        )));
    }
    if workers > spec.common.cluster.world_size {
        remark(&format!(
            "warning: --workers {workers} is more than the job's world_size = {}; the others stay idle",
            spec.common.cluster.world_size
        ));
    }
    Ok(workers)
}

fn print_job(file: &JobFile, output: Output) -> Result<(), Error> {
    let job = JobRequest { spec: file.spec.clone(), queue: file.queue.clone() };
    let text = job
        .to_toml()
        .map_err(|error| Error::Usage(format!("this job cannot be written as TOML: {error}")))?;
    Ok(output.data(text.trim_end(), &job)?)
}

fn stopped_early() -> Error {
    Error::Interrupted("stopped before the job was submitted".to_owned())
}

/// Whether there was an interrupt, without waiting for one.
async fn interrupted_already(interrupts: &Interrupts) -> bool {
    tokio::select! {
        biased;
        () = interrupts.first() => true,
        () = std::future::ready(()) => false,
    }
}

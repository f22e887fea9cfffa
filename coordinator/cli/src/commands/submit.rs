//! `submit`, and the way of a job file to the coordinator that `run` takes too.

use std::path::{Path, PathBuf};

use ringtune_proto::{
    convert::{job_state_name, queue_to_wire, spec_from_wire, spec_to_wire},
    v1,
};
use ringtune_shared::{
    checkpoint::step_of_name,
    job::{JobSpec, Setting},
    trace::TraceContext,
};
use uuid::Uuid;

use super::{
    class_pictures::{self, Lacking},
    destination::Destination,
    fetch::save,
    follow::{Follow, OnInterrupt, Steps, job_id},
    reach::client_of,
    resolve, sweeps,
};
use crate::{
    arguments::SubmitArguments,
    checkpoints::{Start, find_start, others_warning},
    client::{Client, ClientError, Content},
    cluster::LocalCluster,
    embeddings,
    error::Error,
    images::ImageFolder,
    interrupt::Interrupts,
    job_file::{Asked, ImageSource, JobFile, JobFileError},
    objects::JobObject,
    output::{Output, remark},
    references::{JobReference, short_id},
    sources,
    sweep_objects::SweepObject,
    traces::Traces,
};

/// A job whose file and images have been checked.
#[derive(Debug)]
pub(super) struct CheckedJob {
    pub(super) file: JobFile,
    /// As it was asked for: with paths where the job that is submitted has addresses.
    asked: JobSpec,
    /// In the order of the job's image sources; none: uploaded already.
    images: Vec<Option<ImageFolder>>,
    /// The folder of the class, and its place among `images`, as long as it lacks pictures.
    lacking: Option<(usize, Lacking)>,
    /// The embeddings that its concepts start from; the job names their contents already.
    initializers: Vec<Content>,
    pub(super) start: Start,
}

impl CheckedJob {
    /// Checks the images of a job, and the checkpoint that it goes on from; tells the user which files will be skipped,
    /// and where it starts. `folder`: where checkpoints are looked for.
    pub(super) async fn check(file: JobFile, folder: Option<PathBuf>) -> Result<Self, Error> {
        // A checkpoint may be larger than memory: reading it takes its time.
        let checking = tokio::task::spawn_blocking(move || Self::check_blocking(file, folder.as_deref()));
        let died = |error| Err(Error::JobEnded(format!("the check of the job ended unexpectedly: {error}")));
        checking.await.unwrap_or_else(died)
    }

    fn check_blocking(mut file: JobFile, folder: Option<&Path>) -> Result<Self, Error> {
        let lost = sources::restore(&mut file.spec, &file.folder);
        // A coordinator that is there already may have them.
        if folder.is_some() && !lost.is_empty() {
            return Err(JobFileError::Missing(lost).into());
        }
        let (mut images, mut lacking) = (Vec::new(), None);
        for ((field, source), used) in file.images().into_iter().zip(file.spec.image_uses()) {
            let ImageSource::Folder(folder) = source else {
                images.push(None);
                continue;
            };
            let wanted = used.drawn.and_then(|wanted| Lacking::of(&field, &folder, wanted));
            if let Some(found) = wanted {
                lacking = Some((images.len(), found));
                images.push(None);
                continue;
            }
            images.push(Some(ImageFolder::scan(&field, &folder, used.captions.as_deref())?));
        }
        let warnings = |folder: &ImageFolder| [folder.stray_files_warning(), folder.captions_warning()];
        for warning in images.iter().flatten().flat_map(warnings).flatten() {
            remark(&format!("warning: {warning}"));
        }
        if let Some(warning) = file.spec.warning() {
            remark(&format!("warning: {warning}"));
        }
        embeddings::check(&file.spec)?;
        let mut asked = file.spec.clone();
        let initializers = embeddings::take_initializers(&mut file.spec)?;
        let mut counted = file.spec.clone();
        let shown =
            images.iter().zip(file.spec.image_uses()).map(|(images, used)| match (images, used.repeats) {
                (_, 0) => Some(0),
                (images, repeats) => images.as_ref().map(|images| images.count() as u64 * u64::from(repeats)),
            });
        if let Some(shown) = shown.sum::<Option<u64>>() {
            // What is wrong with the number of passes is the coordinator's to say.
            let _ = counted.count_steps(shown);
        }
        let (start, remarks) = find_start(&counted, folder)?;
        remarks.iter().for_each(|line| remark(line));
        if let (Start::From(checkpoint), Some(place)) = (&start, asked.resume_from_mut()) {
            *place = checkpoint.path.display().to_string();
        }
        if let Some(warning) = folder.and_then(|folder| others_warning(folder, &counted)) {
            remark(&format!("warning: {warning}"));
        }
        Ok(Self { file, asked, images, lacking, initializers, start })
    }

    /// Has the pictures drawn that its class lacks.
    ///
    /// # Errors
    /// They cannot be drawn, or its folder cannot be written.
    pub(super) async fn complete_class(
        &mut self,
        client: &Client,
        cluster: Option<&mut LocalCluster>,
        output: Output,
        interrupts: &Interrupts,
    ) -> Result<(), Error> {
        let Some((place, lacking)) = self.lacking.take() else { return Ok(()) };
        let drawn = class_pictures::draw(lacking, &self.file, client, cluster, output, interrupts).await?;
        self.images[place] = Some(drawn);
        Ok(())
    }

    /// Keeps in `folder`, beside its job.toml, where what was uploaded for `job` came from.
    pub(super) fn keep_sources(&self, job: &v1::Job, folder: &Path) -> Result<(), Error> {
        // A coordinator of ours answers with a job that can be read.
        let Some(submitted) = job.spec.clone().and_then(|spec| spec_from_wire(spec).ok()) else {
            return Ok(());
        };
        sources::keep(folder, &self.asked, &submitted).map_err(|source| Error::File {
            doing: "cannot write",
            path: folder.join(sources::FILE),
            source,
        })
    }

    /// Uploads the images and the checkpoint. Gives the job with their addresses.
    pub(super) async fn upload(&self, client: &Client) -> Result<JobSpec, Error> {
        let mut spec = self.file.spec.clone();
        for ((_, place), images) in spec.image_sources().into_iter().zip(&self.images) {
            if let Some(images) = images {
                *place = images.upload(client).await?;
            }
        }
        if self.images.iter().any(Option::is_some) {
            let count: usize = self.images.iter().flatten().map(ImageFolder::count).sum();
            remark(&format!("uploaded {count} images"));
        }
        match &self.start {
            Start::Beginning => spec.resume_from_mut().map(String::clear).unwrap_or_default(),
            Start::Uploaded => (),
            Start::From(file) => {
                let uploaded = file.upload(client).await?;
                spec.resume_from_mut().map(|place| *place = uploaded).unwrap_or_default();
            }
        }
        embeddings::upload(&mut spec, client).await?;
        for content in &self.initializers {
            client.upload(content).await?;
        }
        Ok(spec)
    }

    /// Uploads the images and the checkpoint, and creates the job.
    pub(super) async fn submit(&self, client: &Client, request_id: &str) -> Result<v1::Job, Error> {
        let spec = self.upload(client).await?;
        let queue = queue_to_wire(&self.file.queue);
        client.create_job(spec_to_wire(&spec), queue, request_id).await.map_err(|source| match source {
            ClientError::NoAnswer { .. } | ClientError::Unreachable { .. } => {
                Error::MaybeSubmitted { source, request_id: request_id.to_owned() }
            }
            refused => refused.into(),
        })
    }
}

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

/// Follows a job on a coordinator that is not ours.
pub(super) async fn follow(
    client: &Client,
    job: &v1::Job,
    output: Output,
    interrupts: &Interrupts,
) -> Result<(), Error> {
    let job_id = job_id(job)?;
    let follow = Follow {
        client,
        job_id,
        steps: steps(job),
        output,
        on_interrupt: OnInterrupt::Detach,
        cluster: None,
        keeper: None,
    };
    follow.until_the_end(interrupts).await?.into_result(job_id)
}

/// The steps of a job; none is negative. Before its first one a job has done only those of its checkpoint.
pub(super) fn steps(job: &v1::Job) -> Steps {
    let not_begun = matches!(job.state(), v1::JobState::Queued | v1::JobState::Preparing);
    let done_before = if not_begun { u64::try_from(job.step).unwrap_or(0) } else { 0 };
    Steps { total: u64::try_from(job.total_steps).unwrap_or(0), done_before }
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

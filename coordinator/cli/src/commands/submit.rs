//! `submit` and `watch`, and the way of a job file to the coordinator that `run` takes too.

use ringtune_proto::{
    convert::{job_state_name, spec_to_wire},
    v1,
};
use uuid::Uuid;

use super::follow::{Follow, OnInterrupt};
use crate::{
    arguments::{JobArguments, SubmitArguments},
    client::Client,
    error::Error,
    images::ImageFolder,
    interrupt::Interrupts,
    job_file::{ImageSource, JobFile},
    output::{JobObject, Output, remark},
};

/// A job whose file and images have been checked.
#[derive(Debug)]
pub(super) struct CheckedJob {
    pub(super) file: JobFile,
    images: Option<ImageFolder>,
}

impl CheckedJob {
    /// Checks the images of a job; tells the user which files will be skipped.
    pub(super) fn check(file: JobFile) -> Result<Self, Error> {
        let images = match &file.images {
            ImageSource::Folder(folder) => Some(ImageFolder::scan(folder)?),
            ImageSource::Uploaded => None,
        };
        if let Some(warning) = images.as_ref().and_then(ImageFolder::stray_files_warning) {
            remark(&format!("warning: {warning}"));
        }
        let train = &file.spec.train;
        if let Some(epochs) = train.num_train_epochs.filter(|_| train.max_train_steps > 0) {
            remark(&format!(
                "warning: train.num_train_epochs = {epochs} is without effect: train.max_train_steps = {} counts more",
                train.max_train_steps
            ));
        }
        Ok(Self { file, images })
    }

    /// Uploads the images and creates the job.
    pub(super) async fn submit(&self, client: &Client, request_id: &str) -> Result<v1::Job, Error> {
        let mut spec = self.file.spec.clone();
        if let Some(images) = &self.images {
            spec.data.images = images.upload(client).await?;
            remark(&format!("uploaded {} images", images.count()));
        }
        Ok(client.create_job(spec_to_wire(&spec), request_id).await?)
    }
}

/// `ringtune submit`.
pub(super) async fn submit(arguments: SubmitArguments, interrupts: &Interrupts) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let checked = CheckedJob::check(JobFile::read(&arguments.job, &arguments.set)?)?;
    let client = Client::new(&arguments.coordinator.coordinator);
    let request_id = arguments.request_id.unwrap_or_else(|| Uuid::new_v4().to_string());
    let job = tokio::select! {
        job = checked.submit(&client, &request_id) => job?,
        () = interrupts.first() => return Err(Error::Interrupted("stopped before the job was submitted".to_owned())),
    };
    output.data(&job.job_id, &JobObject::from(&job))?;
    if !arguments.watch {
        remark(&state_text(&job));
        return Ok(());
    }
    follow(&client, &job, output, interrupts).await
}

/// `ringtune watch`.
pub(super) async fn watch(arguments: JobArguments, interrupts: &Interrupts) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let client = Client::new(&arguments.coordinator.coordinator);
    let job = client.get_job(arguments.job).await?;
    follow(&client, &job, output, interrupts).await
}

/// Follows a job on a coordinator that is not ours.
async fn follow(
    client: &Client,
    job: &v1::Job,
    output: Output,
    interrupts: &Interrupts,
) -> Result<(), Error> {
    let job_id = job_id(job)?;
    let follow = Follow {
        client,
        job_id,
        total_steps: total_steps(job),
        output,
        on_interrupt: OnInterrupt::Detach,
        cluster: None,
    };
    follow.until_the_end(interrupts).await?.into_result(job_id)
}

/// The id of a job that the coordinator answered with.
pub(super) fn job_id(job: &v1::Job) -> Result<Uuid, Error> {
    job.job_id.parse().map_err(|_| {
        Error::JobEnded(format!("the coordinator answered with a job id that is no UUID: {:?}", job.job_id))
    })
}

/// The steps of a job; none is negative.
pub(super) fn total_steps(job: &v1::Job) -> u64 {
    u64::try_from(job.total_steps).unwrap_or(0)
}

fn state_text(job: &v1::Job) -> String {
    let state = job_state_name(job.state()).to_lowercase();
    if job.state_reason.is_empty() { state } else { format!("{state}: {}", job.state_reason) }
}

//! The way of a job from its file to the coordinator: what it names is checked, then uploaded.

use std::path::{Path, PathBuf};

use ringtune_proto::{
    convert::{queue_to_wire, spec_from_wire, spec_to_wire},
    v1,
};
use ringtune_shared::job::JobSpec;

use super::class_pictures::{self, Lacking};
use crate::{
    checkpoints::{Start, find_start, others_warning},
    client::{Client, ClientError, Content},
    cluster::LocalCluster,
    embeddings,
    error::Error,
    images::ImageFolder,
    interrupt::Interrupts,
    job_file::{ImageSource, JobFile, JobFileError},
    output::{Output, remark},
    sources,
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

//! One rank of a job that draws: its share of the pictures, each kept as an artifact as soon as it is there.
//!
//! Batches are cut by the job alone, and batch b belongs to rank b mod n: any number of workers draws the same pictures.
//! A sheet of all is rank 0's, which waits for the others' pictures at the coordinator.

use std::{path::PathBuf, sync::Arc, time::Duration};

use image::RgbImage;
use ringtune_shared::{
    embedding::LARGEST_FILE,
    files::write_atomically,
    ids::{ContentHash, ContentHasher},
    job::{EmbeddingPlace, JobSpec, kinds::generate::GenerateSpec},
};
use ringtune_sources::LocalModel;
use tokio::{sync::watch, time::timeout};

use super::{
    RankError, agreement, base_model_name,
    ending::{LAST_UPLOAD, WAIT_FOR_A_BETTER_REASON, dropped, ended},
    files::write_job_file,
    images::one_file,
    journal::LOG_FILE,
    model,
    task::Work,
    uploads::{UploadQueue, Uploads},
};
use crate::{
    engine::{LoadModel, SamplerKind},
    generate::{
        self, Batch, Drawing, EmbeddingFile, ModelName, PictureOptions, picture_file, sheet, to_image,
    },
    ring::Seat,
    session::{Progress, ProgressStage, RankEvent, RankOrders},
};

/// A picture as a file: far above the largest that can be asked for.
const MOST_PICTURE_BYTES: u64 = 256 << 20;
/// Between two looks for the other ranks' pictures.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The sheet among the artifacts.
const SHEET: &str = "sheet.png";
const JOB_FILE: &str = "job.toml";

/// What the pictures follow from.
struct Prepared {
    drawing: Arc<Drawing>,
    model: ModelName,
    /// Of the embeddings' files, in their order.
    embeddings: ContentHash,
    /// Held as long as it may be read.
    _base_model: LocalModel,
}

/// The rank's work, from introduction to last upload.
pub(super) async fn run(
    work: Work,
    spec: GenerateSpec,
    mut orders: watch::Receiver<RankOrders>,
) -> Result<(), RankError> {
    let artist = Artist { work, spec };
    let journal = &artist.work.journal;
    artist.work.introduce().await;
    // 1. A place in the ring, so that a neighbour that is ready first finds it.
    let seat = artist.work.context.rings.take_seat(&artist.work.assignment)?;
    // 2. Prepare, and wait for the others.
    let prepared = tokio::select! {
        prepared = artist.prepare() => prepared,
        _ = ended(&mut orders) => return Err(RankError::Stopped),
    };
    if let Err(error) = &prepared {
        journal.error(format!("preparation failed: {error}")).await;
    }
    let prepared = prepared?;
    journal.event(RankEvent::Ready).await;
    match orders.wait_for(|orders| orders.train || orders.end.is_some()).await {
        Ok(orders) if orders.end.is_none() => (),
        _ => return Err(RankError::Stopped),
    }
    // 3. Draw; every picture is on its way when the next one begins.
    let mut uploads = artist.work.start_uploads(&orders);
    let drawn = tokio::select! {
        drawn = artist.draw(seat, &prepared, &mut uploads.queue) => drawn,
        error = uploads.task.failure() => Err(error),
        _ = ended(&mut orders) => Err(RankError::Stopped),
    };
    artist.finish(drawn, uploads, orders).await
}

/// One rank.
struct Artist {
    work: Work,
    spec: GenerateSpec,
}

impl Artist {
    async fn prepare(&self) -> Result<Prepared, RankError> {
        let (context, assignment) = (&self.work.context, &self.work.assignment);
        let journal = &self.work.journal;
        let progress =
            |stage, done, total| journal.event(RankEvent::Progress(Progress { stage, done, total }));
        // 1. The embeddings.
        let mut files = Vec::with_capacity(self.spec.embeddings.len());
        for (done, embedding) in self.spec.embeddings.iter().enumerate() {
            progress(ProgressStage::Fetch, done as u64, self.spec.embeddings.len() as u64).await;
            files.push(self.fetch(embedding).await);
            if files.last().is_some_and(Result::is_err) {
                break;
            }
        }
        // The cache keeps its bound, also when something is not to be had.
        let (cache, needed) = (context.cache.clone(), self.uploaded_embeddings());
        tokio::task::spawn_blocking(move || cache.trim(&needed)).await?;
        let files: Vec<EmbeddingFile> = files.into_iter().collect::<Result<_, _>>()?;
        // 2. The checkpoint; its hash is taken beside.
        let base_model = model::materialise(&assignment.spec, &context.models, journal).await?;
        let folder = base_model.folder.clone();
        let tokenizer = model::tokenizer_folder_of(&assignment.spec, &folder)?;
        let about = model::options_of(&assignment.spec);
        let variant = about.variant.clone();
        progress(ProgressStage::Load, 0, 1).await;
        let load = LoadModel {
            folder: folder.clone(),
            options: about,
            precision: assignment.precision,
            threads: assignment.threads,
            training: None,
        };
        let info = context.engine.load(load).await?;
        let (fingerprints, hashed) = (Arc::clone(&context.fingerprints), (folder, tokenizer.clone()));
        let hashing =
            tokio::task::spawn_blocking(move || fingerprints.of_model(&hashed.0, &variant, &hashed.1));
        progress(ProgressStage::Load, 1, 1).await;
        // 3. Words and sizes.
        let options = options(&self.spec);
        let resolve = move || Drawing::new(options, &tokenizer, info, &files);
        let drawing = tokio::task::spawn_blocking(resolve).await?.map_err(refused)?;
        let (rows, columns) = (self.spec.prompts.len(), self.spec.count as usize);
        if self.spec.sheet && !sheet::fits(rows, columns, drawing.size()) {
            let problem = "so many pictures of this size make too large a sheet".to_owned();
            return Err(RankError::Field { field: "generate.sheet", problem });
        }
        let name = match &base_model.origin {
            Some(origin) => origin.repository.clone(),
            None => base_model_name(&assignment.spec.common.model.base),
        };
        let model = ModelName { name, hash: hashing.await?? };
        let (sampler, (width, height)) = (drawing.sampler(), drawing.size());
        journal.info(format!("model: {} ({})", model.name, model.hash)).await;
        journal.info(format!("scheduler {sampler}, {} steps, {width} x {height}", self.spec.steps)).await;
        let mut embeddings = ContentHasher::new();
        drawing.embedding_hashes().for_each(|hash| embeddings.update(&hash.0));
        Ok(Prepared {
            drawing: Arc::new(drawing),
            model,
            embeddings: embeddings.finish(),
            _base_model: base_model,
        })
    }

    fn uploaded_embeddings(&self) -> Vec<ContentHash> {
        let uploaded = |embedding: &String| match EmbeddingPlace::parse(embedding) {
            Ok(EmbeddingPlace::Uploaded { hash, .. }) => Some(hash),
            _ => None,
        };
        self.spec.embeddings.iter().filter_map(uploaded).collect()
    }

    /// An embedding as a file of this machine.
    async fn fetch(&self, embedding: &str) -> Result<EmbeddingFile, RankError> {
        let context = &self.work.context;
        match EmbeddingPlace::parse(embedding) {
            Ok(EmbeddingPlace::File(path)) => Ok(EmbeddingFile::at(path.as_ref())),
            Ok(EmbeddingPlace::Uploaded { hash, name }) => {
                one_file(hash, LARGEST_FILE, &context.artifacts, &context.cache).await?;
                Ok(EmbeddingFile { path: context.cache.path(hash), name })
            }
            Err(problem) => Err(RankError::Field { field: "generate.embeddings", problem }),
        }
    }

    async fn draw(
        &self,
        seat: Seat,
        prepared: &Prepared,
        uploads: &mut UploadQueue,
    ) -> Result<(), RankError> {
        // 1. All ranks draw with the same things.
        let mut ring = seat.connect().await?;
        let common = [
            ("model (model.base)", prepared.model.hash),
            ("embedding (generate.embeddings)", prepared.embeddings),
        ];
        let agreed = agreement::check(&mut ring, &common).await;
        if !matches!(agreed, Err(RankError::Ring(_))) {
            // A neighbour that goes wrong from here on is not this rank's concern.
            let _ = ring.close().await;
        }
        agreed?;
        let (rank, ranks) = (self.work.assignment.rank, self.work.assignment.ring.members.len());
        if rank == 0 {
            self.write_job_file(uploads).await?;
        }
        // 2. This rank's pictures.
        let all = prepared.drawing.batches();
        let own: Vec<Batch> = all.into_iter().skip(rank).step_by(ranks.max(1)).collect();
        let total: u64 = own.iter().map(|batch| u64::from(batch.count)).sum();
        let mut done = 0;
        for batch in own {
            self.say_drawn(done, total).await;
            self.draw_batch(batch, prepared, uploads).await?;
            done += u64::from(batch.count);
        }
        self.say_drawn(total, total).await;
        // 3. The sheet.
        if rank == 0 && self.spec.sheet {
            self.draw_sheet(prepared, uploads).await?;
        }
        Ok(())
    }

    async fn say_drawn(&self, done: u64, total: u64) {
        self.work
            .journal
            .event(RankEvent::Progress(Progress { stage: ProgressStage::Draw, done, total }))
            .await;
    }

    async fn draw_batch(
        &self,
        batch: Batch,
        prepared: &Prepared,
        uploads: &mut UploadQueue,
    ) -> Result<(), RankError> {
        // Drawing normal numbers is computing: off the runtime's threads.
        let drawing = Arc::clone(&prepared.drawing);
        let request = tokio::task::spawn_blocking(move || drawing.request(batch)).await?;
        let pictures = self.work.context.engine.generate(request).await?;
        for (number, picture) in (batch.first..).zip(pictures) {
            let text = prepared.drawing.infotext(Some((batch.prompt, number)), &prepared.model);
            let name = image_name(batch.prompt, number, self.spec.count);
            self.keep(name, to_image(picture).map_err(refused)?, text, uploads).await?;
            self.work.context.metrics.pictures.inc();
        }
        Ok(())
    }

    /// Writes a picture, reads it back, and sends it on its way.
    async fn keep(
        &self,
        name: String,
        picture: RgbImage,
        text: String,
        uploads: &mut UploadQueue,
    ) -> Result<(), RankError> {
        let path = self.work.folder.join(name);
        let target = path.clone();
        let write = move || {
            let wrong = |problem: String| RankError::Picture { path: target.clone(), problem };
            let bytes = picture_file::encode(&picture, &text).map_err(|error| wrong(error.to_string()))?;
            let read = image::load_from_memory_with_format(&bytes, image::ImageFormat::Png);
            match read {
                Ok(read) if read.as_rgb8() == Some(&picture) => Ok(write_atomically(&target, &bytes)?),
                Ok(_) => Err(wrong("it reads back as another picture".to_owned())),
                Err(error) => Err(wrong(error.to_string())),
            }
        };
        tokio::task::spawn_blocking(write).await??;
        uploads.push(path).await;
        Ok(())
    }

    async fn write_job_file(&self, uploads: &mut UploadQueue) -> Result<(), RankError> {
        let (path, spec): (PathBuf, JobSpec) =
            (self.work.folder.join(JOB_FILE), self.work.assignment.spec.clone());
        let target = path.clone();
        let write = move || {
            let toml = spec.to_toml().map_err(|error| RankError::JobFile(error.to_string()))?;
            write_job_file(&target, &toml, &spec)
        };
        tokio::task::spawn_blocking(write).await??;
        uploads.push(path).await;
        Ok(())
    }

    /// Waits for all pictures, which other ranks draw as well, and lays them out.
    async fn draw_sheet(&self, prepared: &Prepared, uploads: &mut UploadQueue) -> Result<(), RankError> {
        let (client, job) = (&self.work.context.artifacts, self.work.assignment.ring.job);
        let names: Vec<String> = (0..self.spec.prompts.len())
            .flat_map(|prompt| (0..self.spec.count).map(move |number| (prompt, number)))
            .map(|(prompt, number)| image_name(prompt, number, self.spec.count))
            .collect();
        // A rank that fails ends the job, and with it this wait.
        let hashes = loop {
            let kept = client.list(job).await?;
            match names.iter().map(|name| kept.get(name).copied()).collect::<Option<Vec<ContentHash>>>() {
                Some(hashes) => break hashes,
                None => tokio::time::sleep(LOOK_AGAIN).await,
            }
        };
        let mut pictures = Vec::with_capacity(hashes.len());
        for (name, hash) in names.iter().zip(hashes) {
            let bytes = client.download(hash, MOST_PICTURE_BYTES).await?;
            let decode = move || image::load_from_memory_with_format(&bytes, image::ImageFormat::Png);
            let picture = tokio::task::spawn_blocking(decode).await?;
            let path = PathBuf::from(name);
            let wrong = |error: image::ImageError| RankError::Picture { path, problem: error.to_string() };
            pictures.push(picture.map_err(wrong)?.into_rgb8());
        }
        let drawing = Arc::clone(&prepared.drawing);
        let sheet =
            tokio::task::spawn_blocking(move || sheet::compose(&drawing.sheet_rows(pictures))).await?;
        let text = prepared.drawing.infotext(None, &prepared.model);
        self.keep(SHEET.to_owned(), sheet, text, uploads).await
    }

    /// Waits for the uploads that the outcome calls for.
    async fn finish(
        &self,
        drawn: Result<(), RankError>,
        uploads: Uploads,
        mut orders: watch::Receiver<RankOrders>,
    ) -> Result<(), RankError> {
        let journal = &self.work.journal;
        let outcome = match drawn {
            // A neighbour that was told to stop a moment before us has left the ring already.
            Err(error @ RankError::Ring(_)) => {
                match timeout(WAIT_FOR_A_BETTER_REASON, ended(&mut orders)).await {
                    Ok(_) => Err(RankError::Stopped),
                    Err(_) => Err(error),
                }
            }
            other => other,
        };
        match &outcome {
            Ok(()) => journal.info("all pictures are drawn").await,
            Err(RankError::Stopped) => journal.info("stopped on request").await,
            Err(error) => journal.error(error.to_string()).await,
        }
        let log = (self.work.assignment.rank == 0).then(|| self.work.folder.join(LOG_FILE));
        let uploaded = async {
            let mut uploads = uploads.for_the_last_files();
            if let Some(log) = log {
                uploads.queue.push(log).await;
            }
            uploads.finish().await
        };
        match outcome {
            Ok(()) => tokio::select! {
                uploaded = uploaded => uploaded,
                _ = dropped(&mut orders) => Err(RankError::Stopped),
            },
            Err(RankError::Stopped) => {
                tokio::select! {
                    biased;
                    _ = dropped(&mut orders) => (),
                    uploaded = uploaded => if let Err(error) = uploaded {
                        journal.warn(format!("artifacts could not be kept: {error}")).await;
                    },
                }
                Err(RankError::Stopped)
            }
            Err(error) => {
                // What cannot be kept in time is lost; the job has failed for another reason.
                let _ = timeout(LAST_UPLOAD, uploaded).await;
                Err(error)
            }
        }
    }
}

/// `image-0001.png`: counted over all prompts, those of the first prompt first.
fn image_name(prompt: usize, number: u32, count: u32) -> String {
    format!("image-{:04}.png", prompt as u64 * u64::from(count) + u64::from(number) + 1)
}

fn options(spec: &GenerateSpec) -> PictureOptions {
    let given = |side: u32| (side > 0).then_some(side);
    PictureOptions {
        prompts: spec.prompts.clone(),
        negative_prompt: spec.negative_prompt.clone(),
        scheduler: SamplerKind::from_name(&spec.scheduler),
        steps: spec.steps,
        guidance: spec.guidance_scale,
        seed: spec.seed,
        count: spec.count,
        batch: spec.batch,
        width: given(spec.width),
        height: given(spec.height),
    }
}

/// What the command line calls by its options, by the job's fields.
fn refused(error: generate::Error) -> RankError {
    let field = |field, problem| RankError::Field { field, problem };
    match error {
        generate::Error::Option { option: "--width", problem } => field("generate.width", problem),
        generate::Error::Option { option: "--height", problem } => field("generate.height", problem),
        generate::Error::Option { option: "--steps", problem } => field("generate.steps", problem),
        generate::Error::Option { problem, .. } => field("generate.batch", problem),
        generate::Error::Embeds { file, problem } => {
            field("generate.embeddings", format!("{file}: {problem}"))
        }
        generate::Error::Data(error) => RankError::Data(error),
        generate::Error::Engine(error) => RankError::Engine(error),
        other => field("generate", other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use ringtune_shared::job::kinds::generate::SCHEDULERS;

    use super::*;

    #[test]
    fn the_jobs_schedulers_are_the_engines() {
        assert_eq!(SCHEDULERS, SamplerKind::ALL.map(SamplerKind::name));
        assert_eq!(SamplerKind::from_name(""), None);
    }

    #[test]
    fn pictures_are_counted_over_all_prompts() {
        assert_eq!(image_name(0, 0, 3), "image-0001.png");
        assert_eq!(image_name(2, 1, 3), "image-0008.png");
        assert_eq!(image_name(9, 999, 1000), "image-10000.png");
    }
}

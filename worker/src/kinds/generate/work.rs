//! One rank that draws.

use std::{sync::Arc, time::Duration};

use ringtune_shared::{
    ids::ContentHash,
    job::{JobSpec, kinds::generate::GenerateSpec},
};

use super::{
    error::refused,
    pictures::{image_name, keep, read_back},
    prepare::Prepared,
};
use crate::{
    contents::{UploadQueue, Uploads},
    generate::{Batch, sheet, to_image},
    journal::LOG_FILE,
    rank::{Error, JOB_FILE, LentRing, Orders, Rank, Work, write_job_file},
    session::{Progress, ProgressStage, RankEvent, ended},
};

/// Between two looks for the other ranks' pictures.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The sheet among the artifacts.
const SHEET: &str = "sheet.png";

/// Draws one rank's pictures.
#[derive(Debug)]
pub(crate) struct Artist {
    spec: GenerateSpec,
    prepared: Prepared,
    uploads: Option<Uploads>,
}

impl Artist {
    pub(super) fn new(spec: GenerateSpec, prepared: Prepared) -> Self {
        Self { spec, prepared, uploads: None }
    }
}

impl Work for Artist {
    fn common(&self) -> Vec<(&'static str, ContentHash)> {
        vec![
            ("model (model.base)", self.prepared.model.hash),
            ("embedding (generate.embeddings)", self.prepared.embeddings),
        ]
    }

    async fn begin(&mut self, rank: &Rank, orders: &Orders) -> Result<(), Error> {
        self.uploads = Some(rank.start_uploads(orders));
        Ok(())
    }

    async fn run(&mut self, rank: &Rank, ring: &mut LentRing, orders: &mut Orders) -> Result<(), Error> {
        // All ranks draw with the same things: there is nothing else to exchange.
        ring.leave().await;
        let Self { spec, prepared, uploads } = self;
        let Some(uploads) = uploads else { return Ok(()) };
        let drawing = Drawer { rank, spec, prepared };
        tokio::select! {
            drawn = drawing.draw(&mut uploads.queue) => drawn,
            error = uploads.task.failure() => Err(error.into()),
            _ = ended(orders) => Err(Error::Stopped),
        }
    }

    fn done(&self) -> &'static str {
        "all pictures are drawn"
    }

    async fn finish(&mut self, rank: &Rank, _can_go_on: bool) -> Result<(), Error> {
        let Some(uploads) = self.uploads.take() else { return Ok(()) };
        let mut uploads = uploads.for_the_last_files();
        if rank.assignment.rank == 0 {
            uploads.queue.push(rank.folder.join(LOG_FILE)).await;
        }
        Ok(uploads.finish().await?)
    }
}

/// Draws: every picture is on its way when the next one begins.
struct Drawer<'a> {
    rank: &'a Rank,
    spec: &'a GenerateSpec,
    prepared: &'a Prepared,
}

impl Drawer<'_> {
    async fn draw(&self, uploads: &mut UploadQueue) -> Result<(), Error> {
        let (rank, ranks) = (self.rank.assignment.rank, self.rank.assignment.ring.members.len());
        if rank == 0 {
            self.keep_job_file(uploads).await?;
        }
        // 1. This rank's pictures.
        let all = self.prepared.drawing.batches();
        let own: Vec<Batch> = all.into_iter().skip(rank).step_by(ranks.max(1)).collect();
        let total: u64 = own.iter().map(|batch| u64::from(batch.count)).sum();
        let mut done = 0;
        for batch in own {
            self.say_drawn(done, total).await;
            self.draw_batch(batch, uploads).await?;
            done += u64::from(batch.count);
        }
        self.say_drawn(total, total).await;
        // 2. The sheet.
        if rank == 0 && self.spec.sheet {
            self.draw_sheet(uploads).await?;
        }
        Ok(())
    }

    async fn say_drawn(&self, done: u64, total: u64) {
        let progress = Progress { stage: ProgressStage::Draw, done, total };
        self.rank.journal.event(RankEvent::Progress(progress)).await;
    }

    async fn draw_batch(&self, batch: Batch, uploads: &mut UploadQueue) -> Result<(), Error> {
        let Self { rank, spec, prepared } = self;
        // Drawing normal numbers is computing: off the runtime's threads.
        let drawing = Arc::clone(&prepared.drawing);
        let request = tokio::task::spawn_blocking(move || drawing.request(batch)).await?;
        let pictures = rank.context.engine.generate(request).await.map_err(Error::of_engine)?;
        for (number, picture) in (batch.first..).zip(pictures) {
            let text = prepared.drawing.infotext(Some((batch.prompt, number)), &prepared.model);
            let name = image_name(batch.prompt, number, spec.count);
            keep(rank, name, to_image(picture).map_err(refused)?, text, uploads).await?;
            rank.context.metrics.pictures.inc();
        }
        Ok(())
    }

    async fn keep_job_file(&self, uploads: &mut UploadQueue) -> Result<(), Error> {
        let (folder, spec): (_, JobSpec) = (self.rank.folder.clone(), self.rank.assignment.spec.clone());
        tokio::task::spawn_blocking(move || write_job_file(&folder, &spec)).await??;
        uploads.push(self.rank.folder.join(JOB_FILE)).await;
        Ok(())
    }

    /// Waits for all pictures, which other ranks draw as well, and lays them out.
    async fn draw_sheet(&self, uploads: &mut UploadQueue) -> Result<(), Error> {
        let Self { rank, spec, prepared } = self;
        let (client, job) = (&rank.context.artifacts, rank.assignment.ring.job);
        let names: Vec<String> = (0..spec.prompts.len())
            .flat_map(|prompt| (0..spec.count).map(move |number| (prompt, number)))
            .map(|(prompt, number)| image_name(prompt, number, spec.count))
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
            pictures.push(read_back(client, name, hash).await?);
        }
        let drawing = Arc::clone(&prepared.drawing);
        let sheet =
            tokio::task::spawn_blocking(move || sheet::compose(&drawing.sheet_rows(pictures))).await?;
        let text = prepared.drawing.infotext(None, &prepared.model);
        keep(rank, SHEET.to_owned(), sheet, text, uploads).await
    }
}

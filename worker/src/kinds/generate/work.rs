//! One rank that draws.

use std::{sync::Arc, time::Duration};

use ringtune_shared::{
    ids::ContentHash,
    job::{JobSpec, kinds::generate::GenerateSpec},
    ring::Standing,
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
    rank::{Error, GivenUp, JOB_FILE, Left, LentRing, Orders, Rank, Work, write_job_file},
    rank_state::{RankState, TakenState},
    session::{Assignment, Progress, ProgressStage, RankEvent, StepSummary},
    train::SavedState,
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

    /// Pictures do not depend on each other: whoever enters a ring finds at the coordinator how far the job is.
    async fn standing(&mut self) -> Result<Standing, Error> {
        Ok(Standing { step: 0, state: self.prepared.embeddings })
    }

    async fn last_step(&mut self) -> Result<u64, Error> {
        Ok(0)
    }

    fn state(&self) -> RankState {
        RankState::small(SavedState::default())
    }

    async fn restore(&mut self, _state: TakenState, _step: u64) -> Result<(), Error> {
        Ok(())
    }

    fn unstored(&self) -> Vec<StepSummary> {
        Vec::new()
    }

    async fn take_in(&mut self, _rank: &Rank, _step: StepSummary) -> Result<(), Error> {
        Ok(())
    }

    async fn begin(&mut self, rank: &Rank, orders: &Orders) -> Result<(), Error> {
        if self.uploads.is_none() {
            self.uploads = Some(rank.start_uploads(orders));
        }
        Ok(())
    }

    async fn run(&mut self, rank: &Rank, ring: &mut LentRing, orders: &mut Orders) -> Result<Left, Error> {
        rank.say_entered(0).await;
        let Self { spec, prepared, uploads } = self;
        let (ring, epoch) = (ring.get()?, rank.assignment.ring.epoch);
        let mut given_up = GivenUp::of(ring.failed(), epoch, orders);
        let drawer = Drawer { rank, spec, prepared };
        let Some(running) = uploads else { return Ok(Left::Done) };
        // 1. This rank's pictures.
        tokio::select! {
            drawn = drawer.draw(&mut running.queue) => drawn?,
            error = running.task.failure() => return Err(error.into()),
            error = given_up.reason() => return Err(error),
        }
        // 2. Held until all are at the coordinator: a rank that is lost before is missed by the others, who then draw what
        //    is missing. The sheet is made of the pictures there.
        if ring.can_reform() {
            tokio::select! {
                kept = keep_all(rank, orders, uploads) => kept?,
                error = given_up.reason() => return Err(error),
            }
            tokio::select! {
                gathered = ring.gather_one_each(vec![0.0]) => drop(gathered?),
                error = given_up.reason() => return Err(error),
            }
        }
        if let Some(running) = uploads.as_mut().filter(|_| rank.assignment.is_first() && spec.sheet) {
            tokio::select! {
                drawn = drawer.draw_sheet(&mut running.queue) => drawn?,
                error = running.task.failure() => return Err(error.into()),
                error = given_up.reason() => return Err(error),
            }
        }
        Ok(Left::Done)
    }

    fn done(&self) -> &'static str {
        "all pictures are drawn"
    }

    async fn finish(&mut self, rank: &Rank, _can_go_on: bool) -> Result<(), Error> {
        let Some(uploads) = self.uploads.take() else { return Ok(()) };
        let mut uploads = uploads.for_the_last_files();
        if rank.assignment.is_first() {
            uploads.queue.push(rank.folder.join(LOG_FILE)).await;
        }
        Ok(uploads.finish().await?)
    }

    /// Every picture that is drawn is on its way: another ring draws the others.
    async fn keep_state(&mut self, _rank: &Rank, _orders: &Orders) -> Result<(), Error> {
        match self.uploads.take() {
            Some(uploads) => Ok(uploads.finish().await?),
            None => Ok(()),
        }
    }
}

/// Waits until all files that are on their way are at the coordinator. What comes later goes another way.
async fn keep_all(rank: &Rank, orders: &Orders, uploads: &mut Option<Uploads>) -> Result<(), Error> {
    if let Some(running) = uploads.replace(rank.start_uploads(orders)) {
        running.finish().await?;
    }
    Ok(())
}

/// Draws: every picture is on its way when the next one begins.
struct Drawer<'a> {
    rank: &'a Rank,
    spec: &'a GenerateSpec,
    prepared: &'a Prepared,
}

impl Drawer<'_> {
    async fn draw(&self, uploads: &mut UploadQueue) -> Result<(), Error> {
        let Assignment { ring, rank, .. } = &self.rank.assignment;
        let (rank, ranks) = (rank.unwrap_or_default(), ring.members.len());
        if rank == 0 {
            self.keep_job_file(uploads).await?;
        }
        let all = self.prepared.drawing.batches();
        let mut own: Vec<Batch> = all.into_iter().skip(rank).step_by(ranks.max(1)).collect();
        if !self.rank.is_in_first_ring() {
            // Of those that fall to this rank now, some were drawn in another ring.
            let kept = self.rank.context.artifacts.list(ring.job).await?;
            own.retain(|batch| !self.names(batch).all(|name| kept.contains_key(&name)));
        }
        let total: u64 = own.iter().map(|batch| u64::from(batch.count)).sum();
        let mut done = 0;
        for batch in own {
            self.say_drawn(done, total).await;
            self.draw_batch(batch, uploads).await?;
            done += u64::from(batch.count);
        }
        self.say_drawn(total, total).await;
        Ok(())
    }

    /// Of the pictures of a batch.
    fn names(&self, batch: &Batch) -> impl Iterator<Item = String> {
        let (prompt, count) = (batch.prompt, self.spec.count);
        (batch.first..batch.first + batch.count).map(move |number| image_name(prompt, number, count))
    }

    async fn say_drawn(&self, done: u64, total: u64) {
        let progress = Progress { stage: ProgressStage::Draw, done, total };
        self.rank.journal.event(RankEvent::Progress(progress)).await;
    }

    async fn draw_batch(&self, batch: Batch, uploads: &mut UploadQueue) -> Result<(), Error> {
        let Self { rank, spec, prepared } = self;
        // Drawing normal numbers is computing: off the runtime's threads.
        let drawing = Arc::clone(&prepared.drawing);
        let request = ringtune_shared::tasks::spawn_blocking(move || drawing.request(batch)).await?;
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
        ringtune_shared::tasks::spawn_blocking(move || write_job_file(&folder, &spec)).await??;
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
            ringtune_shared::tasks::spawn_blocking(move || sheet::compose(&drawing.sheet_rows(pictures)))
                .await?;
        let text = prepared.drawing.infotext(None, &prepared.model);
        keep(rank, SHEET.to_owned(), sheet, text, uploads).await
    }
}

//! What one rank draws.

use std::sync::Arc;

use ringtune_shared::{ids::ContentHash, job::kinds::generate::GenerateSpec};

use super::{
    super::shared_out::{Parts, hashes_of},
    error::refused,
    pictures::{image_name, keep, read_back},
    prepare::Prepared,
};
use crate::{
    contents::UploadQueue,
    generate::{Batch, sheet, to_image},
    rank::{Error, Rank},
    session::ProgressStage,
};

/// The sheet among the artifacts.
const SHEET: &str = "sheet.png";

/// Draws batches of pictures: every picture is on its way when the next batch begins.
#[derive(Debug)]
pub(crate) struct Artist {
    spec: GenerateSpec,
    prepared: Prepared,
}

impl Artist {
    pub(super) fn new(spec: GenerateSpec, prepared: Prepared) -> Self {
        Self { spec, prepared }
    }
}

impl Parts for Artist {
    type Part = Batch;

    const STAGE: ProgressStage = ProgressStage::Draw;
    const DONE: &'static str = "all pictures are drawn";

    fn common(&self) -> Vec<(&'static str, ContentHash)> {
        vec![
            ("model (model.base)", self.prepared.model.hash),
            ("embeddings and LoRAs (generate.embeddings, generate.loras)", self.prepared.files),
        ]
    }

    fn state(&self) -> ContentHash {
        self.prepared.files
    }

    fn parts(&self) -> Vec<Batch> {
        self.prepared.drawing.batches()
    }

    fn names(&self, batch: &Batch) -> Vec<String> {
        let (prompt, count) = (batch.prompt, self.spec.count);
        (batch.first..batch.first + batch.count).map(|number| image_name(prompt, number, count)).collect()
    }

    async fn make(&mut self, rank: &Rank, batch: Batch, uploads: &mut UploadQueue) -> Result<(), Error> {
        let Self { spec, prepared } = self;
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

    fn has_whole(&self) -> bool {
        self.spec.sheet
    }

    /// Lays all pictures out, which other ranks draw as well.
    async fn make_whole(&mut self, rank: &Rank, uploads: &mut UploadQueue) -> Result<(), Error> {
        let Self { spec, prepared } = self;
        let (client, job) = (&rank.context.artifacts, rank.assignment.ring.job);
        let names: Vec<String> = (0..spec.prompts.len())
            .flat_map(|prompt| (0..spec.count).map(move |number| (prompt, number)))
            .map(|(prompt, number)| image_name(prompt, number, spec.count))
            .collect();
        let hashes = hashes_of(client, job, &names).await?;
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

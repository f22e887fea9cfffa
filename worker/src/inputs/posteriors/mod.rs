//! The posteriors of a job's pictures: from this worker's cache, from another rank's, or encoded, each by one rank and
//! not before a step shows it.

mod slot;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Instant};

use ringtune_shared::{ids::ContentHash, ring::block_of};

use super::framing::{Framing, Target};
use crate::{
    data::images::ImageFile,
    engine::ModelInfo,
    journal::Journal,
    latents::{self, Give, LatentCache, LatentKey, LatentSource, Shelf},
    rank::{Context, Error},
    ring::RankRing,
    session::{Assignment, Progress, ProgressStage, RankEvent},
    train::{EncodedImage, TrainingImage},
};
use slot::Slot;

/// Posteriors of a picture and its mirror image.
const POSTERIORS: u64 = 2;

/// What the names of a job's entries have in common.
pub(crate) struct Common {
    /// The VAE, by content.
    pub(crate) vae: ContentHash,
    /// Latent channels, and pixels per latent side.
    pub(crate) model: ModelInfo,
    /// All pictures'.
    pub(crate) framing: Framing,
}

/// Pictures that are encoded at once, at most: each time the VAE is loaded for it, and what the steps keep in memory makes
/// room. It grows from one step's to this, so that the first steps come early and the VAE is not loaded for every picture.
const MOST_AHEAD: usize = 8;

/// One picture on its way.
#[derive(Clone, Debug)]
struct Picture {
    file: ImageFile,
    key: LatentKey,
    target: Target,
    /// Its posteriors, once they are known.
    slot: Arc<Slot>,
}

/// The pictures of all concepts, with the posteriors that this worker has.
#[derive(Debug)]
pub(crate) struct Posteriors {
    pictures: Vec<Picture>,
    shelf: Shelf,
    /// Pictures of each concept.
    counts: Vec<usize>,
    /// How many are to be encoded next, at least: the same on all ranks of a ring.
    ahead: usize,
    /// The first of them is still to be encoded.
    waits_for_first: bool,
    /// Where all that this rank has is from.
    tally: Tally,
    /// What it had of its own is counted and told.
    counted: bool,
    /// It was told that all are known.
    complete: bool,
}

/// Looks every picture up in this worker's cache, and decodes this rank's share of those that are not there, so that
/// a broken one is found before the job starts. Blocks.
pub(crate) fn look_up(
    concepts: Vec<Vec<ImageFile>>,
    common: &Common,
    assignment: &Assignment,
    cache: &LatentCache,
    mut shelf: Shelf,
) -> Result<Posteriors, Error> {
    let counts = concepts.iter().map(Vec::len).collect();
    let mut pictures = Vec::new();
    for file in concepts.into_iter().flatten() {
        let content = file.read()?;
        let target = common.framing.target(&file, &content)?;
        let ((width, height), crop) = (target.size(), target.crop());
        let source = LatentSource {
            vae: common.vae,
            image: ContentHash::of(&content),
            width,
            height,
            crop: &crop,
            precision: assignment.precision,
            threads: assignment.threads,
            numerics_class: &assignment.numerics_class,
        };
        let [columns, rows] = [width, height].map(|side| side as usize / common.model.vae_factor);
        let shape = [common.model.latent_channels, rows, columns];
        let key = source.key();
        let slot = Arc::new(Slot::of(file.name.clone(), shape));
        if let Some(encoded) = cache.read(key, shape) {
            slot.fill(shelf.place(key, shape).put_cached(encoded)?);
        }
        pictures.push(Picture { file, key, target, slot });
    }
    // One that joins has no share: the ring has them all.
    let share = assignment.rank.map(|rank| block_of(rank, assignment.ring.members.len(), pictures.len()));
    for number in share.unwrap_or_default() {
        if pictures[number].slot.image().is_none() {
            pictures[number].file.decode()?;
        }
    }
    let own_cache = pictures.iter().filter(|picture| picture.slot.image().is_some()).count();
    let tally = Tally { own_cache, ..Tally::default() };
    Ok(Posteriors {
        pictures,
        shelf,
        counts,
        ahead: 0,
        waits_for_first: true,
        tally,
        counted: false,
        complete: false,
    })
}

/// What one rank counts while it does its part.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    own_cache: usize,
    others: usize,
    encoded: usize,
}

impl Posteriors {
    /// Exchanges what the ranks have. What none has is encoded when a step shows it, or at once, where `at_once`.
    /// Gives the posteriors of each concept's pictures, or where they are read; those of pictures that are not encoded yet
    /// once they are.
    pub(crate) async fn enter(
        &mut self,
        ring: &mut RankRing,
        at_once: bool,
        context: &Context,
        journal: &Journal,
    ) -> Result<Vec<Vec<TrainingImage>>, Error> {
        // 1. Who has what.
        let known = self.pictures.iter().map(|picture| picture.slot.image().is_some());
        let has: Vec<f32> = known.map(|known| f32::from(u8::from(known))).collect();
        let everybody = ring.gather_one_each(has).await?;
        let everybody: Vec<Vec<bool>> =
            everybody.iter().map(|row| row.iter().map(|has| *has > 0.0).collect()).collect();
        let total = self.pictures.len();
        let missing: Vec<usize> =
            (0..total).filter(|picture| !everybody.iter().any(|has| has[*picture])).collect();
        if !self.counted {
            self.counted = true;
            context.metrics.latent_cache_hits.inc_by(POSTERIORS * self.tally.own_cache as u64);
            let (known, when) = (total - missing.len(), if at_once { "" } else { " when they are shown" });
            let to_encode = missing.len();
            let text =
                format!("latents: {known} of {total} pictures from the cache, {to_encode} to encode{when}");
            journal.info(text).await;
        }
        // 2. Round by round, each rank gives one picture that others lack.
        for round in latents::giving(&everybody) {
            self.exchange(&round, ring, context).await?;
        }
        // 3. The others.
        self.ahead = 1;
        if at_once {
            self.encode(&missing, ring, context, journal).await?;
        }
        self.tell_complete(ring, context, journal).await?;
        Ok(self.by_concept())
    }

    /// Of these pictures those that are not encoded yet, each once and in their order.
    pub(crate) fn missing(&self, shown: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut missing = Vec::new();
        for number in shown {
            let picture = self.pictures.get(number);
            if picture.is_some_and(|picture| picture.slot.image().is_none()) && !missing.contains(&number) {
                missing.push(number);
            }
        }
        missing
    }

    /// All are known.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// How many pictures are to be encoded when the next ones are, those of steps to come included.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead
    }

    /// Has pictures encoded that no rank has, each by one rank, and gives them to all. All ranks name the same.
    pub(crate) async fn encode(
        &mut self,
        missing: &[usize],
        ring: &mut RankRing,
        context: &Context,
        journal: &Journal,
    ) -> Result<(), Error> {
        if missing.is_empty() {
            return Ok(());
        }
        self.ahead = (2 * self.ahead).min(MOST_AHEAD);
        let total = missing.len() as u64;
        // Once steps are taken, they say how far the job is.
        let shows = self.waits_for_first;
        let progress = async |done| {
            if shows {
                let progress = Progress { stage: ProgressStage::Encode, done, total };
                journal.event(RankEvent::Progress(progress)).await;
            }
        };
        let mut done = 0;
        progress(done).await;
        for round in latents::encoding(missing, ring.world_size()) {
            self.exchange(&round, ring, context).await?;
            done += round.iter().flatten().count() as u64;
            progress(done).await;
        }
        self.waits_for_first = false;
        // The VAE makes room for the steps, and the cache keeps its bound.
        context.engine.drop_vae().await.map_err(Error::of_engine)?;
        ringtune_shared::tasks::spawn_blocking(self.shelf.trimming()).await?;
        self.tell_complete(ring, context, journal).await
    }

    /// Says where all posteriors are from, once they are known.
    async fn tell_complete(
        &mut self,
        ring: &RankRing,
        context: &Context,
        journal: &Journal,
    ) -> Result<(), Error> {
        if self.complete || self.pictures.iter().any(|picture| picture.slot.image().is_none()) {
            return Ok(());
        }
        self.complete = true;
        // A model that was loaded for another job may have a VAE.
        context.engine.drop_vae().await.map_err(Error::of_engine)?;
        ringtune_shared::tasks::spawn_blocking(self.shelf.trimming()).await?;
        let Tally { own_cache, others, encoded } = self.tally;
        journal
            .info(format!(
                "latents: rank {} had {own_cache}, encoded {encoded} and got {others} from other ranks",
                ring.rank()
            ))
            .await;
        Ok(())
    }

    /// One round: this rank gives its picture, if it has one to give, and takes the others'.
    async fn exchange(
        &mut self,
        round: &[Option<Give>],
        ring: &mut RankRing,
        context: &Context,
    ) -> Result<(), Error> {
        let length = |give: &Give| latents::row_length(self.pictures[give.picture].slot.shape());
        let longest = round.iter().flatten().map(length).max().unwrap_or(1);
        let mut row = Vec::new();
        if let Some(give) = round.get(ring.rank()).copied().flatten() {
            if give.encode {
                let encoded = encode(&self.pictures[give.picture], context).await?;
                self.tally.encoded += 1;
                context.metrics.latents_encoded.inc_by(POSTERIORS);
                row = latents::rows_of(&encoded);
                self.keep(give.picture, encoded).await?;
            } else if let Some(encoded) = self.pictures[give.picture].slot.image().cloned() {
                let reading = move || encoded.read().map(|encoded| latents::rows_of(&encoded));
                row = ringtune_shared::tasks::spawn_blocking(reading).await??;
            }
        }
        // Those of smaller pictures are filled up: all rows of an exchange are equally long.
        row.resize(longest, 0.0);
        let rows = ring.gather_one_each(row).await?;
        for (give, row) in round.iter().zip(&rows) {
            let Some(give) = give else { continue };
            let slot = &self.pictures[give.picture].slot;
            if slot.image().is_none()
                && let Some(encoded) = latents::from_row(row, slot.shape())
            {
                self.tally.others += 1;
                context.metrics.latents_received.inc_by(POSTERIORS);
                self.keep(give.picture, encoded).await?;
            }
        }
        Ok(())
    }

    /// Keeps posteriors for this job and, as far as the disk lets it, for the next.
    async fn keep(&mut self, number: usize, encoded: EncodedImage) -> Result<(), Error> {
        let picture = &self.pictures[number];
        let place = self.shelf.place(picture.key, picture.slot.shape());
        picture.slot.fill(ringtune_shared::tasks::spawn_blocking(move || place.put(encoded)).await??);
        Ok(())
    }

    /// The pictures of each concept, and what each is brought to.
    pub(crate) fn listed(&self) -> Vec<Vec<(ImageFile, Target)>> {
        let mut all = self.pictures.iter().map(|picture| (picture.file.clone(), picture.target));
        self.counts.iter().map(|count| all.by_ref().take(*count).collect()).collect()
    }

    /// As if all were complete: of every shape one picture is encoded and stands for all others of it, or, without a
    /// `context`, none is and all posteriors are zero. Gives the seconds that one took.
    pub(crate) async fn rehearse(
        self,
        context: Option<&Context>,
    ) -> Result<(Vec<Vec<TrainingImage>>, Option<f64>), Error> {
        let mut seconds = None;
        let mut known: Vec<([usize; 3], TrainingImage)> = Vec::new();
        for picture in &self.pictures {
            let shape = picture.slot.shape();
            if !known.iter().any(|(known, _)| *known == shape) {
                let began = Instant::now();
                let encoded = match context {
                    Some(context) => Some(encode(picture, context).await?),
                    None => latents::from_row(&vec![0.0; latents::row_length(shape)], shape),
                };
                if context.is_some() {
                    seconds = Some(began.elapsed().as_secs_f64());
                }
                known.extend(encoded.map(|encoded| (shape, encoded.into())));
            }
        }
        let stand_in = |picture: &Picture| {
            let shape = picture.slot.shape();
            known.iter().find(|(known, _)| *known == shape).map(|(_, encoded)| encoded.clone())
        };
        let mut all = self.pictures.iter().filter_map(stand_in);
        Ok((self.counts.iter().map(|count| all.by_ref().take(*count).collect()).collect(), seconds))
    }

    fn by_concept(&self) -> Vec<Vec<TrainingImage>> {
        let mut all = self.pictures.iter().map(|picture| Slot::training_image(&picture.slot));
        self.counts.iter().map(|count| all.by_ref().take(*count).collect()).collect()
    }
}

/// A picture and its mirror image through the VAE.
async fn encode(picture: &Picture, context: &Context) -> Result<EncodedImage, Error> {
    let (file, target) = (picture.file.clone(), picture.target);
    let [plain, flipped] = ringtune_shared::tasks::spawn_blocking(move || {
        let picture = file.decode()?;
        Ok::<_, Error>([false, true].map(|flip| target.pixels(&picture, flip)))
    })
    .await??;
    Ok(EncodedImage {
        plain: context.engine.encode_image(plain).await.map_err(Error::of_engine)?,
        flipped: context.engine.encode_image(flipped).await.map_err(Error::of_engine)?,
    })
}

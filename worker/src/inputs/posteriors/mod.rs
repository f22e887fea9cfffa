//! The posteriors of a job's pictures: from this worker's cache, from another rank's, or encoded, each by one rank.

use std::time::Instant;

use ringtune_shared::{ids::ContentHash, ring::block_of};

use super::framing::{Framing, Target};
use crate::{
    data::images::ImageFile,
    engine::ModelInfo,
    http::Metrics,
    journal::Journal,
    latents::{self, Give, LatentCache, LatentKey, LatentSource, Shelf},
    rank::{Context, Error},
    ring::RankRing,
    session::{Assignment, Progress, ProgressStage, RankEvent},
    train::{EncodedImage, TrainingImage},
};

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

/// One picture on its way.
#[derive(Clone, Debug)]
struct Picture {
    file: ImageFile,
    key: LatentKey,
    target: Target,
    /// Channels, rows and columns of its latents.
    shape: [usize; 3],
    /// Once it is known.
    encoded: Option<TrainingImage>,
}

/// The pictures of all concepts, with the posteriors that this worker has.
#[derive(Debug)]
pub(crate) struct Posteriors {
    pictures: Vec<Picture>,
    shelf: Shelf,
    /// Pictures of each concept.
    counts: Vec<usize>,
    /// All were known in a former ring.
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
        let encoded = match cache.read(key, shape) {
            Some(encoded) => Some(shelf.place(key, shape).put_cached(encoded)?),
            None => None,
        };
        pictures.push(Picture { file, key, target, shape, encoded });
    }
    // One that joins has no share: the ring has them all.
    let share = assignment.rank.map(|rank| block_of(rank, assignment.ring.members.len(), pictures.len()));
    for number in share.unwrap_or_default() {
        if pictures[number].encoded.is_none() {
            pictures[number].file.decode()?;
        }
    }
    Ok(Posteriors { pictures, shelf, counts, complete: false })
}

/// What one rank counts while it does its part.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    own_cache: usize,
    others: usize,
    encoded: usize,
}

impl Posteriors {
    /// Exchanges what the ranks have, and encodes what none has. Afterwards every rank has all, in its cache too: in the
    /// next ring of the same job nothing is left to encode, and only a rank that is new there may be given something.
    /// Gives the posteriors of each concept's pictures, or where they are read.
    pub(crate) async fn complete(
        &mut self,
        ring: &mut RankRing,
        context: &Context,
        journal: &Journal,
    ) -> Result<Vec<Vec<TrainingImage>>, Error> {
        // 1. Who has what.
        let has: Vec<f32> =
            self.pictures.iter().map(|picture| f32::from(u8::from(picture.encoded.is_some()))).collect();
        let mut tally = Tally { own_cache: has.iter().filter(|has| **has > 0.0).count(), ..Tally::default() };
        let everybody = ring.gather_one_each(has).await?;
        let everybody: Vec<Vec<bool>> =
            everybody.iter().map(|row| row.iter().map(|has| *has > 0.0).collect()).collect();
        let rounds = latents::rounds(&everybody);
        if self.complete && rounds.is_empty() {
            return self.by_concept();
        }
        let to_encode = rounds.iter().flatten().flatten().filter(|give| give.encode).count();
        let total = self.pictures.len();
        journal
            .info(format!(
                "latents: {} of {total} pictures from the cache, {to_encode} to encode",
                total - to_encode
            ))
            .await;
        // 2. Round by round, each rank gives one picture.
        let progress = |done: usize| {
            let progress =
                Progress { stage: ProgressStage::Encode, done: done as u64, total: to_encode as u64 };
            journal.event(RankEvent::Progress(progress))
        };
        let mut done = 0;
        progress(done).await;
        for round in rounds {
            self.exchange(&round, ring, context, &mut tally).await?;
            let encoded = round.iter().flatten().filter(|give| give.encode).count();
            if encoded > 0 {
                done += encoded;
                progress(done).await;
            }
        }
        // 3. The VAE has done its work; the cache keeps its bound.
        context.engine.drop_vae().await.map_err(Error::of_engine)?;
        ringtune_shared::tasks::spawn_blocking(self.shelf.trimming()).await?;
        if self.complete {
            // Told and counted in the ring before.
            return self.by_concept();
        }
        self.complete = true;
        count(&context.metrics, tally);
        let Tally { own_cache, others, encoded } = tally;
        journal
            .info(format!(
                "latents: rank {} had {own_cache}, encoded {encoded} and got {others} from other ranks",
                ring.rank()
            ))
            .await;
        self.by_concept()
    }

    /// One round: this rank gives its picture, if it has one to give, and takes the others'.
    async fn exchange(
        &mut self,
        round: &[Option<Give>],
        ring: &mut RankRing,
        context: &Context,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let length = |give: &Give| latents::row_length(self.pictures[give.picture].shape);
        let longest = round.iter().flatten().map(length).max().unwrap_or(1);
        let mut row = Vec::new();
        if let Some(give) = round.get(ring.rank()).copied().flatten() {
            if give.encode {
                let encoded = encode(&self.pictures[give.picture], context).await?;
                tally.encoded += 1;
                row = latents::rows_of(&encoded);
                self.keep(give.picture, encoded).await?;
            } else if let Some(encoded) = self.pictures[give.picture].encoded.clone() {
                let reading = move || encoded.read().map(|encoded| latents::rows_of(&encoded));
                row = ringtune_shared::tasks::spawn_blocking(reading).await??;
            }
        }
        // Those of smaller pictures are filled up: all rows of an exchange are equally long.
        row.resize(longest, 0.0);
        let rows = ring.gather_one_each(row).await?;
        for (give, row) in round.iter().zip(&rows) {
            let Some(give) = give else { continue };
            let picture = &self.pictures[give.picture];
            if picture.encoded.is_none()
                && let Some(encoded) = latents::from_row(row, picture.shape)
            {
                tally.others += 1;
                self.keep(give.picture, encoded).await?;
            }
        }
        Ok(())
    }

    /// Keeps posteriors for this job and, as far as the disk lets it, for the next.
    async fn keep(&mut self, number: usize, encoded: EncodedImage) -> Result<(), Error> {
        let picture = &mut self.pictures[number];
        let place = self.shelf.place(picture.key, picture.shape);
        picture.encoded = Some(ringtune_shared::tasks::spawn_blocking(move || place.put(encoded)).await??);
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
        mut self,
        context: Option<&Context>,
    ) -> Result<(Vec<Vec<TrainingImage>>, Option<f64>), Error> {
        let mut seconds = None;
        let mut known: Vec<([usize; 3], TrainingImage)> = Vec::new();
        for number in 0..self.pictures.len() {
            let shape = self.pictures[number].shape;
            if !known.iter().any(|(known, _)| *known == shape) {
                let began = Instant::now();
                let encoded = match context {
                    Some(context) => Some(encode(&self.pictures[number], context).await?),
                    None => latents::from_row(&vec![0.0; latents::row_length(shape)], shape),
                };
                if context.is_some() {
                    seconds = Some(began.elapsed().as_secs_f64());
                }
                known.extend(encoded.map(|encoded| (shape, encoded.into())));
            }
            let encoded = known.iter().find(|(known, _)| *known == shape);
            self.pictures[number].encoded = encoded.map(|(_, encoded)| encoded.clone());
        }
        Ok((self.by_concept()?, seconds))
    }

    fn by_concept(&self) -> Result<Vec<Vec<TrainingImage>>, Error> {
        let mut all = self.pictures.iter().map(|picture| picture.encoded.clone());
        let missing = || Error::Ring(crate::ring::Error::Rows);
        self.counts
            .iter()
            .map(|count| all.by_ref().take(*count).collect::<Option<Vec<_>>>().ok_or_else(missing))
            .collect()
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

fn count(metrics: &Metrics, tally: Tally) {
    metrics.latents_encoded.inc_by(POSTERIORS * tally.encoded as u64);
    metrics.latent_cache_hits.inc_by(POSTERIORS * tally.own_cache as u64);
    metrics.latents_received.inc_by(POSTERIORS * tally.others as u64);
}

#[cfg(test)]
mod tests {
    use std::{io::Cursor, path::Path};

    use image::{ImageFormat, Rgb, RgbImage};
    use ringtune_shared::{
        ids::{Epoch, JobId, WorkerId},
        job::parse_job_toml,
        ring::{Member, RingView},
    };

    use super::*;
    use crate::{
        access::Place,
        data::buckets::BucketOptions,
        engine::{Engine as _, FakeEngine, FakeScript, Precision},
    };

    fn model() -> ModelInfo {
        FakeEngine::new(FakeScript::default()).load(&FakeEngine::any_model()).unwrap()
    }

    /// One of two ranks of a job with buckets.
    fn assignment(rank: usize) -> Assignment {
        let text = "kind = \"textual_inversion\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n\
                    [train]\nplaceholder_token = \"<x>\"\ninitializer_token = \"star\"\nresolution = 64\n\
                    enable_bucket = true\nmin_bucket_reso = 32\nmax_bucket_reso = 128\nbucket_reso_steps = 32\n";
        let member = || Member { worker: WorkerId::new(), address: String::new() };
        Assignment {
            ring: RingView { job: JobId::new(), epoch: Epoch::FIRST, members: vec![member(), member()] },
            rank: Some(rank),
            spec: parse_job_toml(text).unwrap(),
            threads: 1,
            precision: Precision::Fp32,
            numerics_class: "class".to_owned(),
            ring_protocol: ringtune_shared::version::RING_PROTOCOLS.max,
            version: ringtune_shared::version::VERSION.to_owned(),
            resume_from: String::new(),
            proof: None,
            re_forms: false,
            trace: None,
        }
    }

    /// What a rank finds of one picture.
    fn found(rank: usize, file: &ImageFile, folder: &Path) -> Result<Posteriors, Error> {
        let (assignment, cache) =
            (assignment(rank), LatentCache::open(folder.join("cache"), 1 << 20).unwrap());
        let framing = Framing::buckets(BucketOptions {
            resolution: 64,
            min_bucket_reso: 32,
            max_bucket_reso: 128,
            bucket_reso_steps: 32,
            bucket_no_upscale: false,
        });
        let common = Common { vae: ContentHash::of(b"vae"), model: model(), framing };
        let shelf = Shelf::new(cache.clone(), folder.join("overflow"), 1 << 20);
        look_up(vec![vec![file.clone()]], &common, &assignment, &cache, shelf)
    }

    #[test]
    fn a_cached_picture_is_not_decoded_for_its_bucket() {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = Cursor::new(Vec::new());
        let picture = RgbImage::from_fn(96, 32, |x, y| Rgb([(x * y) as u8, x as u8, y as u8]));
        picture.write_to(&mut bytes, ImageFormat::Png).unwrap();
        let (mut bytes, path) = (bytes.into_inner(), folder.path().join("a.png"));
        let half = bytes.len() / 2;
        bytes[half..].fill(0);
        std::fs::write(&path, bytes).unwrap();
        let file = ImageFile { name: "a.png".to_owned(), place: Place::at(path) };
        // Pixels are looked at by the rank that would encode them, and by no other.
        assert!(
            matches!(found(0, &file, folder.path()), Err(Error::Work(broken)) if broken.to_string().contains("a.png"))
        );
        let latents = found(1, &file, folder.path()).unwrap();
        let [picture] = latents.pictures.as_slice() else { panic!("{latents:?}") };
        assert_eq!(picture.target.size(), (96, 32));
        assert!(picture.encoded.is_none());
        // Nobody does once it is known.
        let row: Vec<f32> = (0..latents::row_length(picture.shape)).map(|number| number as f32).collect();
        let encoded = latents::from_row(&row, picture.shape).unwrap();
        let cache = LatentCache::open(folder.path().join("cache"), 1 << 20).unwrap();
        cache.write(picture.key, &encoded).unwrap();
        for rank in 0..2 {
            let latents = found(rank, &file, folder.path()).unwrap();
            let known = latents.pictures[0].encoded.as_ref().unwrap();
            assert_eq!(*known.read().unwrap(), encoded);
        }
    }
}

//! The posteriors of a job's pictures: from this worker's cache, from another rank's, or encoded, each by one rank.

use std::{sync::Arc, time::Instant};

use image::RgbImage;
use ringtune_shared::{ids::ContentHash, ring::block_of, spec::TrainSpec};
use tracing::warn;

use super::{Context, RankError, journal::Journal};
use crate::{
    data::{
        self,
        buckets::{BucketOptions, Buckets, Placement},
        images::{self, ImageFile},
        pixels,
    },
    engine::{ModelInfo, Pixels},
    http::Metrics,
    latents::{self, Give, LatentCache, LatentKey, LatentSource},
    ring::RankRing,
    session::{Assignment, Progress, ProgressStage, RankEvent},
    train::EncodedImage,
};

/// Posteriors of a picture and its mirror image.
const POSTERIORS: u64 = 2;

/// How a job brings its pictures to their sizes.
#[derive(Clone, Debug)]
pub(super) enum Framing {
    /// All to one square.
    Square {
        /// Pixels of a side.
        resolution: u32,
        /// Cut to the middle square first.
        center_crop: bool,
    },
    /// Each to its bucket.
    Buckets(Buckets),
}

/// How one picture is brought to its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To a square.
    Square {
        /// Pixels of a side.
        resolution: u32,
        /// Cut to the middle square first.
        center_crop: bool,
    },
    /// To its bucket.
    Bucket(Placement),
}

impl Framing {
    pub(super) fn of(train: &TrainSpec) -> Self {
        if !train.enable_bucket {
            return Self::Square { resolution: train.resolution, center_crop: train.center_crop };
        }
        Self::Buckets(Buckets::new(BucketOptions {
            resolution: train.resolution,
            min_bucket_reso: train.min_bucket_reso,
            max_bucket_reso: train.max_bucket_reso,
            bucket_reso_steps: train.bucket_reso_steps,
            bucket_no_upscale: train.bucket_no_upscale,
        }))
    }

    /// `content`: the picture's file.
    fn target(&self, file: &ImageFile, content: &[u8]) -> Result<Target, RankError> {
        let buckets = match self {
            Self::Square { resolution, center_crop } => {
                return Ok(Target::Square { resolution: *resolution, center_crop: *center_crop });
            }
            Self::Buckets(buckets) => buckets,
        };
        // Decoded, because a picture may be turned.
        let (width, height) = images::decode(&file.name, content)?.dimensions();
        let no_bucket = || data::Error::NoBucket { name: file.name.clone(), width, height };
        Ok(Target::Bucket(buckets.place([width, height]).ok_or_else(no_bucket)?))
    }
}

impl Target {
    /// Columns and rows in pixels.
    pub fn size(self) -> (u32, u32) {
        match self {
            Self::Square { resolution, .. } => (resolution, resolution),
            Self::Bucket(Placement { bucket: [width, height], .. }) => (width, height),
        }
    }

    /// What else decides the pixels, for the name of an entry.
    fn crop(self) -> String {
        match self {
            Self::Square { center_crop: true, .. } => "center".to_owned(),
            Self::Square { center_crop: false, .. } => "squash".to_owned(),
            Self::Bucket(Placement { resized: [width, height], .. }) => format!("middle of {width}x{height}"),
        }
    }

    /// A picture, or its mirror image, as the VAE takes it.
    pub fn pixels(self, picture: &RgbImage, flip: bool) -> Pixels {
        match self {
            Self::Square { resolution, center_crop } => {
                pixels::prepare(picture, resolution, center_crop, flip)
            }
            Self::Bucket(placement) => pixels::prepare_in_bucket(picture, placement, flip),
        }
    }
}

/// What the names of a job's entries have in common.
pub(super) struct Common {
    /// The VAE, by content.
    pub(super) vae: ContentHash,
    /// Latent channels, and pixels per latent side.
    pub(super) model: ModelInfo,
    /// All pictures'.
    pub(super) framing: Framing,
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
    encoded: Option<EncodedImage>,
}

/// The pictures of all concepts, with the posteriors that this worker has.
#[derive(Debug)]
pub(super) struct Latents {
    pictures: Vec<Picture>,
    /// Pictures of each concept.
    counts: Vec<usize>,
}

/// Looks every picture up in this worker's cache, and decodes this rank's share of those that are not there, so that
/// a broken one is found before the job starts. Blocks.
pub(super) fn look_up(
    concepts: Vec<Vec<ImageFile>>,
    common: &Common,
    assignment: &Assignment,
    cache: &LatentCache,
) -> Result<Latents, RankError> {
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
        let encoded = cache.read(key, shape);
        pictures.push(Picture { file, key, target, shape, encoded });
    }
    for number in block_of(assignment.rank, assignment.ring.members.len(), pictures.len()) {
        if pictures[number].encoded.is_none() {
            pictures[number].file.decode()?;
        }
    }
    Ok(Latents { pictures, counts })
}

/// What one rank counts while it does its part.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    own_cache: usize,
    others: usize,
    encoded: usize,
}

impl Latents {
    /// Exchanges what the ranks have, and encodes what none has. Afterwards every rank has all, in its cache too.
    /// Gives the posteriors of each concept's pictures.
    pub(super) async fn complete(
        mut self,
        ring: &mut RankRing,
        context: &Context,
        journal: &Journal,
    ) -> Result<Vec<Vec<EncodedImage>>, RankError> {
        // 1. Who has what.
        let has: Vec<f32> =
            self.pictures.iter().map(|picture| f32::from(u8::from(picture.encoded.is_some()))).collect();
        let mut tally = Tally { own_cache: has.iter().filter(|has| **has > 0.0).count(), ..Tally::default() };
        let everybody = ring.gather_one_each(has).await?;
        let everybody: Vec<Vec<bool>> =
            everybody.iter().map(|row| row.iter().map(|has| *has > 0.0).collect()).collect();
        let rounds = latents::rounds(&everybody);
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
        context.engine.drop_vae().await?;
        let cache = context.latents.clone();
        tokio::task::spawn_blocking(move || cache.trim()).await?;
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
    ) -> Result<(), RankError> {
        let length = |give: &Give| latents::row_length(self.pictures[give.picture].shape);
        let longest = round.iter().flatten().map(length).max().unwrap_or(1);
        let mut row = Vec::new();
        if let Some(give) = round.get(ring.rank()).copied().flatten() {
            if give.encode {
                let encoded = encode(&self.pictures[give.picture], context).await?;
                tally.encoded += 1;
                self.keep(give.picture, encoded, context).await?;
            }
            row = self.pictures[give.picture].encoded.as_ref().map(latents::rows_of).unwrap_or_default();
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
                self.keep(give.picture, encoded, context).await?;
            }
        }
        Ok(())
    }

    /// Keeps posteriors for this job and, as far as the disk lets it, for the next.
    async fn keep(
        &mut self,
        number: usize,
        encoded: EncodedImage,
        context: &Context,
    ) -> Result<(), RankError> {
        let (cache, key, shared) = (context.latents.clone(), self.pictures[number].key, Arc::new(encoded));
        let written = Arc::clone(&shared);
        if let Err(error) = tokio::task::spawn_blocking(move || cache.write(key, &written)).await? {
            warn!(%error, "the latent cache keeps less than it could");
        }
        self.pictures[number].encoded = Some(Arc::unwrap_or_clone(shared));
        Ok(())
    }

    /// The pictures of each concept, and what each is brought to.
    pub(super) fn listed(&self) -> Vec<Vec<(ImageFile, Target)>> {
        let mut all = self.pictures.iter().map(|picture| (picture.file.clone(), picture.target));
        self.counts.iter().map(|count| all.by_ref().take(*count).collect()).collect()
    }

    /// As if all were complete: of every shape one picture is encoded and stands for all others of it, or, without a
    /// `context`, none is and all posteriors are zero. Gives the seconds that one took.
    pub(super) async fn rehearse(
        mut self,
        context: Option<&Context>,
    ) -> Result<(Vec<Vec<EncodedImage>>, Option<f64>), RankError> {
        let mut seconds = None;
        let mut known: Vec<([usize; 3], EncodedImage)> = Vec::new();
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
                known.extend(encoded.map(|encoded| (shape, encoded)));
            }
            let encoded = known.iter().find(|(known, _)| *known == shape);
            self.pictures[number].encoded = encoded.map(|(_, encoded)| encoded.clone());
        }
        Ok((self.by_concept()?, seconds))
    }

    fn by_concept(self) -> Result<Vec<Vec<EncodedImage>>, RankError> {
        let mut all = self.pictures.into_iter().map(|picture| picture.encoded);
        let missing = || RankError::Ring(crate::ring::Error::Rows);
        self.counts
            .iter()
            .map(|count| all.by_ref().take(*count).collect::<Option<Vec<_>>>().ok_or_else(missing))
            .collect()
    }
}

/// A picture and its mirror image through the VAE.
async fn encode(picture: &Picture, context: &Context) -> Result<EncodedImage, RankError> {
    let (file, target) = (picture.file.clone(), picture.target);
    let [plain, flipped] = tokio::task::spawn_blocking(move || {
        let picture = file.decode()?;
        Ok::<_, RankError>([false, true].map(|flip| target.pixels(&picture, flip)))
    })
    .await??;
    Ok(EncodedImage {
        plain: context.engine.encode_image(plain).await?,
        flipped: context.engine.encode_image(flipped).await?,
    })
}

fn count(metrics: &Metrics, tally: Tally) {
    metrics.latents_encoded.inc_by(POSTERIORS * tally.encoded as u64);
    metrics.latent_cache_hits.inc_by(POSTERIORS * tally.own_cache as u64);
    metrics.latents_received.inc_by(POSTERIORS * tally.others as u64);
}

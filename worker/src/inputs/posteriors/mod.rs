//! The posteriors of a job's pictures and of their mirror images: from this worker's cache, from another rank's, or
//! encoded, each by one rank and not before a step shows it; but what step 1 shows is begun with while the model is hashed.
//!
//! All ranks draw the same samples, so they agree without a message on which views step by step have no posterior yet,
//! and on which rank encodes each; its row goes to all ranks before the step. While a worker hashes a model that is new
//! to it, it encodes the first view of step 1 that its rank would have to encode. Each later time more views are
//! encoded at once, those of the next steps included, because the VAE takes memory from the steps. A picture is encoded
//! at most twice in a cluster, as it is and mirrored, and later jobs find both.
//!
//! Invariant: between any two exchanges of a ring, all its ranks know the same posteriors.

mod encoding;
mod slot;
#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc, time::Instant};

use ringtune_shared::{ids::ContentHash, ring::block_of};

use super::framing::Framing;
use crate::{
    data::{
        ImagePlace, OpenTable, Target,
        images::{self, ListedImage},
    },
    engine::{ModelInfo, Moments},
    journal::Journal,
    latents::{self, Give, LatentCache, LatentKey, LatentSource, Shelf},
    rank::{Context, Error},
    ring::RankRing,
    session::Assignment,
    train::{Posterior, TrainingImage, View},
};
use encoding::{encode, tell, zero};
use slot::Slot;

/// Of a picture, and of its mirror image.
const VIEWS: usize = 2;

/// The part that all keys of a job's entries share.
#[derive(Debug)]
pub(crate) struct Common {
    /// The VAE, by content.
    pub(crate) vae: ContentHash,
    /// Latent channels, and pixels per latent side.
    pub(crate) model: ModelInfo,
    /// The framing of all pictures.
    pub(crate) framing: Framing,
    /// Posteriors are kept. Otherwise each is there for the step that shows it.
    pub(crate) keeps: bool,
}

/// Maximal number of pictures encoded at once: each time the VAE is loaded for it, and what the steps keep in memory makes room. It
/// grows from one step's to this, so that the first steps come early and the VAE is not loaded for every picture.
const MOST_AHEAD: usize = 16;

/// A picture and its posteriors.
#[derive(Clone, Debug)]
struct Picture {
    image: ListedImage,
    target: Target,
    /// As it is, and mirrored.
    views: [Encoded; VIEWS],
}

/// A picture or its mirror image, as the VAE encodes it.
#[derive(Clone, Debug)]
struct Encoded {
    key: LatentKey,
    /// Its posterior, once it is known.
    slot: Arc<Slot>,
}

impl Encoded {
    fn is_known(&self) -> bool {
        self.slot.get().is_some()
    }
}

/// The pictures of all concepts, with the posteriors that this worker has.
///
/// The views of all pictures have one numbering, two a picture. The ranks tell each other and give each other parcels of
/// views: of one, or of a picture's two in a ring of an older protocol, in which none is encoded without the other.
#[derive(Debug)]
pub(crate) struct Posteriors {
    pictures: Vec<Picture>,
    shelf: Shelf,
    /// See [`Common::keeps`].
    keeps: bool,
    /// Pictures of each concept.
    counts: Vec<usize>,
    /// Views in a parcel.
    parcel: usize,
    /// Minimal number of parcels to encode next: the same on all ranks of a ring.
    ahead: usize,
    /// No step is taken yet.
    is_before_first_step: bool,
    /// Origins of this rank's posteriors.
    tally: Tally,
    /// Whether its own cached posteriors have been counted and reported.
    counted: bool,
    /// It was told that all are known.
    complete: bool,
}

/// Looks every picture up in this worker's cache, and decodes this rank's share of those that are not there, so that
/// a broken one is found before the job starts. Dropped, it goes no further than the picture that it is at.
pub(crate) async fn look_up(
    concepts: Vec<Vec<ListedImage>>,
    common: Common,
    assignment: &Assignment,
    cache: LatentCache,
    shelf: Shelf,
    journal: &Journal,
) -> Result<Posteriors, Error> {
    let counts: Vec<usize> = concepts.iter().map(Vec::len).collect();
    let count = counts.iter().sum();
    // A joining rank has no share: the ring has all posteriors.
    let share = assignment.rank.map(|rank| block_of(rank, assignment.ring.members.len(), count));
    let open = OpenTable::default();
    let mut desk = Desk { common, assignment: assignment.clone(), cache, shelf, open };
    let mut pictures = Vec::with_capacity(count);
    for (number, image) in concepts.into_iter().flatten().enumerate() {
        tell(journal, number, count).await;
        let is_own = share.as_ref().is_some_and(|share| share.contains(&number));
        let looking = move || desk.look_up(image, is_own).map(|picture| (picture, desk));
        let (picture, back) = ringtune_shared::tasks::spawn_blocking(looking).await??;
        desk = back;
        pictures.push(picture);
    }
    tell(journal, count, count).await;
    let own_cache = pictures.iter().flat_map(|picture| &picture.views).filter(|view| view.is_known()).count();
    let tally = Tally { own_cache, ..Tally::default() };
    Ok(Posteriors {
        pictures,
        keeps: desk.common.keeps,
        shelf: desk.shelf,
        counts,
        parcel: 1,
        ahead: 0,
        is_before_first_step: true,
        tally,
        counted: false,
        complete: false,
    })
}

/// Everything that a look-up needs.
#[derive(Debug)]
struct Desk {
    common: Common,
    assignment: Assignment,
    cache: LatentCache,
    shelf: Shelf,
    open: OpenTable,
}

impl Desk {
    /// `is_own`: of this rank's share. Blocks.
    fn look_up(&mut self, image: ListedImage, is_own: bool) -> Result<Picture, Error> {
        let Self { common, assignment, cache, shelf, open } = self;
        // Of many pictures, most are read when a step shows them.
        let is_drawn = matches!(image.file.place, ImagePlace::Drawn { .. });
        let is_read = !is_drawn && (is_own || common.framing.looks_at_pictures());
        let content = if is_read { image.read_in(open)? } else { Vec::new() };
        let target = common.framing.target(&image.file, &content)?;
        let ((width, height), crop) = (target.size(), target.crop());
        let source = LatentSource {
            vae: common.vae,
            image: image.sha256,
            width,
            height,
            crop: &crop,
            mirrored: false,
            precision: assignment.precision,
            threads: assignment.threads,
            numerics_class: &assignment.numerics_class,
        };
        let [columns, rows] = [width, height].map(|side| side as usize / common.model.vae_factor);
        let shape = [common.model.latent_channels, rows, columns];
        let views = [false, true].map(|mirrored| Encoded {
            key: LatentSource { mirrored, ..source }.key(),
            slot: Arc::new(Slot::of(image.file.name.clone(), shape)),
        });
        for Encoded { key, slot } in views.iter().filter(|_| common.keeps) {
            if let Some(moments) = cache.read(*key, shape) {
                slot.fill(shelf.place(*key, shape).put_cached(moments)?);
            }
        }
        if is_own && !is_drawn && !views.iter().all(Encoded::is_known) {
            images::decode(&image.file.name, &content)?;
        }
        Ok(Picture { image, target, views })
    }
}

/// Counts of one rank.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    own_cache: usize,
    others: usize,
    encoded: usize,
}

impl Posteriors {
    /// Exchanges what the ranks have. What none has is encoded when a step shows it, or at once, where `at_once`: in a ring of
    /// an older protocol, in which pictures and their mirror images are one.
    /// Gives the posteriors of each concept's pictures, or where they are read; those of pictures that are not encoded yet
    /// once they are.
    pub(crate) async fn enter(
        &mut self,
        ring: &mut RankRing,
        at_once: bool,
        context: &Context,
        journal: &Journal,
    ) -> Result<Vec<Vec<TrainingImage>>, Error> {
        self.parcel = if at_once { VIEWS } else { 1 };
        self.begin_step();
        // The model may have been loaded for another job; and previews leave their VAE where their ring broke.
        context.engine.drop_vae().await.map_err(Error::of_engine)?;
        // 1. Who has what.
        let total = self.pictures.len() * VIEWS / self.parcel;
        let known = |parcel| self.views_of(parcel).all(|view| self.view(view).is_known());
        let has: Vec<f32> = (0..total).map(|parcel| f32::from(u8::from(known(parcel)))).collect();
        let everybody = ring.gather_one_each(has).await?;
        let everybody: Vec<Vec<bool>> =
            everybody.iter().map(|row| row.iter().map(|has| *has > 0.0).collect()).collect();
        let missing: Vec<usize> =
            (0..total).filter(|parcel| !everybody.iter().any(|has| has[*parcel])).collect();
        if !self.counted {
            self.counted = true;
            context.metrics.latent_cache_hits.inc_by(self.tally.own_cache as u64);
            let (pictures, all) = (self.pictures.len(), self.pictures.len() * VIEWS);
            let to_encode = missing.len() * self.parcel;
            let (known, when) = (all - to_encode, if at_once { "" } else { ", when they are shown" });
            let text = format!(
                "latents: {known} of {all} known ({pictures} pictures and their mirror images), \
                 {to_encode} to encode{when}"
            );
            journal.info(text).await;
        }
        // 2. Round by round, each rank gives one that others lack.
        for round in latents::giving(&everybody) {
            self.exchange(&round, ring, context).await?;
        }
        // 3. The others.
        self.ahead = 1;
        if at_once {
            self.encode(&missing, ring, context, journal).await?;
        }
        self.tell_complete(ring, journal).await?;
        Ok(self.by_concept())
    }

    /// Forgets what the step before showed, unless posteriors are kept.
    pub(crate) fn begin_step(&self) {
        let views = self.pictures.iter().filter(|_| !self.keeps).flat_map(|picture| &picture.views);
        views.for_each(|view| view.slot.clear());
    }

    /// Of what is shown the parcels that are not encoded yet, each once and in their order.
    pub(crate) fn missing(&self, shown: &[View]) -> Vec<usize> {
        let mut missing = Vec::new();
        for View { image, flip } in shown {
            let number = image * VIEWS + usize::from(*flip);
            let parcel = number / self.parcel;
            if !self.view(number).is_known() && !missing.contains(&parcel) {
                missing.push(parcel);
            }
        }
        missing
    }

    /// The numbers of a parcel's views.
    fn views_of(&self, parcel: usize) -> Range<usize> {
        parcel * self.parcel..(parcel + 1) * self.parcel
    }

    fn view(&self, number: usize) -> &Encoded {
        &self.pictures[number / VIEWS].views[number % VIEWS]
    }

    /// A step is taken for which none had to be encoded.
    pub(crate) fn were_known(&mut self) {
        self.is_before_first_step = false;
    }

    /// Whether all posteriors are known.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Number of parcels to encode next, those of later steps included.
    pub(crate) fn ahead(&self) -> usize {
        if self.keeps { self.ahead } else { 0 }
    }

    /// Has parcels encoded that no rank has, each by one rank, and gives them to all. All ranks name the same.
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
        // Once steps are taken, they say how far the job is.
        let shows = self.is_before_first_step;
        let progress = async |done| {
            if shows {
                tell(journal, done, missing.len()).await;
            }
        };
        let mut done = 0;
        progress(done).await;
        for round in latents::encoding(missing, ring.world_size()) {
            self.exchange(&round, ring, context).await?;
            done += round.iter().flatten().count();
            progress(done).await;
        }
        self.is_before_first_step = false;
        if !self.keeps {
            return Ok(());
        }
        // The VAE makes room for the steps, and the cache keeps its bound.
        context.engine.drop_vae().await.map_err(Error::of_engine)?;
        ringtune_shared::tasks::spawn_blocking(self.shelf.trimming()).await?;
        self.tell_complete(ring, journal).await
    }

    /// Says where all posteriors are from, once they are known.
    async fn tell_complete(&mut self, ring: &RankRing, journal: &Journal) -> Result<(), Error> {
        let all_known = || self.pictures.iter().flat_map(|picture| &picture.views).all(Encoded::is_known);
        if self.complete || !all_known() {
            return Ok(());
        }
        self.complete = true;
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

    /// The first of `shown` that this `rank` of `ranks` would have to encode, as far as it knows by itself.
    fn first_of(&self, shown: &[View], rank: usize, ranks: usize) -> Option<usize> {
        let rounds = latents::encoding(&self.missing(shown), ranks);
        rounds.first()?.get(rank).copied().flatten().map(|give| give.number)
    }

    /// Encodes that one before the ring is there, so that no rank waits for it then. Another rank may know it already: then
    /// nothing is gained, and nothing is lost.
    pub(crate) async fn encode_early(
        &mut self,
        shown: &[View],
        rank: usize,
        ranks: usize,
        context: &Context,
        journal: &Journal,
    ) -> Result<(), Error> {
        if let Some(view) = self.first_of(shown, rank, ranks).filter(|_| self.keeps) {
            tell(journal, 0, 1).await;
            self.encode_one(view, context).await?;
            tell(journal, 1, 1).await;
        }
        Ok(())
    }

    /// Runs one round: this rank gives its parcel, if any, and takes the others'.
    async fn exchange(
        &mut self,
        round: &[Option<Give>],
        ring: &mut RankRing,
        context: &Context,
    ) -> Result<(), Error> {
        let length = |give: &Give| {
            let rows =
                self.views_of(give.number).map(|view| latents::row_length(self.view(view).slot.shape()));
            rows.sum::<usize>()
        };
        let longest = round.iter().flatten().map(length).max().unwrap_or(1);
        let mut row = Vec::with_capacity(longest);
        if let Some(give) = round.get(ring.rank()).copied().flatten() {
            for view in self.views_of(give.number) {
                let known = self.view(view).slot.get();
                let moments = match known {
                    Some(known) => ringtune_shared::tasks::spawn_blocking(move || known.read()).await??,
                    None => self.encode_one(view, context).await?,
                };
                row.extend(latents::row_of(&moments));
            }
        }
        // Rows of smaller pictures are padded: all rows of an exchange have the same length.
        row.resize(longest, 0.0);
        let rows = ring.gather_one_each(row).await?;
        for (give, row) in round.iter().zip(&rows) {
            let Some(give) = give else { continue };
            let mut rest = row.as_slice();
            for view in self.views_of(give.number) {
                let slot = &self.view(view).slot;
                let shape = slot.shape();
                if slot.get().is_none()
                    && let Some(moments) = latents::from_row(rest, shape)
                {
                    self.tally.others += 1;
                    context.metrics.latents_received.inc();
                    self.keep(view, moments).await?;
                }
                rest = rest.get(latents::row_length(shape)..).unwrap_or_default();
            }
        }
        Ok(())
    }

    /// Encodes a view that this rank has to give, and keeps what comes out.
    async fn encode_one(&mut self, view: usize, context: &Context) -> Result<Arc<Moments>, Error> {
        let moments = encode(&self.pictures[view / VIEWS], view % VIEWS == 1, context).await?;
        self.tally.encoded += 1;
        context.metrics.latents_encoded.inc();
        self.keep(view, moments.clone()).await?;
        Ok(Arc::new(moments))
    }

    /// Keeps a posterior for this job and, as far as the disk lets it, for the next.
    async fn keep(&mut self, view: usize, moments: Moments) -> Result<(), Error> {
        let Encoded { key, slot } = self.view(view).clone();
        if !self.keeps {
            slot.fill(moments.into());
            return Ok(());
        }
        let place = self.shelf.place(key, slot.shape());
        slot.fill(ringtune_shared::tasks::spawn_blocking(move || place.put(moments)).await??);
        Ok(())
    }

    /// The pictures of each concept, and what each is brought to.
    pub(crate) fn listed(&self) -> Vec<Vec<(ListedImage, Target)>> {
        let mut all = self.pictures.iter().map(|picture| (picture.image.clone(), picture.target));
        self.counts.iter().map(|count| all.by_ref().take(*count).collect()).collect()
    }

    /// As if all were complete: of every shape one picture is encoded and stands for all others of it, or, without a
    /// `context`, none is and all posteriors are zero. Gives the seconds that one took, with its mirror image.
    pub(crate) async fn rehearse(
        self,
        context: Option<&Context>,
    ) -> Result<(Vec<Vec<TrainingImage>>, Option<f64>), Error> {
        let mut seconds = None;
        let mut known: Vec<([usize; 3], TrainingImage)> = Vec::new();
        for picture in &self.pictures {
            let shape = picture.shape();
            if !known.iter().any(|(known, _)| *known == shape) {
                let began = Instant::now();
                let [plain, flipped] = match context {
                    Some(context) => {
                        [encode(picture, false, context).await?, encode(picture, true, context).await?]
                    }
                    None => [(); VIEWS].map(|()| zero(shape)),
                }
                .map(Posterior::from);
                if context.is_some() {
                    seconds = Some(began.elapsed().as_secs_f64());
                }
                known.push((shape, TrainingImage { plain, flipped }));
            }
        }
        let stand_in = |picture: &Picture| {
            known.iter().find(|(known, _)| *known == picture.shape()).map(|(_, image)| image.clone())
        };
        let mut all = self.pictures.iter().filter_map(stand_in);
        Ok((self.counts.iter().map(|count| all.by_ref().take(*count).collect()).collect(), seconds))
    }

    /// The posteriors of each concept's pictures, or where they will be.
    pub(crate) fn by_concept(&self) -> Vec<Vec<TrainingImage>> {
        let mut all = self.pictures.iter().map(|picture| {
            let [plain, flipped] = picture.views.each_ref().map(|view| Slot::posterior(&view.slot));
            TrainingImage { plain, flipped }
        });
        self.counts.iter().map(|count| all.by_ref().take(*count).collect()).collect()
    }
}

impl Picture {
    /// Channels, rows and columns of its latents.
    fn shape(&self) -> [usize; 3] {
        self.views[0].slot.shape()
    }
}

//! The masks of a job's pictures.

use std::{collections::BTreeMap, path::Path};

use ringtune_shared::{
    job::pictures::{DataSpec, MASKS},
    ring::block_of,
};

use crate::{
    data::{
        self, Mask, Target,
        images::{self, ListedImage, Shown},
    },
    fault::Refusal,
    inputs::{self, PictureFolder, Pictures, PicturesFrom},
    rank::{Error, Rank},
    session::{Progress, ProgressStage, RankEvent},
};

/// The option that makes a picture's transparency its mask.
const ALPHA_MASK: &str = "data.alpha_mask";

/// Where masks are.
#[derive(Debug)]
pub(super) enum Masks {
    /// All of a picture counts alike.
    None,
    /// In the pictures themselves.
    Alpha,
    /// In files of their own, by the names of their pictures without the ends.
    Files(BTreeMap<String, ListedImage>),
}

/// The folder of masks, if the job has one.
pub(super) fn wanted(data: &DataSpec) -> Option<PictureFolder> {
    (!data.masks.is_empty()).then(|| PictureFolder {
        field: MASKS.to_owned(),
        place: data.masks.clone(),
        from: PicturesFrom::Folder,
        captions: None,
        repeats: 1,
    })
}

impl Masks {
    /// `folder`: what was fetched of [`wanted`].
    ///
    /// # Errors
    /// Two masks of one picture.
    pub(super) fn of(data: &DataSpec, folder: Option<&Pictures>) -> Result<Self, Refusal> {
        let Some(folder) = folder else {
            return Ok(if data.alpha_mask.is_some() { Self::Alpha } else { Self::None });
        };
        let mut files: BTreeMap<String, ListedImage> = BTreeMap::new();
        for image in &folder.files {
            if let Some(other) = files.insert(stem(&image.file.name).to_owned(), image.clone()) {
                let problem =
                    format!("{} and {} are masks of the same picture", other.file.name, image.file.name);
                return Err(Refusal::of(MASKS, problem));
            }
        }
        Ok(Self::Files(files))
    }

    /// The mask of each picture of each group; none where no picture has one. `factor`: pixels along a side of a latent position.
    ///
    /// All are checked by their headers; those of this rank's share are decoded, so that a broken one is found before the job
    /// starts.
    ///
    /// # Errors
    /// A picture without a mask, or with one of another size; a mask that cannot be read; transparency that no picture has.
    pub(super) async fn of_pictures(
        self,
        groups: Vec<Vec<(ListedImage, Target)>>,
        factor: usize,
        rank: &Rank,
    ) -> Result<Vec<Vec<Mask>>, Error> {
        let Rank { assignment, journal, .. } = rank;
        if matches!(self, Self::None) {
            return Ok(Vec::new());
        }
        let total = groups.iter().map(Vec::len).sum();
        let share = assignment.rank.map(|rank| block_of(rank, assignment.ring.members.len(), total));
        let (mut all, mut done, mut hiding) = (Vec::new(), 0, 0);
        for group in groups {
            let mut masks = Vec::with_capacity(group.len());
            for (picture, target) in group {
                let progress =
                    Progress { stage: ProgressStage::Encode, done: done as u64, total: total as u64 };
                journal.event(RankEvent::Progress(progress)).await;
                let (image, shown) = self.of_picture(&picture)?;
                let mask = Mask { image, shown, target, factor };
                let is_own = share.as_ref().is_some_and(|share| share.contains(&done));
                let check = move || check(&picture, &mask, is_own).map(|hides| (mask, hides));
                let (mask, hides) = ringtune_shared::tasks::spawn_blocking(check).await??;
                masks.push(mask);
                hiding += usize::from(hides);
                done += 1;
            }
            all.push(masks);
        }
        if hiding == 0 {
            let problem = "got true, and no picture has any transparency: leave it out, or give data.masks";
            return Err(Refusal::of(ALPHA_MASK, problem).into());
        }
        if let Self::Files(files) = &self
            && files.len() > total
            && assignment.is_first()
        {
            journal
                .warn(format!("{MASKS}: {} of {} belong to no picture", files.len() - total, files.len()))
                .await;
        }
        Ok(all)
    }

    /// The file of a picture's mask, and what of it is looked at.
    fn of_picture(&self, picture: &ListedImage) -> Result<(ListedImage, Shown), Refusal> {
        let Self::Files(files) = self else { return Ok((picture.clone(), Shown::Alpha)) };
        let name = &picture.file.name;
        let missing =
            || Refusal::of(MASKS, format!("no file there is called {}, the mask of {name}", stem(name)));
        Ok((files.get(stem(name)).ok_or_else(missing)?.clone(), Shown::Colours))
    }
}

/// Whether a mask may hide something. `whole`: it is decoded too. Blocks.
fn check(picture: &ListedImage, mask: &Mask, whole: bool) -> Result<bool, Error> {
    let field = if mask.shown == Shown::Alpha { ALPHA_MASK } else { MASKS };
    let refused = |error: data::Error| inputs::Error::from(error).in_field(field);
    let name = &mask.image.file.name;
    let bytes = mask.image.read().map_err(refused)?;
    let hides = match mask.shown {
        Shown::Alpha => images::has_alpha(name, &bytes).map_err(refused)?,
        Shown::Colours => {
            let of_picture =
                picture.read().and_then(|bytes| images::size(&picture.file.name, &bytes)).map_err(refused)?;
            let (width, height) = images::size(name, &bytes).map_err(refused)?;
            if (width, height) != of_picture {
                let (across, down) = of_picture;
                let problem = format!(
                    "{name} has {width} x {height} pixels, and its picture {} has {across} x {down}; allowed: as many",
                    picture.file.name
                );
                return Err(Refusal::of(MASKS, problem).into());
            }
            true
        }
    };
    if whole {
        mask.read(false).map_err(refused)?;
    }
    Ok(hides)
}

/// A file's name without its end.
fn stem(name: &str) -> &str {
    Path::new(name).file_stem().and_then(|stem| stem.to_str()).unwrap_or(name)
}

//! Looking up a job's pictures.

use std::{io::Cursor, path::Path};

use image::{ImageFormat, Rgb, RgbImage};
use ringtune_shared::{
    ids::{Epoch, JobId, WorkerId},
    job::parse_job_toml,
    ring::{Member, RingView},
};
use tokio::sync::mpsc;

use super::*;
use crate::{
    access::ConfinedPath,
    data::{buckets::BucketOptions, images::ImageFile},
    engine::{Engine as _, FakeEngine, FakeScript},
    session::{Progress, ProgressStage, RankEvent, RankKey},
};

fn model() -> ModelInfo {
    FakeEngine::new(FakeScript::default()).load(&FakeEngine::any_model()).unwrap()
}

/// Assignment of one of two ranks of a job with buckets.
fn assignment(rank: usize) -> Assignment {
    let text = "kind = \"textual_inversion\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n\
                [train]\nplaceholder_token = \"<x>\"\ninitializer_token = \"star\"\nresolution = 64\n\
                enable_bucket = true\nmin_bucket_reso = 32\nmax_bucket_reso = 128\nbucket_reso_steps = 32\n";
    let member = || Member { worker: WorkerId::new(), address: String::new() };
    let ring = RingView { job: JobId::new(), epoch: Epoch::FIRST, members: vec![member(), member()] };
    Assignment::new(ring, rank, parse_job_toml(text).unwrap())
}

/// A journal, and what is said to it.
fn journal() -> (Journal, mpsc::Receiver<(RankKey, RankEvent)>) {
    let (events, said) = mpsc::channel(64);
    (Journal::new(RankKey { job: JobId::new(), epoch: Epoch::FIRST }, Some(0), events), said)
}

/// Looks up one picture.
async fn found(rank: usize, image: &ListedImage, folder: &Path) -> Result<Posteriors, Error> {
    found_of(rank, vec![image.clone()], folder, &journal().0).await
}

async fn found_of(
    rank: usize,
    images: Vec<ListedImage>,
    folder: &Path,
    journal: &Journal,
) -> Result<Posteriors, Error> {
    let (assignment, cache) = (assignment(rank), LatentCache::open(folder.join("cache"), 1 << 20).unwrap());
    let framing = Framing::buckets(BucketOptions {
        resolution: 64,
        min_bucket_reso: 32,
        max_bucket_reso: 128,
        bucket_reso_steps: 32,
        bucket_no_upscale: false,
    });
    let common = Common { vae: ContentHash::of(b"vae"), model: model(), framing, keeps: true };
    let shelf = Shelf::new(cache.clone(), folder.join("overflow"), 1 << 20);
    look_up(vec![images], common, &assignment, cache, shelf, journal).await
}

fn listed(path: &Path) -> ListedImage {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let sha256 = ContentHash::of(&std::fs::read(path).unwrap());
    ListedImage { file: ImageFile { name, place: ConfinedPath::at(path).into() }, sha256 }
}

fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let picture = RgbImage::from_fn(width, height, |x, y| Rgb([(x * y) as u8, x as u8, y as u8]));
    picture.write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

#[tokio::test]
async fn pictures_are_looked_up_one_after_the_other_and_each_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let images: Vec<ListedImage> = (0..3)
        .map(|number| {
            let path = folder.path().join(format!("{number}.png"));
            std::fs::write(&path, png(64, 32 + 32 * number)).unwrap();
            listed(&path)
        })
        .collect();
    let (journal, mut said) = journal();
    // 1. Nothing is known.
    let found = found_of(0, images.clone(), folder.path(), &journal).await.unwrap();
    assert_eq!(found.pictures.len(), 3);
    let mut told = Vec::new();
    while let Ok((_, event)) = said.try_recv() {
        let RankEvent::Progress(Progress { stage, done, total }) = event else { panic!("{event:?}") };
        assert_eq!((stage, total), (ProgressStage::Encode, 3));
        told.push(done);
    }
    assert!(told.first() == Some(&0) && told.last() == Some(&3), "{told:?}");
    // 2. Of one that has changed since the pictures were listed nothing is looked up.
    std::fs::write(folder.path().join("1.png"), png(64, 32)).unwrap();
    let changed = found_of(1, images, folder.path(), &journal).await.unwrap_err();
    assert!(changed.to_string().contains("1.png has changed since the job began"), "{changed}");
    assert_eq!(changed.fault(), crate::fault::Fault::Machine);
}

#[tokio::test]
async fn a_cached_picture_is_not_decoded_for_its_bucket() {
    let folder = tempfile::tempdir().unwrap();
    let (mut bytes, path) = (png(96, 32), folder.path().join("a.png"));
    let half = bytes.len() / 2;
    bytes[half..].fill(0);
    std::fs::write(&path, bytes).unwrap();
    let image = listed(&path);
    // Pixels are looked at by the rank that would encode them, and by no other.
    assert!(
        matches!(found(0, &image, folder.path()).await, Err(Error::Work(broken)) if broken.to_string().contains("a.png"))
    );
    let latents = found(1, &image, folder.path()).await.unwrap();
    let [picture] = latents.pictures.as_slice() else { panic!("{latents:?}") };
    assert_eq!(picture.target.size(), (96, 32));
    assert!(picture.views.iter().all(|view| !view.is_known()));
    // No rank does once it and its mirror image are known.
    let shape = picture.shape();
    let encoded = [0.0, 0.5].map(|first| {
        let row: Vec<f32> = (0..latents::row_length(shape)).map(|number| first + number as f32).collect();
        latents::from_row(&row, shape).unwrap()
    });
    let cache = LatentCache::open(folder.path().join("cache"), 1 << 20).unwrap();
    cache.write(picture.views[0].key, &encoded[0]).unwrap();
    assert!(found(0, &image, folder.path()).await.is_err());
    cache.write(picture.views[1].key, &encoded[1]).unwrap();
    for rank in 0..2 {
        let latents = found(rank, &image, folder.path()).await.unwrap();
        let known = latents.pictures[0].views.each_ref().map(|view| view.slot.get().unwrap().read().unwrap());
        assert_eq!(known.map(Arc::unwrap_or_clone), encoded);
    }
}

#[tokio::test]
async fn each_rank_is_early_with_another_view_of_step_1() {
    let folder = tempfile::tempdir().unwrap();
    let images: Vec<ListedImage> = (0..2)
        .map(|number| {
            let path = folder.path().join(format!("{number}.png"));
            std::fs::write(&path, png(64, 64 + number)).unwrap();
            listed(&path)
        })
        .collect();
    let view = |image, flip| View { image, flip };
    let shown = [view(1, true), view(0, false), view(1, true), view(1, false)];
    let found = found_of(0, images, folder.path(), &journal().0).await.unwrap();
    let first = |rank, ranks| found.first_of(&shown, rank, ranks);
    assert_eq!([first(0, 3), first(1, 3), first(2, 3)], [Some(3), Some(0), Some(2)]);
    assert_eq!([first(0, 1), first(3, 4)], [Some(3), None]);
    // Cached posteriors are not encoded again.
    let shape = found.pictures[1].shape();
    found.pictures[1].views[1].slot.fill(Posterior::from(zero(shape)));
    assert_eq!([first(0, 2), first(1, 2)], [Some(0), Some(2)]);
    for view in found.pictures.iter().flat_map(|picture| &picture.views) {
        view.slot.fill(Posterior::from(zero(view.slot.shape())));
    }
    assert_eq!(first(0, 2), None);
}

//! What a rank finds of a job's pictures.

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
    let (assignment, cache) = (assignment(rank), LatentCache::open(folder.join("cache"), 1 << 20).unwrap());
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
    assert!(picture.views.iter().all(|view| !view.is_known()));
    // Nobody does once it and its mirror image are known.
    let shape = picture.shape();
    let encoded = [0.0, 0.5].map(|first| {
        let row: Vec<f32> = (0..latents::row_length(shape)).map(|number| first + number as f32).collect();
        latents::from_row(&row, shape).unwrap()
    });
    let cache = LatentCache::open(folder.path().join("cache"), 1 << 20).unwrap();
    cache.write(picture.views[0].key, &encoded[0]).unwrap();
    assert!(found(0, &file, folder.path()).is_err());
    cache.write(picture.views[1].key, &encoded[1]).unwrap();
    for rank in 0..2 {
        let latents = found(rank, &file, folder.path()).unwrap();
        let known = latents.pictures[0].views.each_ref().map(|view| view.slot.get().unwrap().read().unwrap());
        assert_eq!(known.map(Arc::unwrap_or_clone), encoded);
    }
}

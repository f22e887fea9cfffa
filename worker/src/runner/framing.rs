//! How pictures are brought to the sizes that a job trains at.

use image::RgbImage;
use ringtune_shared::job::kinds::textual_inversion::TrainSpec;

use super::RankError;
use crate::{
    data::{
        self,
        buckets::{BucketOptions, Buckets, Placement},
        images::{self, ImageFile},
        pixels,
    },
    engine::Pixels,
};

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
    pub(super) fn target(&self, file: &ImageFile, content: &[u8]) -> Result<Target, RankError> {
        let buckets = match self {
            Self::Square { resolution, center_crop } => {
                return Ok(Target::Square { resolution: *resolution, center_crop: *center_crop });
            }
            Self::Buckets(buckets) => buckets,
        };
        let (width, height) = images::size(&file.name, content)?;
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
    pub(super) fn crop(self) -> String {
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

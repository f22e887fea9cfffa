//! Resizes and crops pictures to a job's training sizes.

use image::RgbImage;

use super::Error;
use crate::{
    data::{
        self,
        buckets::{BucketOptions, Buckets, Placement},
        images::{self, ImageFile},
        pixels,
    },
    engine::Pixels,
};

/// A job's way of framing its pictures.
#[derive(Clone, Debug)]
pub(crate) enum Framing {
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

/// A picture's target size.
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
    /// Each picture to the bucket that fits it best.
    pub(crate) fn buckets(options: BucketOptions) -> Self {
        Self::Buckets(Buckets::new(options))
    }

    /// Whether a picture's target depends on the picture.
    pub(crate) fn looks_at_pictures(&self) -> bool {
        matches!(self, Self::Buckets(_))
    }

    /// `content`: the picture's file, where it is looked at.
    pub(crate) fn target(&self, file: &ImageFile, content: &[u8]) -> Result<Target, Error> {
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

    /// The crop, as part of an entry's key.
    pub(crate) fn crop(self) -> String {
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

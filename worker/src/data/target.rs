//! The size that a picture is brought to.

use image::RgbImage;

use super::{buckets::Placement, pixels};
use crate::engine::Pixels;

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

impl Target {
    /// Columns and rows in pixels.
    pub fn size(self) -> (u32, u32) {
        match self {
            Self::Square { resolution, .. } => (resolution, resolution),
            Self::Bucket(Placement { bucket: [width, height], .. }) => (width, height),
        }
    }

    /// The crop, as part of an entry's key.
    pub fn crop(self) -> String {
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

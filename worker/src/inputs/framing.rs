//! Resizes and crops pictures to a job's training sizes.

use super::Error;
use crate::data::{
    self, Target,
    buckets::{BucketOptions, Buckets},
    images::{self, ImageFile},
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

//! How much each position of a picture's latents counts in the loss.
//!
//! Source: kohya's sd-scripts, library/custom_train_functions.py, `apply_masked_loss`: the mask is resized and cut like its picture,
//! and a latent position has the mean of its pixels.

use super::{
    Error, ListedImage, Target,
    images::{self, Shown},
};

/// The mask of one picture.
#[derive(Clone, Debug)]
pub struct Mask {
    /// Where it lies.
    pub image: ListedImage,
    /// What of that it is: a grey picture, or a picture's own transparency.
    pub shown: Shown,
    /// The size that its picture is brought to.
    pub target: Target,
    /// Pixels along a side of a latent position; at least 1.
    pub factor: usize,
}

impl Mask {
    /// [latent height, latent width], each from 0 to 1; with `flip` of the mirror image. Blocks.
    ///
    /// # Errors
    /// The file cannot be read, has changed since it was listed, or cannot be decoded.
    pub fn read(&self, flip: bool) -> Result<Vec<f32>, Error> {
        let picture = images::decode_shown(&self.image.file.name, &self.image.read()?, self.shown)?;
        let pixels = self.target.pixels(&picture, flip);
        let (factor, columns) = (self.factor, pixels.width / self.factor);
        let positions =
            (0..pixels.height / factor).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let mean = |(row, column): (usize, usize)| {
            let rows = row * factor..(row + 1) * factor;
            let of_row = |row: usize| &pixels.data[row * pixels.width + column * factor..][..factor];
            // Its first channel: a grey picture's are alike.
            let sum: f64 = rows.flat_map(of_row).map(|value| f64::from(*value)).sum();
            ((sum / (factor * factor) as f64 + 1.0) / 2.0) as f32
        };
        Ok(positions.map(mean).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use image::{Rgba, RgbaImage};
    use ringtune_shared::ids::ContentHash;

    use super::*;
    use crate::{access::ConfinedPath, data::ImageFile};

    /// Four columns: three are opaque and white, one is clear and black.
    fn mask(folder: &Path, shown: Shown) -> Mask {
        let path = folder.join("a.png");
        RgbaImage::from_fn(4, 4, |x, _| Rgba([if x < 3 { 255 } else { 0 }; 4])).save(&path).unwrap();
        let sha256 = ContentHash::of(&std::fs::read(&path).unwrap());
        let file = ImageFile { name: "a.png".to_owned(), place: ConfinedPath::at(path).into() };
        let target = Target::Square { resolution: 4, center_crop: false };
        Mask { image: ListedImage { file, sha256 }, shown, target, factor: 2 }
    }

    #[test]
    fn a_position_has_the_mean_of_its_pixels_and_is_mirrored_with_its_picture() {
        let folder = tempfile::tempdir().unwrap();
        for shown in [Shown::Colours, Shown::Alpha] {
            let mask = mask(folder.path(), shown);
            assert_eq!(mask.read(false).unwrap(), [1.0, 0.5, 1.0, 0.5]);
            assert_eq!(mask.read(true).unwrap(), [0.5, 1.0, 0.5, 1.0]);
        }
        let other = mask(folder.path(), Shown::Alpha);
        std::fs::write(folder.path().join("a.png"), b"x").unwrap();
        assert!(other.read(false).unwrap_err().to_string().contains("a.png has changed"));
    }

    #[test]
    fn a_picture_that_hides_nothing_counts_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut mask = mask(folder.path(), Shown::Alpha);
        let path = folder.path().join("b.png");
        image::RgbImage::new(4, 4).save(&path).unwrap();
        mask.image.sha256 = ContentHash::of(&std::fs::read(&path).unwrap());
        mask.image.file.place = ConfinedPath::at(path).into();
        assert_eq!(mask.read(false).unwrap(), [1.0; 4]);
    }
}

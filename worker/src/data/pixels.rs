//! A picture as the VAE takes it.

use image::{RgbImage, imageops};

use super::{buckets::Placement, resample};
use crate::engine::Pixels;

/// Cuts the largest square out of the middle (with `center_crop`), resizes to `resolution` x `resolution`
/// (without `center_crop` the picture is squashed), mirrors it (with `flip`) and maps 0..=255 to -1..=1.
///
/// Prepares a picture with the same bits as diffusers' examples/textual_inversion/textual_inversion.py, TextualInversionDataset, with its
/// default bicubic interpolation. `resolution` is at least 1.
pub fn prepare(picture: &RgbImage, resolution: u32, center_crop: bool, flip: bool) -> Pixels {
    let resized = if center_crop {
        resample::bicubic(&crop_middle_square(picture), resolution, resolution)
    } else {
        resample::bicubic(picture, resolution, resolution)
    };
    to_pixels(resized, flip)
}

/// The picture in its bucket: resized, the middle cut out, mirrored (with `flip`), and mapped to -1..=1.
///
/// Resizes and crops with the same bits as Pillow's bicubic resize and crop.
pub fn prepare_in_bucket(picture: &RgbImage, placement: Placement, flip: bool) -> Pixels {
    to_pixels(cut_for_bucket(picture, placement), flip)
}

/// The picture resized, and the middle of it, 8-bit.
pub fn cut_for_bucket(picture: &RgbImage, placement: Placement) -> RgbImage {
    let ([width, height], [across, down]) = (placement.resized, placement.bucket);
    let resized = resample::bicubic(picture, width, height);
    let (left, top) = (width.saturating_sub(across) / 2, height.saturating_sub(down) / 2);
    imageops::crop_imm(&resized, left, top, across, down).to_image()
}

fn to_pixels(picture: RgbImage, flip: bool) -> Pixels {
    let placed = if flip { imageops::flip_horizontal(&picture) } else { picture };
    let samples = placed.as_raw();
    let plane = |channel: usize| samples.iter().skip(channel).step_by(3).map(|sample| to_unit(*sample));
    let (height, width) = (placed.height() as usize, placed.width() as usize);
    Pixels { height, width, data: (0..3).flat_map(plane).collect() }
}

fn crop_middle_square(picture: &RgbImage) -> RgbImage {
    let (width, height) = picture.dimensions();
    let side = width.min(height);
    imageops::crop_imm(picture, (width - side) / 2, (height - side) / 2, side, side).to_image()
}

/// In 64 bits and then rounded, as numpy does it.
fn to_unit(sample: u8) -> f32 {
    (f64::from(sample) / 127.5 - 1.0) as f32
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    #[test]
    fn channels_come_first_and_the_ends_are_exact() {
        let picture = RgbImage::from_fn(2, 2, |x, y| {
            Rgb([if x == 0 { 0 } else { 255 }, 0, if y == 0 { 0 } else { 255 }])
        });
        let pixels = prepare(&picture, 2, false, false);
        assert_eq!((pixels.height, pixels.width), (2, 2));
        assert_eq!(pixels.data, [-1., 1., -1., 1., -1., -1., -1., -1., -1., -1., 1., 1.]);
        let flipped = prepare(&picture, 2, false, true);
        assert_eq!(flipped.data, [1., -1., 1., -1., -1., -1., -1., -1., -1., -1., 1., 1.]);
    }

    #[test]
    fn a_crop_takes_the_middle_and_a_squash_takes_all() {
        // Columns: red, green, green, blue; the odd pixel of a 5-wide picture is cut on the right.
        let red = Rgb([255, 0, 0]);
        let picture = RgbImage::from_fn(4, 2, |x, _| if x == 0 || x == 3 { red } else { Rgb([0, 255, 0]) });
        let cropped = prepare(&picture, 2, true, false);
        assert!(cropped.data[..4].iter().all(|red| *red == -1.0));
        let squashed = prepare(&picture, 2, false, false);
        assert!(squashed.data[..4].iter().all(|red| *red > -1.0));
        let odd = RgbImage::from_fn(5, 2, |x, _| if x == 1 || x == 2 { red } else { Rgb([0; 3]) });
        assert!(prepare(&odd, 2, true, false).data[..4].iter().all(|red| *red == 1.0));
    }
}

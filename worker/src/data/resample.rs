//! Bicubic resampling of 8-bit RGB pictures, bit for bit as Pillow's `Image.resize(…, BICUBIC)`.
//!
//! Two passes, along the rows and along the columns, each a convolution whose window grows with the reduction (so that shrinking does not
//! alias), in integers: weights of 22 fractional bits, rounded to 8 bits after each pass. Integers because the
//! training script feeds exactly these pixels, and because they are the same on every processor. (The crate
//! fast_image_resize has the same filter, but 15-bit weights: off by one in places.)
//! Source: Pillow 13, src/libImaging/Resample.c. (Before 13 the rows always came first, which gives a few levels of
//! difference in tall pictures.)

use image::RgbImage;

/// Fractional bits of a weight: 32, less 8 for the sample, less 2 for the sign and the overshoot of the filter.
const WEIGHT_BITS: u32 = 22;
const CHANNELS: usize = 3;
/// Half the width of the filter, in pixels of the larger picture.
const SUPPORT: f64 = 2.0;

/// Resamples the whole picture to `width` x `height`, both at least 1.
pub(super) fn bicubic(picture: &RgbImage, width: u32, height: u32) -> RgbImage {
    let (width, height) = (width as usize, height as usize);
    let (from_width, from_height) = (picture.width() as usize, picture.height() as usize);
    let rows = |samples: Vec<u8>| {
        if width == from_width {
            return samples;
        }
        resample_rows(&samples, from_width, &windows(from_width, width))
    };
    let columns = |samples: Vec<u8>, width: usize| {
        if height == from_height {
            return samples;
        }
        resample_columns(&samples, width * CHANNELS, &windows(from_height, height))
    };
    // The height first where it shrinks by much more than the width. Each pass rounds, so the order shows.
    let (lost_rows, lost_columns) = (from_height.saturating_sub(height), from_width.saturating_sub(width));
    let samples = picture.as_raw().clone();
    let samples = if lost_rows > 2 * lost_columns {
        rows(columns(samples, from_width))
    } else {
        columns(rows(samples), width)
    };
    let mut resized = RgbImage::new(width as u32, height as u32);
    resized.copy_from_slice(&samples);
    resized
}

/// Filter of an output pixel: integer `weights` of the input pixels from `first` on.
struct Window {
    first: usize,
    weights: Vec<i32>,
}

fn windows(from: usize, to: usize) -> Vec<Window> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let support = SUPPORT * stretch;
    let window = |position: usize| {
        let center = (position as f64 + 0.5) * scale;
        // Cut to integers after adding a half, as C does: the first is not below 0.
        let first = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(from);
        let weights: Vec<f64> =
            (first..end).map(|x| weight((x as f64 - center + 0.5) * (1.0 / stretch))).collect();
        let sum: f64 = weights.iter().sum();
        let scaled = |w: &f64| (if sum == 0.0 { *w } else { *w / sum }) * f64::from(1 << WEIGHT_BITS);
        // Rounded half away from zero, then cut.
        let whole = |w: f64| (if w < 0.0 { w - 0.5 } else { w + 0.5 }) as i32;
        Window { first, weights: weights.iter().map(scaled).map(whole).collect() }
    };
    (0..to).map(window).collect()
}

/// Keys' cubic with a = -0.5.
fn weight(distance: f64) -> f64 {
    const A: f64 = -0.5;
    let x = distance.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn resample_rows(samples: &[u8], from_width: usize, windows: &[Window]) -> Vec<u8> {
    let row_length = from_width * CHANNELS;
    let mut resampled = Vec::with_capacity(samples.len() / from_width * windows.len());
    for row in samples.chunks_exact(row_length) {
        for window in windows {
            let mut sums = [1i32 << (WEIGHT_BITS - 1); CHANNELS];
            let pixels = row[window.first * CHANNELS..].chunks_exact(CHANNELS);
            for (pixel, weight) in pixels.zip(&window.weights) {
                for (sum, sample) in sums.iter_mut().zip(pixel) {
                    *sum = add_weighted(*sum, *sample, *weight);
                }
            }
            resampled.extend(sums.map(to_sample));
        }
    }
    resampled
}

fn resample_columns(samples: &[u8], row_length: usize, windows: &[Window]) -> Vec<u8> {
    let mut resampled = Vec::with_capacity(row_length * windows.len());
    let mut sums = vec![0i32; row_length];
    for window in windows {
        sums.fill(1 << (WEIGHT_BITS - 1));
        let rows = samples[window.first * row_length..].chunks_exact(row_length);
        for (row, weight) in rows.zip(&window.weights) {
            for (sum, sample) in sums.iter_mut().zip(row) {
                *sum = add_weighted(*sum, *sample, *weight);
            }
        }
        resampled.extend(sums.iter().copied().map(to_sample));
    }
    resampled
}

/// Never overflows: a window's weights sum to 1 and their sizes to less than 1.5, so a sum stays below
/// 1.5 x 255 x 2^22 < 2^31. Wrapping, so that the loop is free of checks and vectorizes.
fn add_weighted(sum: i32, sample: u8, weight: i32) -> i32 {
    sum.wrapping_add(i32::from(sample).wrapping_mul(weight))
}

fn to_sample(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use image::Rgb;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_answers_of_pillow() {
        // Image.frombytes("L", (4, 1), bytes([0, 255, 0, 100])).convert("RGB").resize((W, 1), BICUBIC)
        let picture = RgbImage::from_fn(4, 1, |x, _| Rgb([[0u8, 255, 0, 100][x as usize]; 3]));
        let row = |width| bicubic(&picture, width, 1).pixels().map(|p| p.0[0]).collect::<Vec<_>>();
        assert_eq!(row(2), [113, 76]);
        assert_eq!(row(7), [0, 87, 251, 137, 0, 60, 108]);
        assert_eq!(row(1), [94]);
    }

    proptest! {
        #[test]
        fn a_flat_picture_stays_flat(
            from in (1u32..40, 1u32..40), to in (1u32..40, 1u32..40), colour in any::<[u8; 3]>(),
        ) {
            let flat = RgbImage::from_pixel(from.0, from.1, Rgb(colour));
            prop_assert_eq!(bicubic(&flat, to.0, to.1), RgbImage::from_pixel(to.0, to.1, Rgb(colour)));
        }

        #[test]
        fn mirroring_commutes_with_resampling(
            samples in prop::collection::vec(any::<u8>(), 9 * 3), width in 1u32..30,
        ) {
            let picture = RgbImage::from_raw(9, 1, samples).unwrap();
            let mirrored = image::imageops::flip_horizontal(&picture);
            let resized = image::imageops::flip_horizontal(&bicubic(&picture, width, 1));
            prop_assert_eq!(bicubic(&mirrored, width, 1), resized);
        }
    }
}

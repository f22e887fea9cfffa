//! Contact sheets: rows of pictures with a line of text above each.

use embedded_graphics::{
    Drawable, Pixel,
    draw_target::DrawTarget,
    geometry::{OriginDimensions, Point, Size},
    mono_font::{MonoTextStyle, ascii::FONT_7X13},
    pixelcolor::{Rgb888, RgbColor as _},
    text::{Baseline, Text},
};
use image::{Rgb, RgbImage, imageops};

/// Pixels between pictures, and around the sheet.
const GAP: u32 = 6;
/// Pixels of a row's line of text.
const LABEL_HEIGHT: u32 = 20;
/// Pixels of a character.
const CHARACTER_WIDTH: u32 = 7;
/// Smaller pictures are enlarged to at least this side by whole factors, so that they can be seen.
const LEAST_SIDE: u32 = 96;

/// Pictures with a line of text above them.
#[derive(Debug)]
pub struct Row {
    /// Label of the row; cut at the sheet's edge. Characters outside ASCII show as "?".
    pub label: String,
    /// At least one, of any sizes.
    pub pictures: Vec<RgbImage>,
}

/// A sheet's pixels may be this many.
const MOST_PIXELS: u64 = 1 << 28;

/// Whether a sheet of `rows` rows with `columns` pictures of `size` (width, height) is small enough to be made.
pub fn fits(rows: usize, columns: usize, size: (usize, usize)) -> bool {
    let factor = LEAST_SIDE.div_ceil(size.0.max(size.1).clamp(1, u32::MAX as usize) as u32) as u64;
    let cell = |side: usize, more: u32| (side as u64).saturating_mul(factor).saturating_add(u64::from(more));
    let width = cell(size.0, GAP).saturating_mul(columns as u64);
    let height = cell(size.1, LABEL_HEIGHT + GAP).saturating_mul(rows as u64);
    width.saturating_mul(height) <= MOST_PIXELS
}

/// Lays the rows out on white, one below the other, each picture in a cell of the largest one's size.
pub fn compose(rows: &[Row]) -> RgbImage {
    let pictures = || rows.iter().flat_map(|row| &row.pictures);
    let widest = pictures().map(RgbImage::width).max().unwrap_or(1);
    let highest = pictures().map(RgbImage::height).max().unwrap_or(1);
    let factor = LEAST_SIDE.div_ceil(widest.max(highest)).max(1);
    let (cell_width, cell_height) = (widest * factor, highest * factor);
    let columns = rows.iter().map(|row| row.pictures.len() as u32).max().unwrap_or(1).max(1);
    let row_height = LABEL_HEIGHT + cell_height + GAP;
    let width = GAP + columns * (cell_width + GAP);
    let height = GAP + rows.len() as u32 * row_height;
    let mut sheet = Canvas(RgbImage::from_pixel(width, height, Rgb([255; 3])));
    for (number, row) in rows.iter().enumerate() {
        let top = GAP + number as u32 * row_height;
        sheet.write(&row.label, GAP, top);
        for (column, picture) in row.pictures.iter().enumerate() {
            let (wide, high) = (picture.width() * factor, picture.height() * factor);
            let enlarged = imageops::resize(picture, wide, high, imageops::FilterType::Nearest);
            let left = GAP + column as u32 * (cell_width + GAP);
            imageops::replace(&mut sheet.0, &enlarged, i64::from(left), i64::from(top + LABEL_HEIGHT));
        }
    }
    sheet.0
}

/// Lets embedded-graphics write its letters into an RGB picture.
struct Canvas(RgbImage);

impl Canvas {
    fn write(&mut self, label: &str, left: u32, top: u32) {
        let most = (self.0.width().saturating_sub(left) / CHARACTER_WIDTH) as usize;
        let plain: String = label
            .chars()
            .map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' })
            .take(most)
            .collect();
        let style = MonoTextStyle::new(&FONT_7X13, Rgb888::BLACK);
        let place = Point::new(left as i32, top as i32 + 3);
        // The canvas cannot fail.
        let Ok(_) = Text::with_baseline(&plain, place, style, Baseline::Top).draw(self);
    }
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        Size::new(self.0.width(), self.0.height())
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = std::convert::Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> Result<(), Self::Error> {
        for Pixel(point, color) in pixels {
            let (Ok(x), Ok(y)) = (u32::try_from(point.x), u32::try_from(point.y)) else { continue };
            if let Some(pixel) = self.0.get_pixel_mut_checked(x, y) {
                *pixel = Rgb([color.r(), color.g(), color.b()]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(width: u32, height: u32, color: [u8; 3]) -> RgbImage {
        RgbImage::from_pixel(width, height, Rgb(color))
    }

    #[test]
    fn rows_stand_below_their_labels() {
        let red = [200, 0, 0];
        let rows = [
            Row { label: "before".to_owned(), pictures: vec![plain(64, 64, [0, 0, 200])] },
            Row { label: "after, one more".to_owned(), pictures: vec![plain(64, 64, red); 2] },
        ];
        let sheet = compose(&rows);
        // 64 pixels are doubled to reach 96.
        assert_eq!(sheet.dimensions(), (GAP + 2 * (128 + GAP), GAP + 2 * (LABEL_HEIGHT + 128 + GAP)));
        let second = GAP + (LABEL_HEIGHT + 128 + GAP) + LABEL_HEIGHT;
        assert_eq!(sheet.get_pixel(GAP + 128 + GAP, second).0, red);
        let dark = |top: u32| {
            (top..top + LABEL_HEIGHT)
                .any(|y| (0..sheet.width()).any(|x| sheet.get_pixel(x, y).0 == [0, 0, 0]))
        };
        assert!(dark(GAP) && dark(second - LABEL_HEIGHT));
    }

    #[test]
    fn only_enormous_sheets_are_refused() {
        assert!(fits(10, 90, (512, 512)) && fits(1, 1, (4096, 4096)));
        assert!(!fits(30, 100, (512, 512)) && !fits(1000, 1000, (4096, 4096)));
    }

    #[test]
    fn long_and_foreign_labels_stay_inside() {
        let rows = [Row { label: "грün ".repeat(500), pictures: vec![plain(512, 512, [1, 2, 3])] }];
        assert_eq!(compose(&rows).width(), 512 + 2 * GAP);
    }
}

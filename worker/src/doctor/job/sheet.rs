//! The contact sheet: every picture as the VAE takes it.

use std::{io::Cursor, path::PathBuf};

use image::{ImageFormat, RgbImage};
use ringtune_shared::files::write_atomically;

use super::report::SheetReport;
use crate::{
    data::{Target, images::ListedImage},
    engine::Pixels,
    generate::sheet::{Row, compose},
};

/// Pictures side by side.
const COLUMNS: usize = 6;
/// More are left out: a sheet is looked at.
const MOST_PICTURES: usize = 96;

/// Writes the sheet. Blocks.
pub(super) fn write(groups: &[Vec<(ListedImage, Target)>], file: PathBuf) -> Result<SheetReport, String> {
    let total = groups.iter().map(Vec::len).sum();
    let mut shown = 0;
    let mut rows = Vec::new();
    for pictures in groups {
        let room = MOST_PICTURES.saturating_sub(shown).min(pictures.len());
        shown += room;
        for row in pictures[..room].chunks(COLUMNS) {
            rows.push(Row {
                label: row.iter().map(|(image, _)| image.file.name.as_str()).collect::<Vec<_>>().join(", "),
                pictures: row.iter().map(as_the_model_sees_it).collect::<Result<_, String>>()?,
            });
        }
    }
    let mut png = Cursor::new(Vec::new());
    compose(&rows).write_to(&mut png, ImageFormat::Png).map_err(|error| error.to_string())?;
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    write_atomically(&file, png.get_ref()).map_err(|error| error.to_string())?;
    Ok(SheetReport { file, shown, total })
}

fn as_the_model_sees_it((image, target): &(ListedImage, Target)) -> Result<RgbImage, String> {
    let picture = image.decode().map_err(|error| error.to_string())?;
    Ok(to_picture(&target.pixels(&picture, false)))
}

/// From -1..=1, channel by channel, to 0..=255.
fn to_picture(pixels: &Pixels) -> RgbImage {
    let (width, height) = (pixels.width, pixels.height);
    RgbImage::from_fn(width as u32, height as u32, |x, y| {
        let sample = |channel: usize| {
            let value = pixels.data[(channel * height + y as usize) * width + x as usize];
            ((f64::from(value) + 1.0) * 127.5).round() as u8
        };
        image::Rgb([sample(0), sample(1), sample(2)])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::pixels;

    #[test]
    fn a_sheet_shows_the_very_pixels() {
        let picture = RgbImage::from_fn(8, 8, |x, y| image::Rgb([x as u8 * 31, y as u8 * 31, 200]));
        assert_eq!(to_picture(&pixels::prepare(&picture, 8, false, false)), picture);
    }
}

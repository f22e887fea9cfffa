//! Pictures drawn while training goes on.

use std::{io::Cursor, path::Path};

use image::{ImageFormat, RgbImage};
use ringtune_shared::files::write_atomically;

use super::{Error, read_back::different};
use crate::engine;

/// Picture `number` (from 0) of those drawn after `step`.
pub fn file_name_at(step: u64, number: usize) -> String {
    format!("preview-{step}-{number}.png")
}

/// Picture `number` (from 0) of those that order `order` had drawn after `step`.
pub fn file_name_of_order(order: u64, step: u64, number: usize) -> String {
    format!("sample-{order}-{step}-{number}.png")
}

/// Picture `number` (from 0) of those drawn with the best embedding, where that is not the last.
pub fn file_name_of_best(number: usize) -> String {
    format!("preview-best-{number}.png")
}

/// Writes a picture as a PNG and reads it back; returns the file's bytes.
///
/// # Errors
/// The picture has fewer pixels than it says; the file cannot be written, or holds another picture.
pub fn write(file: &Path, picture: &engine::RgbImage) -> Result<Vec<u8>, Error> {
    let (width, height) = (picture.width as u32, picture.height as u32);
    let shape = vec![picture.height, picture.width, 3];
    let pixels = RgbImage::from_raw(width, height, picture.data.clone()).ok_or_else(|| Error::Shape {
        name: file.display().to_string(),
        found: picture.data.len(),
        shape,
    })?;
    let mut bytes = Cursor::new(Vec::new());
    let encoded = pixels.write_to(&mut bytes, ImageFormat::Png);
    encoded.map_err(|error| Error::writing(file, std::io::Error::other(error)))?;
    write_atomically(file, bytes.get_ref()).map_err(|error| Error::writing(file, error.cause))?;
    let read = std::fs::read(file).map_err(|error| different(file, error.to_string()))?;
    let decoded = image::load_from_memory_with_format(&read, ImageFormat::Png)
        .map_err(|error| different(file, error.to_string()))?;
    if decoded.to_rgb8() != pixels {
        return Err(different(file, "it shows another picture".to_owned()));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_written_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(file_name_at(100, 2));
        let picture = engine::RgbImage { height: 2, width: 3, data: (0..18).collect() };
        let bytes = write(&file, &picture).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), bytes);
        assert_eq!(image::open(&file).unwrap().to_rgb8().into_raw(), picture.data);
        assert!(file.ends_with("preview-100-2.png"));
        let short = engine::RgbImage { height: 3, ..picture };
        let other = folder.path().join(file_name_of_best(0));
        assert!(matches!(write(&other, &short), Err(Error::Shape { .. })));
        assert!(!other.exists());
    }
}

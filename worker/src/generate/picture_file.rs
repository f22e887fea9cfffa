//! Pictures as PNG files with texts in them.

use image::RgbImage;
use png::{BitDepth, ColorType, Encoder, EncodingError};
use ringtune_shared::version::VERSION;

/// The chunk that AUTOMATIC1111 and its kin read.
const PARAMETERS: &str = "parameters";

/// A PNG file with `parameters` in its chunk of that name: tEXt where the text is Latin-1 and iTXt (UTF-8) where it
/// is not, as Pillow writes them.
///
/// # Errors
/// A picture without pixels.
pub fn encode(picture: &RgbImage, parameters: &str) -> Result<Vec<u8>, EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, picture.width(), picture.height());
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    let (keyword, text) = (PARAMETERS.to_owned(), parameters.to_owned());
    if text.chars().all(|character| u32::from(character) < 256) {
        encoder.add_text_chunk(keyword, text)?;
    } else {
        encoder.add_itxt_chunk(keyword, text)?;
    }
    encoder.add_text_chunk("Software".to_owned(), format!("Ringtune {VERSION}"))?;
    let mut writer = encoder.write_header()?;
    writer.write_image_data(picture.as_raw())?;
    writer.finish()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    #[test]
    fn texts_come_back_and_stand_before_the_pixels() {
        let picture = RgbImage::from_fn(5, 3, |x, y| Rgb([x as u8, y as u8, 200]));
        for (text, chunk) in [("a café\nSteps: 2", &b"tEXt"[..]), ("žluťoučký 猫", b"iTXt")] {
            let bytes = encode(&picture, text).unwrap();
            let place = |name: &[u8]| bytes.windows(4).position(|window| window == name).unwrap();
            assert!(place(chunk) < place(b"IDAT"));
            let read = png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
            let (latin, utf8) = (&read.info().uncompressed_latin1_text, &read.info().utf8_text);
            let mut found: Vec<(String, String)> =
                latin.iter().map(|chunk| (chunk.keyword.clone(), chunk.text.clone())).collect();
            found.extend(utf8.iter().map(|chunk| (chunk.keyword.clone(), chunk.get_text().unwrap())));
            found.sort();
            let software = ("Software".to_owned(), format!("Ringtune {VERSION}"));
            assert_eq!(found, [software, ("parameters".to_owned(), text.to_owned())]);
            assert_eq!(image::load_from_memory(&bytes).unwrap().to_rgb8(), picture);
        }
    }
}

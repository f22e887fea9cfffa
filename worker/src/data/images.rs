//! The pictures of a job: which files of a folder are pictures, and a file's pixels as 8-bit RGB.

use std::io::Cursor;

use image::{
    DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, RgbImage,
    error::{DecodingError, ImageFormatHint},
    metadata::Orientation,
};
use ringtune_shared::{
    files::name_left_out,
    ids::ContentHash,
    manifest::{MOST_FILES, is_image_name},
};

use super::{Error, ImagePlace, OpenTable};
use crate::access::ConfinedPath;

/// Pixels along one side of a picture.
const MOST_SIDE: u32 = 32_768;
/// Bytes of a decoded picture and of what its decoder needs: a few kilobytes of file can ask for gigabytes.
const MOST_DECODED_BYTES: u64 = 512 << 20;

/// One picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// The name to show: a plain file name, or where it is in a file of pictures.
    pub name: String,
    /// Where it lies.
    pub place: ImagePlace,
}

/// A picture file of a job, and what it was when the job's pictures were listed. Its pixels may be wanted hours later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedImage {
    /// The file.
    pub file: ImageFile,
    /// Of its bytes.
    pub sha256: ContentHash,
}

/// The pictures of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSet {
    /// At least one, sorted by name (as bytes): their order is part of a job's result.
    pub images: Vec<ImageFile>,
    /// Names in the folder that are no pictures, sorted, folders with a `/` at the end.
    pub skipped: Vec<String>,
}

/// Lists the pictures of `folder`: jpg, jpeg, png and webp files in any case of letters, without descending.
///
/// # Errors
/// The folder cannot be listed, holds no picture or too many, or one that leads out of the reach of jobs.
pub fn scan(folder: &ConfinedPath) -> Result<ImageSet, Error> {
    let shown = || folder.shown().to_path_buf();
    let mut set = ImageSet { images: Vec::new(), skipped: Vec::new() };
    for entry in folder.names().map_err(|source| Error::ImageFolder { folder: shown(), source })? {
        let place = folder.join(&entry);
        // Follows links: a folder of links to pictures is a folder of pictures.
        let is_file = place.is_file();
        match entry.to_str() {
            Some(name) if is_file && is_image_name(name) => {
                set.images.push(ImageFile { name: name.to_string(), place: place.into() });
            }
            name => {
                // Not to be skipped: whoever put it there means it to be seen.
                if let Some((name, source)) = name.filter(|name| is_image_name(name)).zip(place.way_out()) {
                    return Err(Error::ReadImage { name: name.to_string(), source });
                }
                let slash = if place.is_dir() { "/" } else { "" };
                let shown = format!("{}{slash}", entry.to_string_lossy());
                let leads_nowhere =
                    !is_file && slash.is_empty() && place.open().is_err_and(|error| is_gone(&error));
                set.skipped.push(name_left_out(&shown, leads_nowhere));
            }
        }
    }
    set.images.sort_by(|a, b| a.name.cmp(&b.name));
    set.skipped.sort();
    if set.images.is_empty() {
        return Err(Error::NoImages { folder: shown(), skipped: set.skipped });
    }
    if set.images.len() > MOST_FILES {
        let found = set.images.len();
        return Err(Error::TooManyImages { folder: shown(), found, allowed: MOST_FILES });
    }
    Ok(set)
}

fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound
}

impl ImageFile {
    /// Reads and decodes the file: see [`decode`].
    ///
    /// # Errors
    /// It cannot be read, is larger than [`ringtune_shared::manifest::LARGEST_IMAGE_FILE`], or cannot be decoded.
    pub fn decode(&self) -> Result<RgbImage, Error> {
        decode(&self.name, &self.read()?)
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// It cannot be read, or is larger than [`ringtune_shared::manifest::LARGEST_IMAGE_FILE`].
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        self.read_in(&mut OpenTable::default())
    }

    /// As above, one of many after each other.
    fn read_in(&self, open: &mut OpenTable) -> Result<Vec<u8>, Error> {
        self.place.read(&self.name, open)
    }
}

impl ListedImage {
    /// The file's bytes, as they were when it was listed.
    ///
    /// # Errors
    /// It cannot be read, or has changed since.
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        self.read_in(&mut OpenTable::default())
    }

    /// As above, one of many after each other.
    ///
    /// # Errors
    /// As there.
    pub fn read_in(&self, open: &mut OpenTable) -> Result<Vec<u8>, Error> {
        let content = self.file.read_in(open)?;
        if ContentHash::of(&content) != self.sha256 {
            return Err(Error::ImageChanged { name: self.file.name.clone() });
        }
        Ok(content)
    }

    /// Decodes just those bytes: see [`decode`].
    ///
    /// # Errors
    /// It cannot be read, has changed since it was listed, or cannot be decoded.
    pub fn decode(&self) -> Result<RgbImage, Error> {
        decode(&self.file.name, &self.read()?)
    }
}

/// Decodes the bytes of a JPEG, PNG or WebP picture (told from the bytes, not from the name; the first picture of
/// an animation), turned as its EXIF orientation says, as 8-bit RGB.
///
/// Other modes become RGB as in Pillow's `convert("RGB")`: gray is repeated, palettes are looked up, transparency
/// is dropped without blending. 16-bit samples keep their high byte (as Pillow does for colour).
///
/// # Errors
/// Not such a picture, a broken one, or one that is too large when decoded.
pub fn decode(name: &str, bytes: &[u8]) -> Result<RgbImage, Error> {
    decode_shown(name, bytes, Shown::Colours)
}

/// What of a picture is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Its colours.
    Colours,
    /// Its opacity, as a grey picture: white is opaque. A picture without any is opaque.
    Alpha,
}

/// As [`decode`], of its colours or of its opacity.
///
/// # Errors
/// As there.
pub fn decode_shown(name: &str, bytes: &[u8], shown: Shown) -> Result<RgbImage, Error> {
    let undecodable = |source| Error::UndecodableImage { name: name.to_string(), source };
    let picture = turned(bytes).map_err(undecodable)?;
    Ok(match shown {
        Shown::Colours => to_rgb8(picture),
        Shown::Alpha => opacity(picture),
    })
}

/// Whether a picture has an opacity, from its header.
///
/// # Errors
/// As [`size`].
pub fn has_alpha(name: &str, bytes: &[u8]) -> Result<bool, Error> {
    let undecodable = |source| Error::UndecodableImage { name: name.to_string(), source };
    Ok(open(bytes).map_err(undecodable)?.0.color_type().has_alpha())
}

/// Columns and rows of what [`decode`] makes of the same bytes, from the picture's header: of a picture whose pixels
/// are broken too.
///
/// # Errors
/// Not such a picture, one whose header is broken, or one that is too large when decoded.
pub fn size(name: &str, bytes: &[u8]) -> Result<(u32, u32), Error> {
    let size = || -> image::ImageResult<(u32, u32)> {
        let (decoder, orientation) = open(bytes)?;
        let (width, height) = decoder.dimensions();
        Ok(match orientation {
            Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH => (height, width),
            Orientation::NoTransforms
            | Orientation::Rotate180
            | Orientation::FlipHorizontal
            | Orientation::FlipVertical => (width, height),
        })
    };
    size().map_err(|source| Error::UndecodableImage { name: name.to_string(), source })
}

fn turned(bytes: &[u8]) -> image::ImageResult<DynamicImage> {
    if image::guess_format(bytes).is_ok_and(|format| format == ImageFormat::Jpeg) && !jpeg_is_whole(bytes) {
        let hint = ImageFormatHint::Exact(ImageFormat::Jpeg);
        let problem = DecodingError::new(hint, "the file ends before the picture does");
        return Err(ImageError::Decoding(problem));
    }
    let (decoder, orientation) = open(bytes)?;
    let mut picture = DynamicImage::from_decoder(decoder)?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

/// A picture whose header is read, and how it is to be turned.
fn open(bytes: &[u8]) -> image::ImageResult<(impl ImageDecoder + '_, Orientation)> {
    let mut limits = Limits::no_limits();
    limits.max_image_width = Some(MOST_SIDE);
    limits.max_image_height = Some(MOST_SIDE);
    limits.max_alloc = Some(MOST_DECODED_BYTES);
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
    reader.limits(limits.clone());
    let mut decoder = reader.into_decoder()?;
    // into_decoder counts only what the decoder itself allocates, not the picture that it fills.
    limits.reserve(decoder.total_bytes())?;
    let orientation = decoder.orientation()?;
    Ok((decoder, orientation))
}

/// Whether the end-of-image marker is there: the decoder fills the rest of a cut file with gray instead of failing.
/// Source: ITU-T T.81, B.1.1.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    const END_OF_IMAGE: u8 = 0xd9;
    let mut rest = bytes;
    loop {
        // Between markers are their segments, which have a length, and compressed data, in which 0 follows 0xff.
        let Some(start) = rest.iter().position(|byte| *byte == 0xff) else { return false };
        rest = &rest[start + 1..];
        match rest {
            [END_OF_IMAGE, ..] => return true,
            // A zero in compressed data, padding, or a marker without a segment.
            [0x00 | 0x01 | 0xd0..=0xd8 | 0xff, ..] => {}
            [_, high, low, ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                rest = rest.get(1 + length..).unwrap_or_default();
            }
            _ => return false,
        }
    }
}

fn to_rgb8(picture: DynamicImage) -> RgbImage {
    let (width, height) = (picture.width(), picture.height());
    match picture {
        DynamicImage::ImageRgb16(_) | DynamicImage::ImageRgba16(_) => {
            let wide = picture.into_rgb16();
            RgbImage::from_fn(width, height, |x, y| image::Rgb(wide.get_pixel(x, y).0.map(high_byte)))
        }
        DynamicImage::ImageLuma16(_) | DynamicImage::ImageLumaA16(_) => {
            let wide = picture.into_luma16();
            RgbImage::from_fn(width, height, |x, y| image::Rgb([high_byte(wide.get_pixel(x, y).0[0]); 3]))
        }
        other => other.into_rgb8(),
    }
}

fn opacity(picture: DynamicImage) -> RgbImage {
    let (width, height) = (picture.width(), picture.height());
    let alpha: Vec<u8> = match picture {
        DynamicImage::ImageRgba16(_) | DynamicImage::ImageLumaA16(_) => {
            picture.into_rgba16().pixels().map(|pixel| high_byte(pixel.0[3])).collect()
        }
        other => other.into_rgba8().pixels().map(|pixel| pixel.0[3]).collect(),
    };
    RgbImage::from_fn(width, height, |x, y| image::Rgb([alpha[y as usize * width as usize + x as usize]; 3]))
}

fn high_byte(sample: u16) -> u8 {
    sample.to_be_bytes()[0]
}

#[cfg(test)]
mod tests {
    use image::Rgb;
    use ringtune_shared::manifest::LARGEST_IMAGE_FILE;

    use super::*;

    fn bytes_of(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        picture.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn pictures_are_sorted_and_stray_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.PNG", "a.jpeg", "notes.txt", "c.webp", "noending", ".hidden.jpg", "._a.jpeg"] {
            std::fs::write(folder.path().join(name), b"x").unwrap();
        }
        std::os::unix::fs::symlink("nowhere.png", folder.path().join("gone.png")).unwrap();
        std::fs::create_dir(folder.path().join("folder.png")).unwrap();
        let set = scan(&ConfinedPath::at(folder.path())).unwrap();
        let names: Vec<_> = set.images.iter().map(|image| image.name.as_str()).collect();
        assert_eq!(names, [".hidden.jpg", "a.jpeg", "b.PNG", "c.webp"]);
        let [macos, gone] =
            ["._a.jpeg (what macOS keeps of a file, not the file)", "gone.png (a link that leads nowhere)"];
        assert_eq!(set.skipped, [macos, "folder.png/", gone, "noending", "notes.txt"]);
    }

    #[test]
    fn missing_empty_and_stray_folders_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(
            scan(&ConfinedPath::at(folder.path().join("absent"))),
            Err(Error::ImageFolder { .. })
        ));
        let empty = scan(&ConfinedPath::at(folder.path()));
        assert!(matches!(empty, Err(Error::NoImages { ref skipped, .. }) if skipped.is_empty()));
        std::fs::write(folder.path().join("notes.txt"), b"x").unwrap();
        let stray = scan(&ConfinedPath::at(folder.path()));
        assert!(matches!(stray, Err(Error::NoImages { ref skipped, .. }) if skipped == &["notes.txt"]));
    }

    #[test]
    fn an_undecodable_file_is_named() {
        let broken = decode("broken.png", b"not a picture");
        assert!(matches!(broken, Err(Error::UndecodableImage { ref name, .. }) if name == "broken.png"));
        let picture = RgbImage::from_fn(64, 64, |x, y| Rgb([(x * y) as u8, x as u8, y as u8]));
        for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP] {
            let mut bytes = bytes_of(&picture.clone().into(), format);
            for length in [bytes.len() * 9 / 10, bytes.len() / 2, 30] {
                let cut = decode("cut", &bytes[..length]);
                assert!(matches!(cut, Err(Error::UndecodableImage { .. })), "{format:?} cut to {length}");
            }
            // Bytes after the picture are ignored: some cameras append to their files.
            bytes.extend([0xff; 100]);
            assert!(decode("longer", &bytes).is_ok(), "{format:?}");
        }
    }

    /// A JPEG of 5 columns and 3 rows that says how it is to be turned.
    /// Source: Exif 2.32, 4.5.2 and 4.6.4.
    fn turned_jpeg(orientation: u8) -> Vec<u8> {
        let plain = bytes_of(&DynamicImage::new_rgb8(5, 3), ImageFormat::Jpeg);
        let entry = [0x12, 0x01, 3, 0, 1, 0, 0, 0, orientation, 0, 0, 0];
        let exif = [b"Exif\0\0II*\0".as_slice(), &[8, 0, 0, 0, 1, 0], &entry, &[0; 4]].concat();
        let marker = [0xff, 0xe1, 0, exif.len() as u8 + 2];
        [&plain[..2], &marker, &exif, &plain[2..]].concat()
    }

    #[test]
    fn the_size_is_that_of_the_decoded_picture_without_decoding_it() {
        let mut turned = 0;
        for orientation in 1..=8 {
            let bytes = turned_jpeg(orientation);
            let dimensions = decode("turned.jpg", &bytes).unwrap().dimensions();
            assert_eq!(size("turned.jpg", &bytes).unwrap(), dimensions, "{orientation}");
            turned += u32::from(dimensions == (3, 5));
        }
        assert_eq!(turned, 4);
        let picture = RgbImage::from_fn(64, 48, |x, y| Rgb([(x * y) as u8, x as u8, y as u8]));
        for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP] {
            let mut bytes = bytes_of(&picture.clone().into(), format);
            assert_eq!(size("whole", &bytes).unwrap(), (64, 48));
            // The pixels are not looked at.
            let begin = bytes.len() * 3 / 4;
            bytes[begin..].fill(0);
            assert_eq!(size("broken", &bytes).unwrap(), (64, 48), "{format:?}");
        }
        let broken = size("broken.png", b"not a picture");
        assert!(matches!(broken, Err(Error::UndecodableImage { ref name, .. }) if name == "broken.png"));
    }

    #[test]
    fn a_small_file_cannot_ask_for_gigabytes() {
        // 32768 x 32768 gray pixels of zero compress to about a megabyte; a header of that size is enough here.
        let mut png = bytes_of(&DynamicImage::new_luma8(1, 1), ImageFormat::Png);
        png[16..20].copy_from_slice(&32_768u32.to_be_bytes());
        png[20..24].copy_from_slice(&32_768u32.to_be_bytes());
        let checksum = png_checksum(&png[12..29]);
        png[29..33].copy_from_slice(&checksum.to_be_bytes());
        let refused = decode("bomb.png", &png);
        assert!(
            matches!(refused, Err(Error::UndecodableImage { source: ImageError::Limits(_), .. })),
            "{refused:?}"
        );
    }

    fn png_checksum(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |sum, byte| {
            (0..8)
                .fold(sum ^ u32::from(*byte), |c, _| if c & 1 == 1 { (c >> 1) ^ 0xedb8_8320 } else { c >> 1 })
        })
    }

    #[test]
    fn sixteen_bits_keep_the_high_byte_and_transparency_is_dropped() {
        let deep = image::ImageBuffer::from_pixel(2, 1, Rgb([0x12ffu16, 0x80ff, 0xff00]));
        let decoded =
            decode("deep.png", &bytes_of(&DynamicImage::ImageRgb16(deep), ImageFormat::Png)).unwrap();
        assert_eq!(decoded.get_pixel(1, 0), &Rgb([0x12, 0x80, 0xff]));
        let gray = image::ImageBuffer::from_pixel(1, 1, image::Luma([0x7fffu16]));
        let decoded =
            decode("gray.png", &bytes_of(&DynamicImage::ImageLuma16(gray), ImageFormat::Png)).unwrap();
        assert_eq!(decoded.get_pixel(0, 0), &Rgb([0x7f; 3]));
        let clear = image::ImageBuffer::from_pixel(1, 1, image::Rgba([9u8, 8, 7, 0]));
        let decoded =
            decode("clear.png", &bytes_of(&DynamicImage::ImageRgba8(clear), ImageFormat::Png)).unwrap();
        assert_eq!(decoded.get_pixel(0, 0), &Rgb([9, 8, 7]));
    }

    #[test]
    fn a_wrong_ending_does_not_matter_but_the_size_limit_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("really-a-png.jpg");
        std::fs::write(&path, bytes_of(&DynamicImage::new_rgb8(3, 2), ImageFormat::Png)).unwrap();
        let place = ConfinedPath::at(&path).into();
        let file = ImageFile { name: "really-a-png.jpg".to_string(), place };
        assert_eq!(file.decode().unwrap().dimensions(), (3, 2));
        let large = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        large.set_len(LARGEST_IMAGE_FILE + 1).unwrap();
        assert!(matches!(file.decode(), Err(Error::ImageTooLarge { .. })));
    }

    #[test]
    fn a_listed_picture_is_the_one_that_was_listed_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        let [then, now] = [2, 3].map(|height| bytes_of(&DynamicImage::new_rgb8(3, height), ImageFormat::Png));
        std::fs::write(&path, &then).unwrap();
        let file = ImageFile { name: "a.png".to_string(), place: ConfinedPath::at(&path).into() };
        let listed = ListedImage { file, sha256: ContentHash::of(&then) };
        assert_eq!(listed.decode().unwrap().dimensions(), (3, 2));
        std::fs::write(&path, &now).unwrap();
        for error in [listed.read().unwrap_err(), listed.decode().unwrap_err()] {
            let text = error.to_string();
            assert!(text.contains("a.png has changed since the job began"), "{text}");
        }
        std::fs::write(&path, &then).unwrap();
        assert_eq!(listed.read().unwrap(), then);
    }
}

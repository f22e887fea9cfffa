//! Pictures as files and as artifacts.

use std::path::PathBuf;

use image::RgbImage;
use ringtune_shared::{files::write_atomically, ids::ContentHash};

use super::error::PictureError;
use crate::{
    contents::{ArtifactClient, UploadQueue},
    generate::picture_file,
    rank::{Error, Rank},
};

/// A picture as a file: far above the largest that can be asked for.
const MOST_PICTURE_BYTES: u64 = 256 << 20;

/// `image-0001.png`: counted over all prompts, those of the first prompt first.
pub(super) fn image_name(prompt: usize, number: u32, count: u32) -> String {
    format!("image-{:04}.png", prompt as u64 * u64::from(count) + u64::from(number) + 1)
}

/// Writes a picture, reads it back, and sends it on its way.
pub(super) async fn keep(
    rank: &Rank,
    name: String,
    picture: RgbImage,
    text: String,
    uploads: &mut UploadQueue,
) -> Result<(), Error> {
    let path = rank.folder.join(name);
    let target = path.clone();
    let write = move || {
        let wrong = |problem: String| PictureError { path: target.clone(), problem };
        let bytes = picture_file::encode(&picture, &text).map_err(|error| wrong(error.to_string()))?;
        let read = image::load_from_memory_with_format(&bytes, image::ImageFormat::Png);
        match read {
            Ok(read) if read.as_rgb8() == Some(&picture) => Ok(write_atomically(&target, &bytes)?),
            Ok(_) => Err(Error::from(wrong("it reads back as another picture".to_owned()))),
            Err(error) => Err(wrong(error.to_string()).into()),
        }
    };
    ringtune_shared::tasks::spawn_blocking(write).await??;
    uploads.push(path).await;
    Ok(())
}

/// A picture that a rank has kept.
pub(super) async fn read_back(
    client: &ArtifactClient,
    name: &str,
    hash: ContentHash,
) -> Result<RgbImage, Error> {
    let bytes = client.download(hash, MOST_PICTURE_BYTES).await?;
    let decode = move || image::load_from_memory_with_format(&bytes, image::ImageFormat::Png);
    let picture = ringtune_shared::tasks::spawn_blocking(decode).await?;
    let path = PathBuf::from(name);
    let wrong = |error: image::ImageError| PictureError { path, problem: error.to_string() };
    Ok(picture.map_err(wrong)?.into_rgb8())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_counted_over_all_prompts() {
        assert_eq!(image_name(0, 0, 3), "image-0001.png");
        assert_eq!(image_name(2, 1, 3), "image-0008.png");
        assert_eq!(image_name(9, 999, 1000), "image-10000.png");
    }
}

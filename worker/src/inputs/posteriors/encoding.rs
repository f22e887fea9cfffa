//! What the VAE makes of a picture.

use super::Picture;
use crate::{
    data::{ImagePlace, Target},
    engine::{Moments, Pixels},
    journal::Journal,
    rank::{Context, Error},
    session::{Progress, ProgressStage, RankEvent},
    train::Draws,
};

/// A picture that no file has, which is as good as its mirror image.
fn drawn(seed: u64, number: u32, target: Target) -> Pixels {
    let (width, height) = target.size();
    let [width, height] = [width, height].map(|side| side as usize);
    let data = Draws::new(seed).synthetic_picture(number, 3 * height * width);
    Pixels { data, height, width }
}

/// A picture, or its mirror image, through the VAE.
pub(super) async fn encode(picture: &Picture, mirrored: bool, context: &Context) -> Result<Moments, Error> {
    let (image, target) = (picture.image.clone(), picture.target);
    // Of the picture that its entry is named after, however long ago that was.
    let pixels = move || match image.file.place {
        ImagePlace::Drawn { seed, number } => Ok(drawn(seed, number, target)),
        _ => Ok::<_, Error>(target.pixels(&image.decode()?, mirrored)),
    };
    let pixels = ringtune_shared::tasks::spawn_blocking(pixels).await??;
    context.engine.encode_image(pixels).await.map_err(Error::of_engine)
}

/// A posterior of the right size.
pub(super) fn zero(shape @ [channels, height, width]: [usize; 3]) -> Moments {
    let zeros = vec![0.0; shape.iter().product()];
    Moments { channels, height, width, mean: zeros.clone(), logvar: zeros }
}

/// Says how many are done.
pub(super) async fn tell(journal: &Journal, done: usize, total: usize) {
    let progress = Progress { stage: ProgressStage::Encode, done: done as u64, total: total as u64 };
    journal.event(RankEvent::Progress(progress)).await;
}

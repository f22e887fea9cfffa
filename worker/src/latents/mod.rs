//! Posteriors of pictures that were encoded before: what names one, the files that keep them, and who in a ring gives
//! which to whom.
//!
//! The VAE is frozen, so a picture's posterior is a function of the VAE's files, the picture's bytes, the size and
//! the crop that it is brought to, whether it is mirrored, and what computes. All of this is in the name of an entry; nothing else can change
//! its bits, so an entry that is found is as good as encoding again.
//!
//! Before step 1 the ranks tell each other over the ring who has which entry, and a pure function of that (`plan.rs`)
//! decides who gives which. Entries are checked to be readable before step 1. A job keeps `storage.latent_memory_bytes`
//! of posteriors in memory (`shelf.rs`) and reads the others from disk.

mod cache;
mod entry;
mod plan;
mod shelf;

pub use cache::LatentCache;
pub(crate) use entry::from_row;
pub use entry::{EntryError, row_length, row_of};
pub use plan::{Give, encoding, giving};
pub use shelf::{PosteriorSlot, Shelf};

use ringtune_shared::{
    ids::{ContentHash, ContentHasher},
    version::VERSION,
};

use crate::engine::Precision;

/// Everything that the bits of a picture's posterior depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentSource<'a> {
    /// The VAE's weights and configuration, by content.
    pub vae: ContentHash,
    /// The picture's file, by content.
    pub image: ContentHash,
    /// Pixel columns that it is brought to.
    pub width: u32,
    /// Pixel rows that it is brought to.
    pub height: u32,
    /// The rule by which it is cut before it is resized: "squash", "center" and the like.
    pub crop: &'a str,
    /// Its mirror image.
    pub mirrored: bool,
    /// The model's precision.
    pub precision: Precision,
    /// Compute threads: they decide in which order sums are added up.
    pub threads: usize,
    /// The worker's numerics class.
    pub numerics_class: &'a str,
}

/// The name of an entry: a hash of its [`LatentSource`] and of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LatentKey(pub ContentHash);

impl LatentSource<'_> {
    /// The name under which the posterior of the picture, or of its mirror image, is kept.
    pub fn key(&self) -> LatentKey {
        let Self { vae, image, width, height, crop, mirrored, precision, threads, numerics_class } = self;
        let precision = precision.name();
        let mut hasher = ContentHasher::new();
        // A version may resize or encode otherwise than another. The texts are quoted: none runs into the next.
        hasher.update(
            format!(
                "{VERSION:?} {vae} {image} {width}x{height} {crop:?} {mirrored} {precision:?} {threads} {numerics_class:?}"
            )
            .as_bytes(),
        );
        LatentKey(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_decides_the_bits_is_in_the_name() {
        let source = LatentSource {
            vae: ContentHash::of(b"vae"),
            image: ContentHash::of(b"image"),
            width: 64,
            height: 128,
            crop: "squash",
            mirrored: false,
            precision: Precision::Fp32,
            threads: 2,
            numerics_class: "class",
        };
        let key = source.key();
        assert_eq!(LatentSource { ..source }.key(), key);
        let others = [
            LatentSource { vae: ContentHash::of(b"other"), ..source },
            LatentSource { image: ContentHash::of(b"other"), ..source },
            LatentSource { width: 128, height: 64, ..source },
            LatentSource { height: 64, ..source },
            LatentSource { crop: "center", ..source },
            LatentSource { mirrored: true, ..source },
            LatentSource { precision: Precision::Bf16, ..source },
            LatentSource { threads: 3, ..source },
            LatentSource { numerics_class: "other", ..source },
        ];
        for (number, other) in others.iter().enumerate() {
            assert_ne!(other.key(), key, "{number}");
        }
    }
}

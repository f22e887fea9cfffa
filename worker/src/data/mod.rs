//! Training data: pictures for the VAE, prompts for the text encoder.
//!
//! Everything here is a plain function of files and arguments, and the same on every processor: decoding, the
//! resize (the same bits as Pillow's), the tokenizer (the same ids as transformers').

pub mod buckets;
pub mod caption_words;
pub mod drawn;
pub mod error;
pub mod image_place;
pub mod images;
pub mod masks;
pub mod pixels;
pub mod prompts;
mod resample;
mod target;
pub mod templates;
pub mod tokenizer;

pub use drawn::DrawnSamples;
pub use error::Error;
pub use image_place::{ImagePlace, OpenTable};
pub use images::{ImageFile, ImageSet, ListedImage};
pub use masks::Mask;
pub use prompts::Prompts;
pub use target::Target;
pub use tokenizer::{ClipTokenizer, Placeholders, tokenizer_folder};

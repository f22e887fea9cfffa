//! Text to tokens, as nanoGPT's `data/openwebtext/prepare.py` makes them.

mod bpe;
mod error;
mod limits;
mod numpy;
mod split;

pub use bpe::{END_OF_TEXT, Encoder, Tokenizer};
pub use error::Error;
pub use split::{Split, SplitOptions};

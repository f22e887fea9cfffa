//! Text to tokens and back: files of text, .jsonl and .parquet become `train.bin` and `val.bin`, byte for byte those that nanoGPT's
//! `data/openwebtext/prepare.py` makes of the same documents.
//!
//! [`prepare`] is the whole way, in two passes, neither of which holds all documents:
//!
//! 1. The inputs are cut into parts of some MB. Threads make the tokens of part after part, in the order of the inputs, each
//!    part a file ([`scratch`]). A run that was stopped goes on with the parts that are missing.
//! 2. The documents are put in the order of the split ([`Split`]), window by window ([`gather`]).
//!
//! In memory are at most: 12 bytes for each document, a window of 512 MiB, and for each thread 2 MB, its longest document
//! with its tokens, and about 50 bytes for each byte of the longest unbroken word besides. Nothing is queued between threads.
//!
//! Names neither tonic nor tch, and asks no network.
//!
//! `train.bin` and `val.bin` get their names when they are complete, and `meta.json` is written last.

#![deny(clippy::disallowed_types)]

mod bpe;
mod error;
mod gather;
mod inputs;
mod limits;
mod manifest;
mod numpy;
mod prepare;
mod progress;
mod sampling;
mod scratch;
mod split;
mod token_file;
mod tokenize;

pub use bpe::{END_OF_TEXT, Encoder, TextStream, Tokenizer};
pub use error::Error;
pub use inputs::{ENDINGS, Input, count_documents};
pub use manifest::{FileFacts, MANIFEST_FILE, Manifest, TOKEN_TYPE, TRAIN_FILE, VAL_FILE};
pub use prepare::{PrepareOptions, Prepared, prepare};
pub use progress::{Progress, Snapshot, Stage};
pub use sampling::Windows;
pub use split::{Split, SplitOptions};
pub use token_file::{TokenFile, TokenFiles};

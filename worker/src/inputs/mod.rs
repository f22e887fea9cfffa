//! A job's inputs on this machine: pictures with captions, their sizes, their posteriors, embeddings.

mod error;
mod file;
mod framing;
mod images;
mod posteriors;

pub use error::Error;
pub(crate) use file::file_bytes;
pub(crate) use framing::Framing;
pub(crate) use images::{PictureFolder, Pictures, PicturesFrom, materialise};
pub(crate) use posteriors::{Common, Posteriors, look_up};

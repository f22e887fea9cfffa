//! A job's inputs on this machine: pictures with captions, their sizes, their posteriors, embeddings.

mod embedding;
mod error;
mod framing;
mod images;
mod posteriors;

pub(crate) use embedding::embedding_bytes;
pub use error::Error;
pub(crate) use framing::Framing;
pub use framing::Target;
pub(crate) use images::{PictureFolder, Pictures, materialise};
pub(crate) use posteriors::{Common, Posteriors, look_up};

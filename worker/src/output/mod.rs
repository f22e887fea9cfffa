//! A job's files: embeddings that diffusers, kohya's scripts, AUTOMATIC1111 and ComfyUI load, language models, a model card, the
//! table of its steps, and, for those who check the numbers, a trace of every input and gradient.
//!
//! Equal runs leave equal bytes (but for the seconds in metrics.csv). Files appear whole or not at all, and are read
//! back before they leave the machine.

mod canonical_json;
pub mod checkpoint;
pub mod concept;
pub mod embeds;
mod error;
pub mod facts;
pub mod language_card;
pub mod language_model;
pub mod lora_card;
pub mod metrics_csv;
pub mod model_card;
pub mod picture;
pub mod read_back;
pub mod tensor_file;
pub mod tensorboard;
pub mod texts;
pub mod trace;
pub mod unet_card;
pub mod weights_file;

pub use canonical_json::canonical_json;
pub use concept::{Concept, Learned, Taught};
pub use error::Error;
pub use facts::EmbeddingFacts;
pub use metrics_csv::{MetricsCsv, StepMetrics};
pub use tensor_file::TensorFile;
pub use tensorboard::EventFile;
pub use trace::TraceFolder;

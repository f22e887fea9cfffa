//! What a job leaves: embeddings that diffusers loads, the table of its steps, and, for those who check the numbers,
//! a trace of every input and gradient.
//!
//! Equal runs leave equal bytes (but for the seconds in metrics.csv). Files appear whole or not at all.

mod canonical_json;
pub mod embeds;
mod error;
pub mod metrics_csv;
pub mod tensor_file;
pub mod trace;

pub use canonical_json::canonical_json;
pub use embeds::EmbeddingFacts;
pub use error::Error;
pub use metrics_csv::{MetricsCsv, StepMetrics};
pub use tensor_file::TensorFile;
pub use trace::TraceFolder;

//! Why pictures cannot be drawn or kept.

use std::path::PathBuf;

use crate::{
    base_model,
    fault::{Blame, Fault, Refusal},
    generate, output,
    rank::Error,
};

/// A drawn picture that cannot be kept.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub(super) struct PictureError {
    /// The file.
    pub(super) path: PathBuf,
    /// Why.
    pub(super) problem: String,
}

impl Blame for PictureError {
    fn fault(&self) -> Fault {
        Fault::Node
    }
}

/// What the command line calls by its options, by the job's fields.
pub(super) fn refused(error: generate::Error) -> Error {
    let field = |field, problem: String| Refusal::of(field, problem).into();
    match error {
        generate::Error::Option { option: "--width", problem } => field("generate.width", problem),
        generate::Error::Option { option: "--height", problem } => field("generate.height", problem),
        generate::Error::Option { option: "--steps", problem } => field("generate.steps", problem),
        generate::Error::Option { problem, .. } => field("generate.batch", problem),
        generate::Error::Embeds { file, problem } => {
            field("generate.embeddings", format!("{file}: {problem}"))
        }
        generate::Error::Lora { file, problem } => field("generate.loras", format!("{file}: {problem}")),
        generate::Error::Data(error) => error.into(),
        generate::Error::Engine(error) => base_model::Error::Engine(error).into(),
        generate::Error::Model(error) => error.into(),
        generate::Error::Source(error) => base_model::Error::Source(error).into(),
        generate::Error::File(error) => error.into(),
        generate::Error::Write { file, source } => output::Error::writing(&file, source).into(),
        generate::Error::Encode { file, source } => {
            PictureError { path: file, problem: source.to_string() }.into()
        }
        generate::Error::Task(error) => Error::Task(error),
        other @ (generate::Error::Vocabulary { .. } | generate::Error::Short { .. }) => {
            field("generate", other.to_string())
        }
    }
}

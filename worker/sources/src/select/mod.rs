//! Selects the needed files of a repository; pure.

mod diffusers;
mod language;
mod weights;

/// The wanted files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Stable Diffusion, in diffusers' layout. `variant`: empty, or "fp16" and the like.
    Diffusers {
        /// Of its weights.
        variant: String,
    },
    /// A language model, in transformers' layout.
    Language {
        /// Its weights, too.
        weights: bool,
    },
}

impl Layout {
    /// The names that are needed, small files first.
    ///
    /// `names`: all files, as paths with slashes. Pickles are never needed.
    ///
    /// # Errors
    /// The first file that is missing, by its name, or why this is no such model.
    pub(crate) fn needed_files(&self, names: &[String]) -> Result<Vec<String>, String> {
        match self {
            Self::Diffusers { variant } => diffusers::needed_files(names, variant),
            Self::Language { weights } => language_model_files(names, *weights),
        }
    }
}

/// The files of a language model in transformers' layout that are used, small files first: config.json, those of its
/// tokenizer that are there, and, where `with_weights`, its weights. The model is the folder's own: what lies in folders
/// within is another export of it.
///
/// `names`: all files, as paths with slashes. Pickles are never used.
///
/// # Errors
/// The first file that is missing, by its name. The text goes on after the name of the place: "has no config.json: …".
pub fn language_model_files(names: &[String], with_weights: bool) -> Result<Vec<String>, String> {
    language::needed_files(names, with_weights)
}

//! The base model of a job: brought to this machine, and proved to be the one that all ranks have.

mod error;
mod fetch;
mod fingerprint;
mod language;
mod load;

use std::path::Path;

pub use error::Error;
pub(crate) use fetch::{News, WantedFiles, fetch, options_of, telling};
pub use fingerprint::Fingerprints;
pub(crate) use fingerprint::is_weights;
pub(crate) use language::BringLanguageModel;
pub use language::LanguageModelFiles;
pub(crate) use load::{Fits, Loaded, Loading};

/// The last part of the base model's path: cards say nothing about the machine they were made on.
pub(crate) fn base_model_name(base: &str) -> String {
    Path::new(base)
        .file_name()
        .map_or_else(|| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::base_model_name;

    #[test]
    fn a_base_model_is_named_without_its_place() {
        for base in
            ["/home/me/stable-diffusion-v1-5", "/models/stable-diffusion-v1-5/", "stable-diffusion-v1-5"]
        {
            assert_eq!(base_model_name(base), "stable-diffusion-v1-5");
        }
        assert_eq!(base_model_name("s3://models/stable-diffusion/sd2"), "sd2");
        assert_eq!(base_model_name("/models/v1-5-pruned.safetensors"), "v1-5-pruned.safetensors");
        assert_eq!(base_model_name("/"), "unknown");
    }
}

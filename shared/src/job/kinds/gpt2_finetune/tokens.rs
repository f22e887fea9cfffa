//! Where its tokens are.

use super::Gpt2Spec;
use crate::job::{ModelLocation, SpecError, Violation};

impl Gpt2Spec {
    /// Where the tokens are: a folder or a bucket, never a hub.
    ///
    /// # Errors
    /// `tokens` has not been checked: what a [`crate::job::JobSpec`] holds has.
    pub fn tokens_location(&self) -> Result<ModelLocation, SpecError> {
        let refused = |problem| SpecError { violations: vec![Violation::new("gpt2.tokens", problem)] };
        parse_tokens(&self.tokens).map_err(refused)
    }
}

/// Reads `gpt2.tokens`.
pub(super) fn parse_tokens(given: &str) -> Result<ModelLocation, String> {
    match ModelLocation::parse(given, "") {
        Ok(location @ (ModelLocation::Local(_) | ModelLocation::S3(_))) => Ok(location),
        // Of a bucket, all that is wrong with it is said.
        Err((_, problem)) if given.starts_with("s3://") => Err(problem),
        Ok(ModelLocation::Hub(_)) | Err(_) => {
            let given: String = given.chars().take(80).collect();
            Err(format!(
                "got {given:?}; allowed: a folder that `ringtune prepare-text` made, or s3://BUCKET/PREFIX"
            ))
        }
    }
}

//! What it takes from elsewhere: files, folders and uploaded contents.

use super::Gpt2Spec;
use crate::{
    ids::ContentHash,
    job::{ContentUse, ModelLocation, PathUse, ResumeFrom, SpecError, Violation},
};

impl Gpt2Spec {
    /// Where the tokens are: a folder or a bucket, never a hub.
    ///
    /// # Errors
    /// `tokens` has not been checked: what a [`crate::job::JobSpec`] holds has.
    pub fn tokens_location(&self) -> Result<ModelLocation, SpecError> {
        let refused = |problem| SpecError { violations: vec![Violation::new("gpt2.tokens", problem)] };
        parse_tokens(&self.tokens).map_err(refused)
    }

    /// The uploaded contents that it names.
    pub(in crate::job) fn contents(&self) -> Vec<(ContentUse, ContentHash)> {
        let uploaded = ContentHash::from_uri(&self.resume_from_checkpoint);
        uploaded.map(|hash| (ContentUse::Checkpoint, hash)).into_iter().collect()
    }

    /// See [`crate::job::kinds::Work`].
    pub(in crate::job) fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
        let mut all = vec![("gpt2.tokens".to_owned(), PathUse::Tokens, &mut self.tokens)];
        // Others are words and numbers.
        if matches!(ResumeFrom::parse(&self.resume_from_checkpoint), Ok(ResumeFrom::File(_))) {
            let field = "gpt2.resume_from_checkpoint".to_owned();
            all.push((field, PathUse::Checkpoint, &mut self.resume_from_checkpoint));
        }
        all
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

//! Checks `resume_from_checkpoint`.

use super::{Check, limits};
use crate::job::{ResumeFrom, text::printable};

impl Check {
    /// Empty, or something that can name a checkpoint.
    pub(in crate::job) fn resume_from(&mut self, field: &str, given: Option<String>) -> String {
        let text = given.unwrap_or_default();
        if let Err(problem) = printable(&text, limits::PATH_CHARACTERS) {
            self.refuse(field, problem);
        } else if let Err(error) = ResumeFrom::parse(&text) {
            self.refuse(field, error.to_string());
        }
        text
    }
}

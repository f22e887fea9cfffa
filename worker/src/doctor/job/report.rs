//! What is known of a job, as plain data.

use std::path::PathBuf;

use serde::Serialize;

use super::{pictures::FolderReport, problem::Problem};
use crate::kinds::Found;

/// Everything about a job.
#[derive(Clone, Debug, Default, Serialize)]
pub(in crate::doctor) struct JobReport {
    pub(super) job_file: PathBuf,
    pub(super) name: String,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<String>,
    pub(super) folders: Vec<FolderReport>,
    /// What a dry run found.
    #[serde(flatten)]
    pub(super) found: Found,
    pub(super) sheet: Option<SheetReport>,
}

/// Where the contact sheet is.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SheetReport {
    pub(super) file: PathBuf,
    pub(super) shown: usize,
    pub(super) total: usize,
}

impl JobReport {
    /// One object on one line.
    pub(in crate::doctor) fn to_json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Whole<'a> {
            can_start: bool,
            #[serde(flatten)]
            report: &'a JobReport,
        }
        serde_json::to_string(&Whole { can_start: self.can_start(), report: self })
    }

    /// Nothing is in the way of the job.
    pub(in crate::doctor) fn can_start(&self) -> bool {
        let Found { model, language, texts, .. } = &self.found;
        self.problems.is_empty() && (model.is_some() || language.is_some() || texts.is_some())
    }
}

//! Why a job would not start, field by field.

use ringtune_shared::job::{Violation, is_field};
use serde::Serialize;

/// Why the job would not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    /// The job's field; empty where it is about no field.
    pub(super) field: String,
    /// What was given, and what would be right.
    pub(super) problem: String,
}

impl Problem {
    pub(super) fn of_violation(violation: &Violation) -> Self {
        let line = violation.line.map(|line| format!(" (line {line})")).unwrap_or_default();
        Self { field: violation.field.clone(), problem: format!("{}{line}", violation.problem) }
    }

    /// Of an error's text, which begins with the field's name and a colon where it is about one.
    pub(super) fn of_text(text: &str) -> Self {
        match text.split_once(": ") {
            Some((field, problem)) if is_field(field) => {
                Self { field: field.to_owned(), problem: problem.to_owned() }
            }
            _ => Self { field: String::new(), problem: text.to_owned() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_knows_its_field() {
        let problem = Problem::of_text("train.resolution: 65 is not a multiple");
        assert_eq!(
            (problem.field.as_str(), problem.problem.as_str()),
            ("train.resolution", "65 is not a multiple")
        );
        assert_eq!(Problem::of_text("generate.width: 33").field, "generate.width");
        assert_eq!(Problem::of_text("concepts[1].images: nothing").field, "concepts[1].images");
        for text in ["/a/b.toml: no such file", "no field: x", "libtorch 2.13: broken"] {
            assert_eq!(Problem::of_text(text), Problem { field: String::new(), problem: text.to_owned() });
        }
    }
}

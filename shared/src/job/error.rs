//! Violations of a job's limits.

use std::fmt;

/// Prefix of problems that are missing fields.
pub(super) const MISSING: &str = "missing";

/// A violation of a job's limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The field's full name, as in "train.num_vectors"; empty where the file itself is not TOML.
    pub field: String,
    /// The given and the allowed value.
    pub problem: String,
    /// Its line in the job file, counted from 1; None for jobs from elsewhere, and for missing fields.
    pub line: Option<usize>,
}

impl Violation {
    /// A violation that is tied to no line.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into(), line: None }
    }

    /// Whether it is that the field is not there.
    pub fn is_missing(&self) -> bool {
        self.problem.starts_with(MISSING)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(formatter, "line {line}: ")?;
        }
        if !self.field.is_empty() {
            write!(formatter, "{}: ", self.field)?;
        }
        formatter.write_str(&self.problem)
    }
}

/// All violations of a job, at least one. Displayed one per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError {
    /// In the order of the job file's lines, where these are known.
    pub violations: Vec<Violation>,
}

impl fmt::Display for SpecError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, violation) in self.violations.iter().enumerate() {
            if index > 0 {
                formatter.write_str("\n")?;
            }
            violation.fmt(formatter)?;
        }
        Ok(())
    }
}

impl std::error::Error for SpecError {}

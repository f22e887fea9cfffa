//! What the checks of all sections are made of.

mod resume;
mod size;

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::{
    FilePlace, SpecError, Violation,
    error::MISSING,
    text::{printable, scheme, shortened},
};

/// The largest values that are accepted: far above what is useful, low enough that no size
/// computed from them overflows or exhausts a machine by accident. Those of a kind stand in its folder.
pub mod limits {
    /// Pixels.
    pub const RESOLUTION: i64 = 4096;
    /// Steps of a training.
    pub const STEPS: i64 = 10_000_000;
    /// Learning rate, before `scale_lr`.
    pub const LEARNING_RATE: f64 = 1000.0;
    /// Ranks.
    pub const WORLD_SIZE: i64 = 1024;
    /// Compute threads of a rank.
    pub const THREADS_PER_RANK: i64 = 1024;
    /// Characters of names and tokens.
    pub const NAME_CHARACTERS: usize = 200;
    /// Characters of paths and URIs.
    pub const PATH_CHARACTERS: usize = 4096;
    /// Bytes of a job as JSON with every default filled in: it goes to every rank in one message, which may have 4 MiB.
    pub const JOB_BYTES: usize = 1 << 20;
}

/// Collects violations; a value that is wrong is replaced by one that is right, so that the
/// Whether this can be a part of a layer's or a parameter's name.
pub(super) fn is_part_of_name(text: &str) -> bool {
    const MOST: usize = 200;
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "._".contains(letter);
    !text.is_empty() && text.len() <= MOST && text.chars().all(fits)
}

/// checks of the others go on.
#[derive(Default)]
pub(super) struct Check {
    violations: Vec<Violation>,
}

impl Check {
    pub(super) fn refuse(&mut self, field: &str, problem: impl Into<String>) {
        self.violations.push(Violation::new(field, problem));
    }

    /// The values, if there are no violations.
    pub(super) fn end<T>(self, values: T) -> Result<T, SpecError> {
        if self.violations.is_empty() { Ok(values) } else { Err(SpecError { violations: self.violations }) }
    }

    /// A folder of its own; empty: none.
    pub(super) fn own_folder(&mut self, field: &str, given: Option<String>) -> String {
        let folder = given.unwrap_or_default();
        if let Err(problem) = printable(&folder, limits::PATH_CHARACTERS) {
            self.refuse(field, problem);
        } else if let Some(scheme) = scheme(&folder) {
            let given = shortened(&folder);
            self.refuse(field, format!("got {given:?}; {scheme}:// is not supported: give a folder"));
        }
        folder
    }

    /// Whether something is wrong with a field already.
    pub(super) fn has_refused(&self, field: &str) -> bool {
        self.violations.iter().any(|violation| violation.field == field)
    }

    /// A text that must be there; empty counts as missing.
    pub(super) fn required(&mut self, field: &str, given: Option<String>, wanted: &str) -> String {
        let text = given.unwrap_or_default();
        if text.is_empty() {
            self.refuse(field, format!("{MISSING}; give {wanted}"));
        } else if let Err(problem) = printable(&text, limits::PATH_CHARACTERS) {
            self.refuse(field, problem);
        }
        text
    }

    /// A text of which everything is looked at together with other options.
    pub(super) fn text(&mut self, _field: &str, given: Option<String>) -> String {
        given.unwrap_or_default()
    }

    /// A text without control characters.
    pub(super) fn line(&mut self, field: &str, given: Option<String>, characters: usize) -> String {
        let text = given.unwrap_or_default();
        if let Err(problem) = printable(&text, characters) {
            self.refuse(field, problem);
        }
        text
    }

    /// The place of a file that a job draws with or starts from.
    pub(super) fn file_place(&mut self, field: &str, place: &str) {
        let problem = match (FilePlace::parse(place), scheme(place)) {
            (Err(problem), _) => problem,
            (Ok(FilePlace::File(path)), Some(scheme)) => {
                format!("got {:?}; {scheme}:// is not supported: give a file", shortened(&path))
            }
            (Ok(FilePlace::File(path)), None) if path.is_empty() => "it is empty; give a file".to_owned(),
            _ => match printable(place, limits::PATH_CHARACTERS) {
                Ok(()) => return,
                Err(problem) => problem,
            },
        };
        self.refuse(field, problem);
    }

    pub(super) fn flag(&mut self, _field: &str, given: Option<bool>, default: bool) -> bool {
        given.unwrap_or(default)
    }

    /// None: it is not set.
    pub(super) fn flag_if_set(&mut self, _field: &str, given: Option<bool>) -> Option<bool> {
        given.filter(|given| *given)
    }

    pub(super) fn choice<T: FromStr<Err: Display>>(
        &mut self,
        field: &str,
        given: Option<String>,
        default: T,
    ) -> T {
        // The wire writes "not given" as an empty text where a field cannot be absent.
        let Some(text) = given else { return default };
        match text.parse() {
            Ok(value) => value,
            Err(error) => {
                self.refuse(field, error.to_string());
                default
            }
        }
    }

    /// A whole number. `allowed` lies within `T`, whatever it is.
    pub(super) fn count<T>(
        &mut self,
        field: &str,
        given: Option<i64>,
        default: T,
        allowed: RangeInclusive<i64>,
    ) -> T
    where
        T: TryFrom<i64>,
    {
        let Some(number) = given else { return default };
        let fitting = if allowed.contains(&number) { T::try_from(number).ok() } else { None };
        fitting.unwrap_or_else(|| {
            self.refuse(field, format!("got {number}; allowed: {} to {}", allowed.start(), allowed.end()));
            default
        })
    }

    /// A whole number, where there is one.
    pub(super) fn count_if_given(
        &mut self,
        field: &str,
        given: Option<i64>,
        allowed: RangeInclusive<i64>,
    ) -> Option<u64> {
        given.map(|number| self.count(field, Some(number), 1, allowed))
    }

    /// The microbatches of a step over all ranks.
    pub(super) fn microbatches(&mut self, field: &str, of_a_rank: u32, ranks: u32, most: u32) {
        let microbatches = ranks.saturating_mul(of_a_rank);
        if microbatches > most {
            let problem = format!(
                "got {of_a_rank} with world_size {ranks}, that is {microbatches} microbatches a step; allowed: {most}"
            );
            self.refuse(field, problem);
        }
    }

    /// A number from 0 to `most`. A zero comes out without a sign, so that equal jobs are written equally.
    pub(super) fn number(&mut self, field: &str, given: Option<f64>, default: f64, most: f64) -> f64 {
        let Some(number) = given else { return default };
        // NaN is in no range.
        if (0.0..=most).contains(&number) {
            return number.abs();
        }
        self.refuse(field, format!("got {number}; allowed: 0 to {most}"));
        default
    }

    /// A number above 0, up to `most`.
    pub(super) fn above_zero(&mut self, field: &str, given: Option<f64>, default: f64, most: f64) -> f64 {
        let Some(number) = given else { return default };
        // Written so that NaN fails it.
        if number > 0.0 && number <= most {
            return number;
        }
        self.refuse(field, format!("got {number}; allowed: a number above 0, at most {most}"));
        default
    }

    /// A number from 0 up to, but not, 1.
    pub(super) fn share(&mut self, field: &str, given: Option<f64>, default: f64) -> f64 {
        let Some(number) = given else { return default };
        if (0.0..1.0).contains(&number) {
            return number.abs();
        }
        self.refuse(field, format!("got {number}; allowed: 0 to 1, without 1"));
        default
    }
}

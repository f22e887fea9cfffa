//! Conversions between wire messages and domain types: ids, the job spec, states, times.
//!
//! Wire texts are parsed once, where they come in; beyond that point only domain types are used.

mod job;
mod names;
mod orders;
mod queue;
mod sections;

use std::fmt;
use std::str::FromStr;

pub use job::{activity_to_wire, draft_from_wire, spec_from_wire, spec_to_wire};
pub use names::{
    is_terminal, job_reason_name, job_state_from_name, job_state_name, log_level_name, progress_stage_name,
    rank_phase_name, worker_state_from_name, worker_state_name,
};
pub use orders::{live_order_from_wire, live_order_to_wire, order_from_wire};
pub use queue::{queue_from_wire, queue_to_wire};

/// A field of a message that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// The field's name in its message, as in "job_id".
    pub field: String,
    /// What was given and what is allowed.
    pub problem: String,
}

impl FieldError {
    /// A field and what is wrong with it.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}

/// Reads an id (or anything else that is written as text) from a field of a message.
///
/// # Errors
/// Names the field, with what the type's own error says.
pub fn parse<T>(field: &str, text: &str) -> Result<T, FieldError>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    text.parse().map_err(|error: T::Err| FieldError::new(field, error.to_string()))
}

/// Reads a number that must not be negative and must fit.
///
/// # Errors
/// Names the field, the number and what is allowed.
pub fn unsigned<T: TryFrom<i64>>(field: &str, number: i64) -> Result<T, FieldError> {
    T::try_from(number).map_err(|_| FieldError::new(field, format!("got {number}, which is out of range")))
}

/// The timestamp of a time in milliseconds since 1970 began, in UTC.
pub fn timestamp(milliseconds: i64) -> prost_types::Timestamp {
    let nanos = milliseconds.rem_euclid(1000) * 1_000_000;
    prost_types::Timestamp {
        seconds: milliseconds.div_euclid(1000),
        // Below 10^9.
        nanos: i32::try_from(nanos).unwrap_or_default(),
    }
}

/// Milliseconds since 1970 began, in UTC; the rest is cut off.
pub fn milliseconds(timestamp: &prost_types::Timestamp) -> i64 {
    timestamp.seconds.saturating_mul(1000).saturating_add(i64::from(timestamp.nanos / 1_000_000))
}

#[cfg(test)]
mod tests {
    use ringtune_shared::ids::JobId;

    use super::*;

    #[test]
    fn times_are_read_back_before_and_after_1970() {
        for time in [0, 1, 999, 1000, 1_700_000_000_123, -1, -1001] {
            let wire = timestamp(time);
            assert!((0..1_000_000_000).contains(&wire.nanos));
            assert_eq!(milliseconds(&wire), time);
        }
    }

    #[test]
    fn a_bad_field_is_named_with_what_was_given() {
        let error = parse::<JobId>("job_id", "seven").unwrap_err();
        assert_eq!(error.field, "job_id");
        assert!(error.problem.contains("seven"), "{error}");
        assert_eq!(unsigned::<u32>("rank", 7), Ok(7));
        assert!(unsigned::<u32>("rank", -1).unwrap_err().problem.contains("-1"));
    }
}

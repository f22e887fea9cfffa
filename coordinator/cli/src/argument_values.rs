//! Values of command lines, read with an error that says what is meant.

use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ringtune_proto::{convert::job_state_from_name, v1::JobState};

/// More workers on one machine than anyone wants.
pub const MOST_WORKERS: u32 = 256;
/// Reads how many workers `run` is to start; what the job needs of them is looked at later.
pub fn parse_workers(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("allowed: 1 to {MOST_WORKERS}"))
}

/// Reads a job state as users write it, in upper or lower case.
pub fn parse_job_state(name: &str) -> Result<JobState, String> {
    job_state_from_name(name).ok_or_else(|| {
        "the states are queued, preparing, running, paused, succeeded, failed and cancelled".to_owned()
    })
}

/// As above, as a value of clap, whose words shells complete.
pub fn job_states() -> impl TypedValueParser<Value = JobState> {
    PossibleValuesParser::new([
        "queued",
        "preparing",
        "running",
        "paused",
        "succeeded",
        "failed",
        "cancelled",
    ])
    .try_map(|name| parse_job_state(&name))
}

/// Steps, both ends included, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRange {
    /// The first.
    pub first: i64,
    /// The last, not before it.
    pub last: i64,
}

impl FromStr for StepRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let step = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<i64>().ok().filter(|step| digits && *step >= 1)
        };
        match step(first).zip(step(last)) {
            Some((first, last)) if first <= last => Ok(Self { first, last }),
            Some(_) => Err("the first step is after the last; allowed: as in 100-120".to_owned()),
            None => Err("allowed: two steps from 1 as in 100-120, or one as in 100".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_two_or_one() {
        let parse = |text: &str| text.parse::<StepRange>().map(|steps| (steps.first, steps.last));
        assert_eq!(parse("100-120"), Ok((100, 120)));
        assert_eq!(parse("7"), Ok((7, 7)));
        for wrong in
            ["", "-", "-5", "5-", "0-3", "0", "+1-2", "1-2-3", "a-b", "99999999999999999999", "1 - 2"]
        {
            let problem = parse(wrong).expect_err(wrong);
            assert!(problem.contains("100-120, or one"), "{wrong}: {problem}");
        }
        assert!(parse("9-3").expect_err("backwards").contains("after the last"));
    }

    #[test]
    fn a_state_is_one_that_a_job_can_have() {
        assert_eq!(parse_job_state("Queued"), Ok(JobState::Queued));
        for wrong in ["foo", ""] {
            let problem = parse_job_state(wrong).expect_err(wrong);
            assert!(problem.contains("paused, succeeded, failed and cancelled"), "{problem}");
        }
    }
}

//! Learning rates step by step, in the syntax of AUTOMATIC1111's trainer: `0.005:100, 1e-3:1000, 1e-5`.
//!
//! A piece `rate:step` holds up to and including that step, counted from 1; one without a step, or with step -1, holds
//! to the end. Source: AUTOMATIC1111's `modules/textual_inversion/learn_schedule.py`, whose scheduler takes the next
//! piece when as many updates are done as the piece's step says.
//!
//! It stops training where the last piece ends, and takes steps that do not rise; here both are mistakes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{limits, section::value};

/// Pieces of a list, at most.
const MOST_PIECES: usize = 100;
/// The only other number below 1 that a step may be: to the end.
const TO_THE_END: i64 = -1;

/// The learning rate of every step, before `scale_lr`. At least one piece; steps rise, and only the last piece may hold
/// to the end.
#[derive(Debug, Clone, PartialEq)]
pub struct LearningRates {
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Piece {
    rate: f64,
    /// The last step that it holds for; none: all.
    until: Option<u64>,
}

impl LearningRates {
    /// The rate of step `step`, counted from 1. After the last piece it stays that piece's.
    pub fn at(&self, step: u64) -> f64 {
        let holds = |piece: &&Piece| piece.until.is_none_or(|until| step <= until);
        let last = self.pieces.last().map_or(0.0, |piece| piece.rate);
        self.pieces.iter().find(holds).map_or(last, |piece| piece.rate)
    }

    /// The step that the last piece ends at; none: it holds to the end.
    pub fn end(&self) -> Option<u64> {
        self.pieces.last().and_then(|piece| piece.until)
    }
}

impl FromStr for LearningRates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut pieces: Vec<Piece> = Vec::new();
        for given in text.split(',').map(str::trim).filter(|given| !given.is_empty()) {
            let piece = piece(given)?;
            let before = pieces.last().map(|piece| piece.until);
            match (before, piece.until) {
                (Some(None), _) => {
                    return Err(format!(
                        "got {given:?} after a rate that holds to the end; give that one a step"
                    ));
                }
                (Some(Some(before)), Some(until)) if until <= before => {
                    return Err(format!("got {given:?} after step {before}; allowed: steps that rise"));
                }
                _ => pieces.push(piece),
            }
            if pieces.len() > MOST_PIECES {
                return Err(format!("got more than {MOST_PIECES} rates; allowed: at most {MOST_PIECES}"));
            }
        }
        if pieces.is_empty() {
            return Err(
                "got no rate; allowed: rates and the steps they hold up to, as in \"0.005:100, 1e-5\""
                    .to_owned(),
            );
        }
        Ok(Self { pieces })
    }
}

fn piece(given: &str) -> Result<Piece, String> {
    let shown: String = given.chars().take(40).collect();
    let (rate, step) = match given.split_once(':') {
        Some((rate, step)) => (rate.trim(), Some(step.trim())),
        None => (given, None),
    };
    let most = limits::LEARNING_RATE;
    // NaN is in no range.
    let rate = rate.parse().ok().filter(|rate: &f64| *rate > 0.0 && *rate <= most);
    let rate =
        rate.ok_or_else(|| format!("got {shown:?}; allowed as a rate: a number above 0, at most {most}"))?;
    let until = match step.map(str::parse) {
        None | Some(Ok(TO_THE_END)) => None,
        Some(Ok(step)) if (1..=limits::STEPS).contains(&step) => Some(step.unsigned_abs()),
        Some(_) => {
            let allowed = format!("a step from 1 to {}, or -1 for the end", limits::STEPS);
            return Err(format!("got {shown:?}; allowed after the colon: {allowed}"));
        }
    };
    Ok(Piece { rate, until })
}

value! {
    LearningRates => String: |rates| rates.to_string();
}

impl fmt::Display for LearningRates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, piece) in self.pieces.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(formatter, "{comma}{:?}", piece.rate)?;
            if let Some(until) = piece.until {
                write!(formatter, ":{until}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for LearningRates {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads what was written, without the limits of today: they were checked before.
impl<'de> Deserialize<'de> for LearningRates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let pieces = text.split(',').map(|piece| {
            let (rate, until) = match piece.split_once(':') {
                Some((rate, step)) => (rate, Some(step.trim().parse().ok()?)),
                None => (piece, None),
            };
            Some(Piece { rate: rate.trim().parse().ok()?, until })
        });
        let pieces: Option<Vec<Piece>> = pieces.collect();
        let problem = || de::Error::custom(format!("{text:?} is not a list of learning rates"));
        Ok(Self { pieces: pieces.ok_or_else(problem)? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_step_belongs_to_the_piece_that_it_ends() {
        let rates: LearningRates = "0.005:100, 1e-3:1000, 1e-5".parse().unwrap();
        for (step, rate) in
            [(1, 5e-3), (100, 5e-3), (101, 1e-3), (1000, 1e-3), (1001, 1e-5), (10_000_000, 1e-5)]
        {
            assert_eq!(rates.at(step), rate, "{step}");
        }
        assert_eq!(rates.to_string(), "0.005:100, 0.001:1000, 1e-5");
        assert_eq!(rates.end(), None);
    }

    #[test]
    fn what_people_write_is_read() {
        for (text, canonical) in
            [("1e-3", "0.001"), (" 5 : 7 ,1:-1,", "5.0:7, 1.0"), (".5:1,+2e-6:2", "0.5:1, 2e-6:2")]
        {
            let rates: LearningRates = text.parse().unwrap();
            assert_eq!(rates.to_string(), canonical);
        }
        let ending: LearningRates = "1e-3:5, 1e-4:9".parse().unwrap();
        assert_eq!((ending.end(), ending.at(10)), (Some(9), 1e-4));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let many = (1..=101).map(|step| format!("1e-3:{step}")).collect::<Vec<_>>().join(",");
        for wrong in [
            "",
            ",",
            "fast",
            "1e-3:",
            ":5",
            "1e-3:0",
            "1e-3:-2",
            "1e-3:1.5",
            "1e-3:5:6",
            "nan",
            "inf",
            "-1",
            "0",
            "1001",
            "1e-3:10000001",
            "1e-3:5, 1e-4:5",
            "1e-3:5, 1e-4:4",
            "1e-3, 1e-4",
            "1e-3:-1, 1e-4:9",
            "1e-3;1e-4",
            &many,
        ] {
            let error = wrong.parse::<LearningRates>().unwrap_err();
            assert!(error.starts_with("got"), "{wrong}: {error}");
        }
        assert!(many.trim_end_matches(",1e-3:101").parse::<LearningRates>().is_ok());
    }

    proptest! {
        #[test]
        fn reads_back_what_it_writes(text in "[0-9e:., -]{0,40}") {
            if let Ok(rates) = text.parse::<LearningRates>() {
                prop_assert_eq!(rates.to_string().parse::<LearningRates>(), Ok(rates));
            }
        }
    }
}

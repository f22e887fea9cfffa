//! Samples the next token: a pure function of logits, options and the draw's name.
//!
//! Temperature, the most likely tokens, and the smallest set of a probability, in this order and as transformers has them
//! (generation/logits_process.py: `TemperatureLogitsWarper`, `TopKLogitsWarper`, `TopPLogitsWarper`). Probabilities are in
//! double precision. With u from 0 up to, but not, 1, the token is the first, in the order of ids, at which the
//! probabilities of all up to it come above u.
//!
//! **The draw is fixed**: u is w\[0\] + w\[1\] 2^32, without its lowest 11 bits, over 2^64, of the stream of (seed, purpose 18,
//! step, sample), where step is the token's place in its text, the prompt's tokens counted too, and sample the number of the
//! text. So a text is the same whatever else is made, and however many there are.

use ringtune_random::{Stream, StreamName};

/// The purpose of these draws: no other draw has it (`ringtune_random`'s stream lists them).
const PURPOSE: u8 = 18;
/// 2^-53.
const UNIT: f64 = 1.0 / 9_007_199_254_740_992.0;

/// Sampling of the next token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it: less is surer, more is bolder, and 0 is the most likely token alone. At most
    /// [`HOTTEST`].
    pub temperature: f64,
    /// Of how many of the most likely tokens one is drawn; those that are as likely as the last one are among them. 0: all.
    pub top_k: u32,
    /// Then of the fewest most likely tokens whose probabilities make up this share; above 0, 1: all.
    pub top_p: f64,
}

/// Above this every token is as good as equally likely.
pub const HOTTEST: f64 = 1000.0;
/// Lowest temperature besides 0: below it the most likely token is drawn anyhow.
pub const COLDEST: f64 = 1e-6;

/// Names a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawName {
    /// Of the whole run.
    pub seed: u64,
    /// The number of the text, from 0.
    pub sample: u32,
    /// The token's place in it, from 0, the prompt's tokens counted.
    pub place: u64,
}

/// An option that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {given}; allowed: {allowed}")]
pub struct WrongSampling {
    /// The field of [`Sampling`].
    pub field: &'static str,
    /// The given value.
    pub given: String,
    /// The allowed values.
    pub allowed: &'static str,
}

/// Logits that are no numbers to draw by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model's logits are not finite: its parameters are broken")]
pub struct NotFinite;

impl Sampling {
    /// Checks the options' limits.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), WrongSampling> {
        let wrong =
            |field, given: f64, allowed| Err(WrongSampling { field, given: given.to_string(), allowed });
        if self.temperature != 0.0 && !(COLDEST..=HOTTEST).contains(&self.temperature) {
            return wrong("temperature", self.temperature, "0, or from 0.000001 to 1000");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("top_p", self.top_p, "above 0, up to 1");
        }
        Ok(())
    }

    /// The tokens that may come, in the order of their ids, each with its probability.
    ///
    /// # Errors
    /// A logit that is not finite.
    pub fn choices(&self, logits: &[f32]) -> Result<Vec<(u32, f64)>, NotFinite> {
        // 1. The most likely one: the first of several.
        let mut most: Option<(u32, f32)> = None;
        for (id, logit) in (0u32..).zip(logits) {
            if !logit.is_finite() {
                return Err(NotFinite);
            }
            if most.is_none_or(|(_, greatest)| *logit > greatest) {
                most = Some((id, *logit));
            }
        }
        let Some((best, greatest)) = most else { return Err(NotFinite) };
        if self.temperature == 0.0 {
            return Ok(vec![(best, 1.0)]);
        }
        // 2. Those that are likely enough; what all are divided by does not change their order.
        let least = least_of_top(logits, self.top_k as usize);
        let likely = (0u32..).zip(logits).filter(|(_, logit)| **logit >= least);
        let weight = |logit: f32| ((f64::from(logit) - f64::from(greatest)) / self.temperature).exp();
        let mut choices: Vec<(u32, f64)> = likely.map(|(id, logit)| (id, weight(*logit))).collect();
        // 3. Those that make up the share.
        if self.top_p < 1.0 {
            keep_share(&mut choices, self.top_p);
        }
        let sum: f64 = choices.iter().map(|(_, weight)| weight).sum();
        choices.iter_mut().for_each(|(_, weight)| *weight /= sum);
        Ok(choices)
    }

    /// The next token.
    ///
    /// # Errors
    /// A logit that is not finite.
    pub fn draw(&self, logits: &[f32], name: DrawName) -> Result<u32, NotFinite> {
        let choices = self.choices(logits)?;
        let DrawName { seed, sample, place } = name;
        let mut stream = Stream::new(StreamName { seed, purpose: PURPOSE, step: place, sample });
        let bits = u64::from(stream.word()) | u64::from(stream.word()) << 32;
        let wanted = (bits >> 11) as f64 * UNIT;
        let mut sum = 0.0;
        for (id, probability) in &choices {
            sum += probability;
            if sum > wanted {
                return Ok(*id);
            }
        }
        // The sum of all may be a little less than 1.
        choices.last().map(|(id, _)| *id).ok_or(NotFinite)
    }
}

/// The least of the `count` greatest logits; of 0, and of more than there are, one that nothing is below.
fn least_of_top(logits: &[f32], count: usize) -> f32 {
    if count == 0 || count >= logits.len() {
        return f32::NEG_INFINITY;
    }
    let mut copy = logits.to_vec();
    *copy.select_nth_unstable_by(count - 1, |one, other| other.total_cmp(one)).1
}

/// Takes away the least likely ones as long as all that are taken away make up no more than 1 - `share`; the most likely one
/// stays.
fn keep_share(choices: &mut Vec<(u32, f64)>, share: f64) {
    choices.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let sum: f64 = choices.iter().map(|(_, weight)| weight).sum();
    let mut below = 0.0;
    let is_left_out = |(_, weight): &(u32, f64)| {
        below += weight;
        below / sum <= 1.0 - share
    };
    let left_out = choices.iter().map(is_left_out).take_while(|left_out| *left_out).count();
    choices.drain(..left_out.min(choices.len().saturating_sub(1)));
    choices.sort_by_key(|(id, _)| *id);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0 };

    fn ids(sampling: Sampling, logits: &[f32]) -> Vec<u32> {
        sampling.choices(logits).unwrap().into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn options_say_what_is_wrong_with_them() {
        for good in [ALL, Sampling { temperature: 0.0, ..ALL }, Sampling { top_p: 1e-9, ..ALL }] {
            assert_eq!(good.check(), Ok(()));
        }
        for (field, sampling) in [
            ("temperature", Sampling { temperature: -0.1, ..ALL }),
            ("temperature", Sampling { temperature: f64::NAN, ..ALL }),
            ("temperature", Sampling { temperature: 1e-9, ..ALL }),
            ("temperature", Sampling { temperature: f64::INFINITY, ..ALL }),
            ("top_p", Sampling { top_p: 0.0, ..ALL }),
            ("top_p", Sampling { top_p: 1.1, ..ALL }),
            ("top_p", Sampling { top_p: f64::NAN, ..ALL }),
        ] {
            assert_eq!(sampling.check().unwrap_err().field, field);
        }
    }

    #[test]
    fn no_temperature_is_the_first_of_the_most_likely() {
        let cold = Sampling { temperature: 0.0, ..ALL };
        assert_eq!(cold.choices(&[1.0, 3.0, 3.0, -2.0]), Ok(vec![(1, 1.0)]));
    }

    #[test]
    fn as_likely_as_the_last_of_the_top_is_among_them() {
        let logits = [1.0, 3.0, 2.0, 2.0, 0.0];
        for (top_k, expected) in [(1, &[1][..]), (2, &[1, 2, 3]), (3, &[1, 2, 3]), (4, &[0, 1, 2, 3])] {
            assert_eq!(ids(Sampling { top_k, ..ALL }, &logits), expected);
        }
        for top_k in [0, 5, u32::MAX] {
            assert_eq!(ids(Sampling { top_k, ..ALL }, &logits).len(), 5);
        }
    }

    #[test]
    fn a_share_is_of_what_the_top_and_the_temperature_left() {
        // Of probabilities 1/2, 1/4, 1/8 and 1/8.
        let logits = [8f32, 4.0, 2.0, 2.0].map(f32::ln);
        let of = |top_p: f64| ids(Sampling { top_p, ..ALL }, &logits);
        assert_eq!((of(0.4), of(0.51), of(0.76)), (vec![0], vec![0, 1], vec![0, 1, 3]));
        assert_eq!(of(1e-9), [0]);
        // Of two, 2/3 and 1/3.
        assert_eq!(ids(Sampling { top_k: 2, top_p: 0.6, ..ALL }, &logits), [0]);
        // Twice as hot, the first two are 0.37 and 0.26.
        assert_eq!(ids(Sampling { temperature: 2.0, top_p: 0.5, ..ALL }, &logits), [0, 1]);
    }

    #[test]
    fn what_is_not_finite_is_refused() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(ALL.choices(&[0.0, wrong]), Err(NotFinite));
        }
        assert_eq!(ALL.choices(&[]), Err(NotFinite));
    }

    /// These never change: a text of an earlier version has to come out the same. They were made by another
    /// implementation (in Python) of the layout above.
    #[test]
    fn frozen_draws() {
        let logits: Vec<f32> = vec![0.0; 1000];
        let draw = |seed, sample, place| ALL.draw(&logits, DrawName { seed, sample, place }).unwrap();
        assert_eq!(
            [draw(1337, 0, 0), draw(1337, 0, 1), draw(1337, 1, 0), draw(7, 0, 0)],
            [31, 235, 461, 318]
        );
        assert_eq!(draw(0x0123_4567_89ab_cdef, 3, 1 << 40), 934);
    }

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        let logits = [8f32, 4.0, 2.0, 2.0].map(f32::ln);
        let mut counts = [0u32; 4];
        for place in 0..8000 {
            counts[ALL.draw(&logits, DrawName { seed: 3, sample: 0, place }).unwrap() as usize] += 1;
        }
        // 5 standard deviations are at most 224.
        let expected = [4000u32, 2000, 1000, 1000];
        assert!(
            counts.iter().zip(expected).all(|(count, likely)| count.abs_diff(likely) < 224),
            "{counts:?}"
        );
    }
}

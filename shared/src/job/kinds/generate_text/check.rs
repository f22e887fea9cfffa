//! The checks of `[generate_text]`.

use super::GenerateTextSpec;
use crate::job::{CommonSpec, check::Check};

/// Prompts of a job.
const PROMPTS: usize = 1000;
/// Bytes of a prompt: more than any model sees of it.
const PROMPT_BYTES: usize = 100_000;
/// Texts of a job: each is a file at the coordinator.
pub(super) const TEXTS: u64 = 10_000;
/// Tokens of a text, and of all texts: the last file has all of them.
pub(super) const NEW_TOKENS: i64 = 1_000_000;
const ALL_NEW_TOKENS: u64 = 100_000_000;
/// Above this temperature every token is as good as equally likely.
pub const HOTTEST: f64 = 1000.0;
/// Below this, but for 0, the most likely token is drawn anyhow.
pub const COLDEST: f64 = 1e-6;

impl GenerateTextSpec {
    /// What is checked of several options together.
    pub(super) fn check(&self, check: &mut Check, common: &CommonSpec) {
        common.check_language_model(check, "generate_text");
        let texts = self.prompts.len() as u64 * u64::from(self.num_samples);
        let tokens = texts * u64::from(self.max_new_tokens);
        if texts > TEXTS && !check.has_refused("generate_text.num_samples") {
            let problem = format!("that makes {texts} texts; allowed: at most {TEXTS}");
            check.refuse("generate_text.num_samples", problem);
        } else if tokens > ALL_NEW_TOKENS && !check.has_refused("generate_text.max_new_tokens") {
            let problem =
                format!("that makes up to {tokens} tokens; allowed: at most {ALL_NEW_TOKENS} in all");
            check.refuse("generate_text.max_new_tokens", problem);
        }
    }
}

/// Options by themselves.
impl Check {
    pub(super) fn begun_texts(&mut self, field: &str, given: Option<Vec<String>>) -> Vec<String> {
        let prompts = given.unwrap_or_default();
        if prompts.is_empty() || prompts.len() > PROMPTS {
            let problem = format!("got {} prompts; allowed: a list of 1 to {PROMPTS}", prompts.len());
            self.refuse(field, problem);
            return Vec::new();
        }
        for (index, prompt) in prompts.iter().enumerate() {
            // Lines and tabs are text; what nobody can type or read is not.
            let strange = prompt.chars().find(|letter| letter.is_control() && !"\n\r\t".contains(*letter));
            let problem = if prompt.len() > PROMPT_BYTES {
                format!("it has {} bytes; allowed: at most {PROMPT_BYTES}", prompt.len())
            } else if let Some(strange) = strange {
                format!(
                    "it has the control character U+{:04X}; allowed: text, lines and tabs",
                    strange as u32
                )
            } else {
                continue;
            };
            self.refuse(&format!("{field}[{index}]"), problem);
        }
        prompts
    }

    pub(super) fn temperature(&mut self, field: &str, given: Option<f64>) -> f64 {
        let given = given.unwrap_or(0.8);
        if given != 0.0 && !(COLDEST..=HOTTEST).contains(&given) {
            let problem = format!("got {given}; allowed: 0, or {COLDEST} to {HOTTEST}");
            self.refuse(field, problem);
        }
        // A zero without a sign, so that equal jobs are written equally.
        given.abs()
    }
}

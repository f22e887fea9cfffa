//! Defaults and limits of `[generate_text]`.

use super::{GenerateTextDraft, GenerateTextSpec};
use crate::job::{CommonSpec, MixedPrecision, check::Check};

/// Prompts of a job.
const PROMPTS: usize = 1000;
/// Bytes of a prompt: more than any model sees of it.
const PROMPT_BYTES: usize = 100_000;
/// Texts of a job: each is a file at the coordinator.
const TEXTS: u64 = 10_000;
/// Tokens of a text, and of all texts: the last file has all of them.
const NEW_TOKENS: i64 = 1_000_000;
const ALL_NEW_TOKENS: u64 = 100_000_000;
/// Above this temperature every token is as good as equally likely.
pub const HOTTEST: f64 = 1000.0;
/// Below this, but for 0, the most likely token is drawn anyhow.
pub const COLDEST: f64 = 1e-6;

/// Fills in the defaults and checks every value.
pub(in crate::job::kinds) fn check(
    check: &mut Check,
    draft: GenerateTextDraft,
    common: &CommonSpec,
) -> GenerateTextSpec {
    check.model_of_words("generate_text", common);
    check.generate_text(draft)
}

impl Check {
    fn generate_text(&mut self, draft: GenerateTextDraft) -> GenerateTextSpec {
        let spec = GenerateTextSpec {
            prompts: self.begun_texts(draft.prompts.unwrap_or_default()),
            num_samples: self.count("generate_text.num_samples", draft.num_samples, 1, 1..=TEXTS as i64),
            max_new_tokens: self.count(
                "generate_text.max_new_tokens",
                draft.max_new_tokens,
                200,
                1..=NEW_TOKENS,
            ),
            temperature: self.temperature(draft.temperature.unwrap_or(0.8)),
            top_k: self.count("generate_text.top_k", draft.top_k, 200, 0..=i64::from(u32::MAX)),
            top_p: self.above_zero("generate_text.top_p", draft.top_p, 1.0, 1.0),
            seed: self.count("generate_text.seed", draft.seed, 1337, 0..=i64::MAX),
            stop_at_end_of_text: draft.stop_at_end_of_text.unwrap_or(true),
            mixed_precision: self.choice(
                "generate_text.mixed_precision",
                draft.mixed_precision,
                MixedPrecision::Bf16,
            ),
        };
        let texts = spec.prompts.len() as u64 * u64::from(spec.num_samples);
        let tokens = texts * u64::from(spec.max_new_tokens);
        if texts > TEXTS && !self.has_refused("generate_text.num_samples") {
            let problem = format!("that makes {texts} texts; allowed: at most {TEXTS}");
            self.refuse("generate_text.num_samples", problem);
        } else if tokens > ALL_NEW_TOKENS && !self.has_refused("generate_text.max_new_tokens") {
            let problem =
                format!("that makes up to {tokens} tokens; allowed: at most {ALL_NEW_TOKENS} in all");
            self.refuse("generate_text.max_new_tokens", problem);
        }
        spec
    }

    fn begun_texts(&mut self, prompts: Vec<String>) -> Vec<String> {
        const FIELD: &str = "generate_text.prompts";
        if prompts.is_empty() || prompts.len() > PROMPTS {
            let problem = format!("got {} prompts; allowed: a list of 1 to {PROMPTS}", prompts.len());
            self.refuse(FIELD, problem);
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
            self.refuse(&format!("{FIELD}[{index}]"), problem);
        }
        prompts
    }

    fn temperature(&mut self, given: f64) -> f64 {
        if given != 0.0 && !(COLDEST..=HOTTEST).contains(&given) {
            let problem = format!("got {given}; allowed: 0, or {COLDEST} to {HOTTEST}");
            self.refuse("generate_text.temperature", problem);
        }
        // A zero without a sign, so that equal jobs are written equally.
        given.abs()
    }
}

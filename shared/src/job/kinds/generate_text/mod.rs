//! Texts from a language model as a job.

mod check;
mod foreign_keys;

pub use check::{COLDEST, HOTTEST};

use super::{Activity, facts::Facts};
use crate::job::{MixedPrecision, section::section, text::text_bytes};

one_section!(generate_text: GenerateTextSpec, foreign_keys::FOREIGN_KEYS);

section! {
    /// Texts to make. Names, meanings and defaults are those of `ringtune generate-text`.
    GenerateTextSpec from draft: GenerateTextDraft, generate_text_keys {
        /// What the texts begin with; an empty one is a document of its own. At least one.
        prompts: Vec<String> = strings.begun_texts(),
        /// Texts of each prompt, each with a number that draws it. Default 1.
        num_samples: u32 = integer.count(1, 1..=check::TEXTS as i64),
        /// Tokens of a text behind its prompt, at most. Default 200.
        max_new_tokens: u32 = integer.count(200, 1..=check::NEW_TOKENS),
        /// Logits are divided by it; 0: always the most likely token. Default 0.8.
        temperature: f64 = number.temperature(),
        /// Draw from this many of the most likely tokens alone; 0: from all. Default 200.
        top_k: u32 = integer.count(200, 0..=i64::from(u32::MAX)),
        /// Of those, from the fewest that make up this share; 1: from all. Default 1.
        top_p: f64 = number.above_zero(1.0, 1.0),
        /// What is drawn by. Default 1337.
        seed: u64 = integer.count(1337, 0..=i64::MAX),
        /// Whether a text ends with the end-of-text token, or goes on behind it. Default true.
        stop_at_end_of_text: bool = boolean.flag(true),
        /// What the ranks are to compute in. Default bf16.
        mixed_precision: MixedPrecision = string.choice(MixedPrecision::Bf16),
    }
}

impl GenerateTextSpec {
    /// Texts over all prompts.
    pub fn texts(&self) -> u32 {
        u32::try_from(self.prompts.len()).unwrap_or(u32::MAX).saturating_mul(self.num_samples)
    }
}

impl Facts for GenerateTextSpec {
    fn mixed_precision(&self) -> MixedPrecision {
        self.mixed_precision
    }

    fn activity(&self) -> Activity {
        Activity::Writing
    }

    fn has_language_model(&self) -> bool {
        true
    }

    fn success(&self, _: u64) -> String {
        "all texts are made".to_owned()
    }

    fn lists(&self) -> Vec<(String, usize, &'static str)> {
        vec![("generate_text.prompts".to_owned(), text_bytes(&self.prompts), "")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobKind, JobSpec, STORED_VERSION, Work, parse_job_toml};

    const JOB: &str =
        "kind = \"generate_text\"\n[model]\nbase = \"/m\"\n[generate_text]\nprompts = [\"a\", \"\"]\n";

    #[test]
    fn a_job_has_the_commands_defaults_and_is_written_as_it_is_read() {
        let spec = parse_job_toml(JOB).unwrap();
        let Work::GenerateText(texts) = &spec.work else { panic!("{spec:?}") };
        let expected = GenerateTextSpec {
            prompts: vec!["a".to_owned(), String::new()],
            num_samples: 1,
            max_new_tokens: 200,
            temperature: 0.8,
            top_k: 200,
            top_p: 1.0,
            seed: 1337,
            stop_at_end_of_text: true,
            mixed_precision: MixedPrecision::Bf16,
        };
        assert_eq!((texts, texts.texts()), (&expected, 2));
        assert_eq!((spec.kind(), spec.common.name.as_str()), (JobKind::GenerateText, "generate_text"));
        assert_eq!((spec.total_steps(), spec.global_microbatches()), (0, 1));
        assert_eq!(spec.success(0), "all texts are made");
        let full = format!(
            "{JOB}num_samples = 3\nmax_new_tokens = 7\ntemperature = 0\ntop_k = 0\ntop_p = 0.5\nseed = 1\n\
             stop_at_end_of_text = false\nmixed_precision = \"no\"\n[cluster]\nworld_size = 2\n"
        );
        let spec = parse_job_toml(&full).unwrap();
        assert_eq!(spec.mixed_precision(), MixedPrecision::No);
        let text = spec.to_toml().unwrap();
        assert!(!text.contains("variant") && !text.contains("[debug]"), "{text}");
        assert_eq!(parse_job_toml(&text).unwrap(), spec);
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(JobSpec::from_stored(STORED_VERSION, &json).unwrap(), spec);
    }

    #[test]
    fn the_bounds_are_allowed() {
        let prompts = format!("prompts = [{}]", "\"x\",".repeat(1000));
        for options in [
            "temperature = 0.000001\ntop_p = 1\ntop_k = 4294967295".to_owned(),
            "temperature = 1000\ntop_p = 0.0001\nmax_new_tokens = 1000000\nseed = 0".to_owned(),
            "num_samples = 5000".to_owned(),
        ] {
            parse_job_toml(&format!("{JOB}{options}")).unwrap();
        }
        let many = JOB.replace("prompts = [\"a\", \"\"]", &prompts);
        parse_job_toml(&format!("{many}num_samples = 10")).unwrap();
        let long = format!("prompts = [\"{}\"]", "x".repeat(100_000));
        parse_job_toml(&JOB.replace("prompts = [\"a\", \"\"]", &long)).unwrap();
    }

    #[test]
    fn wrong_values_and_foreign_sections_are_named() {
        let prompts = |value: &str| JOB.replace("[\"a\", \"\"]", value);
        for (job, field) in [
            (JOB.replace("prompts = [\"a\", \"\"]", ""), "generate_text.prompts"),
            (prompts("[]"), "generate_text.prompts"),
            (prompts(&format!("[{}]", "\"x\",".repeat(1001))), "generate_text.prompts"),
            (prompts("\"a\""), "generate_text.prompts"),
            (prompts(&format!("[\"a\", \"{}\"]", "x".repeat(100_001))), "generate_text.prompts[1]"),
            (prompts("[\"a\\u0000\"]"), "generate_text.prompts[0]"),
            (format!("{JOB}num_samples = 0"), "generate_text.num_samples"),
            (format!("{JOB}num_samples = 5001"), "generate_text.num_samples"),
            (format!("{JOB}num_samples = 10001"), "generate_text.num_samples"),
            (format!("{JOB}max_new_tokens = 0"), "generate_text.max_new_tokens"),
            (format!("{JOB}max_new_tokens = 1000001"), "generate_text.max_new_tokens"),
            (format!("{JOB}max_new_tokens = 1000000\nnum_samples = 51"), "generate_text.max_new_tokens"),
            (format!("{JOB}temperature = -0.1"), "generate_text.temperature"),
            (format!("{JOB}temperature = 1e-9"), "generate_text.temperature"),
            (format!("{JOB}temperature = 1001"), "generate_text.temperature"),
            (format!("{JOB}temperature = nan"), "generate_text.temperature"),
            (format!("{JOB}top_k = -1"), "generate_text.top_k"),
            (format!("{JOB}top_k = 4294967296"), "generate_text.top_k"),
            (format!("{JOB}top_p = 0"), "generate_text.top_p"),
            (format!("{JOB}top_p = 1.1"), "generate_text.top_p"),
            (format!("{JOB}seed = -1"), "generate_text.seed"),
            (format!("{JOB}mixed_precision = \"fp16\""), "generate_text.mixed_precision"),
            (format!("{JOB}start = \"x\""), "generate_text.start"),
            (JOB.replace("\"/m\"", "\"/m/a.safetensors\""), "model.base"),
            (JOB.replace("\"/m\"", "\"/m\"\nvariant = \"fp16\""), "model.variant"),
            (JOB.replace("\"/m\"", "\"/m\"\ntokenizer = \"/t\""), "model.tokenizer"),
            (format!("{JOB}[debug]\ntrace_dir = \"/t\""), "debug.trace_dir"),
            (format!("{JOB}[gpt2]\nseed = 1"), "gpt2"),
            (format!("{JOB}[generate]\nseed = 1"), "generate"),
        ] {
            let error = parse_job_toml(&job).unwrap_err();
            let fields: Vec<&str> = error.violations.iter().map(|one| one.field.as_str()).collect();
            assert_eq!(fields, [field], "{error}");
        }
    }
}

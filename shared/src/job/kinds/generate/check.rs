//! Defaults and limits of `[generate]`.

use super::{GenerateDraft, GenerateSpec, SCHEDULERS};
use crate::job::{
    CommonSpec, EmbeddingPlace, MixedPrecision,
    check::{Check, limits},
    text::{printable, scheme, shortened},
};

/// Prompts of a job, and embeddings.
const MOST: usize = 1000;
/// Characters of a prompt: more than eight chunks of 75 tokens.
const PROMPT_CHARACTERS: usize = 10_000;
/// Pictures of a prompt.
const COUNT: i64 = 1000;
/// Pictures of a job: each is a file at the coordinator.
const PICTURES: usize = 10_000;
/// Steps of a sampler.
const STEPS: i64 = 1000;
/// Guidance.
const GUIDANCE: f64 = 100.0;
/// Pictures that are drawn at once.
const BATCH: i64 = 64;

/// Fills in the defaults and checks every value.
pub(in crate::job::kinds) fn check(
    check: &mut Check,
    draft: GenerateDraft,
    common: &CommonSpec,
) -> GenerateSpec {
    if !common.debug.trace_dir.is_empty() {
        check.refuse("debug.trace_dir", "a job that only draws has no steps to trace");
    }
    check.generate(draft)
}

impl Check {
    fn generate(&mut self, draft: GenerateDraft) -> GenerateSpec {
        let prompts = self.prompts(draft.prompts.unwrap_or_default());
        let negative_prompt = draft.negative_prompt.unwrap_or_default();
        if let Err(problem) = printable(&negative_prompt, PROMPT_CHARACTERS) {
            self.refuse("generate.negative_prompt", problem);
        }
        let count: u32 = self.count("generate.count", draft.count, 1, 1..=COUNT);
        let pictures = prompts.len() * count as usize;
        if pictures > PICTURES {
            self.refuse(
                "generate.count",
                format!("that makes {pictures} pictures; allowed: at most {PICTURES}"),
            );
        }
        let embeddings = self.embeddings(draft.embeddings.unwrap_or_default());
        GenerateSpec {
            tokens: self.words_of_embeddings(draft.tokens.unwrap_or_default(), embeddings.len()),
            embeddings,
            steps: self.count("generate.steps", draft.steps, 25, 1..=STEPS),
            guidance_scale: self.number("generate.guidance_scale", draft.guidance_scale, 7.5, GUIDANCE),
            width: self.count("generate.width", draft.width, 0, 0..=limits::RESOLUTION),
            height: self.count("generate.height", draft.height, 0, 0..=limits::RESOLUTION),
            seed: self.count("generate.seed", draft.seed, 0, 0..=i64::MAX),
            scheduler: self.scheduler(draft.scheduler.unwrap_or_default()),
            batch: self.count("generate.batch", draft.batch, 1, 1..=BATCH),
            sheet: draft.sheet.unwrap_or(false),
            mixed_precision: self.choice(
                "generate.mixed_precision",
                draft.mixed_precision,
                MixedPrecision::No,
            ),
            prompts,
            negative_prompt,
            count,
        }
    }

    fn prompts(&mut self, prompts: Vec<String>) -> Vec<String> {
        if prompts.is_empty() || prompts.len() > MOST {
            let problem = format!("got {} prompts; allowed: a list of 1 to {MOST}", prompts.len());
            self.refuse("generate.prompts", problem);
            return Vec::new();
        }
        for (index, prompt) in prompts.iter().enumerate() {
            let field = format!("generate.prompts[{index}]");
            if prompt.trim().is_empty() {
                self.refuse(&field, "it is empty; give what to draw");
            } else if let Err(problem) = printable(prompt, PROMPT_CHARACTERS) {
                self.refuse(&field, problem);
            }
        }
        prompts
    }

    fn embeddings(&mut self, embeddings: Vec<String>) -> Vec<String> {
        if embeddings.len() > MOST {
            let problem = format!("got {}; allowed: at most {MOST}", embeddings.len());
            self.refuse("generate.embeddings", problem);
            return Vec::new();
        }
        for (index, embedding) in embeddings.iter().enumerate() {
            let problem = match (EmbeddingPlace::parse(embedding), scheme(embedding)) {
                (Err(problem), _) => problem,
                (Ok(EmbeddingPlace::File(path)), Some(scheme)) => {
                    format!("got {:?}; {scheme}:// is not supported: give a file", shortened(&path))
                }
                (Ok(EmbeddingPlace::File(path)), None) if path.is_empty() => {
                    "it is empty; give a file".to_owned()
                }
                _ => match printable(embedding, limits::PATH_CHARACTERS) {
                    Ok(()) => continue,
                    Err(problem) => problem,
                },
            };
            self.refuse(&format!("generate.embeddings[{index}]"), problem);
        }
        embeddings
    }

    /// The words of so many embeddings.
    fn words_of_embeddings(&mut self, tokens: Vec<String>, embeddings: usize) -> Vec<String> {
        if tokens.len() > embeddings {
            let problem = format!(
                "got {} for {embeddings} embeddings; allowed: one for each of generate.embeddings, in its order",
                tokens.len()
            );
            self.refuse("generate.tokens", problem);
            return Vec::new();
        }
        for (index, token) in tokens.iter().enumerate() {
            let field = format!("generate.tokens[{index}]");
            if token.chars().any(char::is_whitespace) {
                let given = shortened(token);
                self.refuse(
                    &field,
                    format!("got {given:?}; allowed: one word without spaces, or none for the file's own"),
                );
            } else if let Err(problem) = printable(token, limits::NAME_CHARACTERS) {
                self.refuse(&field, problem);
            }
        }
        tokens
    }

    fn scheduler(&mut self, given: String) -> String {
        if !given.is_empty() && !SCHEDULERS.contains(&given.as_str()) {
            let (given, allowed) = (shortened(&given), SCHEDULERS.join(", "));
            let problem = format!("got {given:?}; allowed: {allowed}, or none for the model's own");
            self.refuse("generate.scheduler", problem);
        }
        given
    }
}

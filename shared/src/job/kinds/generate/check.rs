//! The checks of `[generate]`.

use super::{
    DrawnLora, DrawnLoraDraft, GenerateSpec, SCHEDULERS,
    limits::{LORA_WEIGHT, LORAS, MOST, PICTURES, PROMPT_CHARACTERS},
};
use crate::job::{
    CommonSpec,
    check::Check,
    limits::NAME_CHARACTERS,
    section::Spec as _,
    text::{printable, shortened},
};

impl GenerateSpec {
    /// What is checked of several options together.
    pub(super) fn check(&self, check: &mut Check, common: &CommonSpec) {
        if !common.debug.trace_dir.is_empty() {
            check.refuse("debug.trace_dir", "a job that only draws has no steps to trace");
        }
        let pictures = self.prompts.len() * self.count as usize;
        if pictures > PICTURES {
            check.refuse(
                "generate.count",
                format!("that makes {pictures} pictures; allowed: at most {PICTURES}"),
            );
        }
    }
}

/// Options by themselves.
impl Check {
    pub(super) fn pictured_prompts(&mut self, field: &str, given: Option<Vec<String>>) -> Vec<String> {
        let prompts = given.unwrap_or_default();
        if prompts.is_empty() || prompts.len() > MOST {
            let problem = format!("got {} prompts; allowed: a list of 1 to {MOST}", prompts.len());
            self.refuse(field, problem);
            return Vec::new();
        }
        for (index, prompt) in prompts.iter().enumerate() {
            let field = format!("{field}[{index}]");
            if prompt.trim().is_empty() {
                self.refuse(&field, "it is empty; give what to draw");
            } else if let Err(problem) = printable(prompt, PROMPT_CHARACTERS) {
                self.refuse(&field, problem);
            }
        }
        prompts
    }

    pub(super) fn embeddings(&mut self, field: &str, given: Option<Vec<String>>) -> Vec<String> {
        let embeddings = given.unwrap_or_default();
        if embeddings.len() > MOST {
            let problem = format!("got {}; allowed: at most {MOST}", embeddings.len());
            self.refuse(field, problem);
            return Vec::new();
        }
        for (index, embedding) in embeddings.iter().enumerate() {
            self.file_place(&format!("{field}[{index}]"), embedding);
        }
        embeddings
    }

    pub(super) fn drawn_loras(&mut self, field: &str, given: Option<Vec<DrawnLoraDraft>>) -> Vec<DrawnLora> {
        let drafts = given.unwrap_or_default();
        if drafts.len() > LORAS {
            self.refuse(field, format!("got {}; allowed: at most {LORAS}", drafts.len()));
            return Vec::new();
        }
        let drafts = drafts.into_iter().enumerate();
        drafts.map(|(index, draft)| DrawnLora::checked(draft, self, &format!("{field}[{index}]"))).collect()
    }

    /// The file of a LoRA.
    pub(super) fn lora_file(&mut self, field: &str, given: Option<String>) -> String {
        let place = given.unwrap_or_default();
        self.file_place(field, &place);
        place
    }

    pub(super) fn lora_weight(&mut self, field: &str, given: Option<f64>) -> f64 {
        let weight = given.unwrap_or(1.0);
        // Written so that NaN fails it.
        if weight.abs() <= LORA_WEIGHT {
            return weight;
        }
        self.refuse(field, format!("got {weight}; allowed: -{LORA_WEIGHT} to {LORA_WEIGHT}"));
        1.0
    }

    /// The words of so many embeddings.
    pub(super) fn words_of_embeddings(
        &mut self,
        field: &str,
        given: Option<Vec<String>>,
        embeddings: usize,
    ) -> Vec<String> {
        let tokens = given.unwrap_or_default();
        if tokens.len() > embeddings {
            let problem = format!(
                "got {} for {embeddings} embeddings; allowed: one for each of generate.embeddings, in its order",
                tokens.len()
            );
            self.refuse(field, problem);
            return Vec::new();
        }
        for (index, token) in tokens.iter().enumerate() {
            let field = format!("{field}[{index}]");
            if token.chars().any(char::is_whitespace) {
                let given = shortened(token);
                self.refuse(
                    &field,
                    format!("got {given:?}; allowed: one word without spaces, or none for the file's own"),
                );
            } else if let Err(problem) = printable(token, NAME_CHARACTERS) {
                self.refuse(&field, problem);
            }
        }
        tokens
    }

    pub(super) fn scheduler(&mut self, field: &str, given: Option<String>) -> String {
        let given = given.unwrap_or_default();
        if !given.is_empty() && !SCHEDULERS.contains(&given.as_str()) {
            let (given, allowed) = (shortened(&given), SCHEDULERS.join(", "));
            let problem = format!("got {given:?}; allowed: {allowed}, or none for the model's own");
            self.refuse(field, problem);
        }
        given
    }
}

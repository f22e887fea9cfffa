//! `[generate]`.

use super::{Reader, Section};
use crate::spec::GenerateDraft;

/// Its keys that no other section has.
pub(super) const KEYS: [&str; 11] = [
    "prompts",
    "negative_prompt",
    "embeddings",
    "count",
    "steps",
    "guidance_scale",
    "width",
    "height",
    "scheduler",
    "batch",
    "sheet",
];

impl Reader<'_> {
    pub(super) fn generate(&mut self, section: &mut Section<'_>) -> GenerateDraft {
        GenerateDraft {
            prompts: self.strings(section, "prompts"),
            negative_prompt: self.string(section, "negative_prompt"),
            embeddings: self.strings(section, "embeddings"),
            count: self.integer(section, "count"),
            steps: self.integer(section, "steps"),
            guidance_scale: self.number(section, "guidance_scale"),
            width: self.integer(section, "width"),
            height: self.integer(section, "height"),
            seed: self.integer(section, "seed"),
            scheduler: self.string(section, "scheduler"),
            batch: self.integer(section, "batch"),
            sheet: self.boolean(section, "sheet"),
            mixed_precision: self.string(section, "mixed_precision"),
        }
    }
}

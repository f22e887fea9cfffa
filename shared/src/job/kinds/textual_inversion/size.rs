//! Its lists without a fixed length: what can make a job too large.

use super::{FolderSpec, TextualInversionSpec};
use crate::job::text::text_bytes;

impl TextualInversionSpec {
    /// See [`crate::job::kinds::Work`].
    pub(in crate::job) fn lists(&self) -> Vec<(String, usize, &'static str)> {
        let train = &self.train.templates;
        // Concepts without prompts of their own have these, each.
        let shared =
            self.concepts.iter().filter(|concept| !train.is_empty() && concept.templates == *train).count();
        let each = if shared > 0 { ", as every concept without templates of its own has them" } else { "" };
        let mut all = vec![
            ("train.templates".to_owned(), text_bytes(train) * (1 + shared), each),
            ("data.folders".to_owned(), folder_bytes(&self.data.folders), ""),
        ];
        for (index, concept) in self.concepts.iter().enumerate() {
            if concept.templates != *train {
                all.push((format!("concepts[{index}].templates"), text_bytes(&concept.templates), ""));
            }
            all.push((format!("concepts[{index}].folders"), folder_bytes(&concept.folders), ""));
        }
        all
    }
}

fn folder_bytes(folders: &[FolderSpec]) -> usize {
    folders.iter().map(|folder| folder.images.len()).sum()
}

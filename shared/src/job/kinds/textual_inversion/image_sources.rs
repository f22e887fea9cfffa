//! Where all pictures of a job are, and how they are used.

use super::{ConceptSpec, TextualInversionSpec, concepts::field, folders::add_sources};
use crate::job::ImageUse;

impl TextualInversionSpec {
    /// Where all pictures of the job are, by the names of their fields.
    pub fn image_sources(&mut self) -> Vec<(String, &mut String)> {
        let Self { data, concepts, .. } = self;
        let mut all = Vec::new();
        // A job that only draws has none.
        if concepts.is_empty() && !data.is_unused() {
            add_sources(&mut all, |key| format!("data.{key}"), &mut data.images, &mut data.folders);
        }
        for (index, concept) in concepts.iter_mut().enumerate() {
            add_sources(&mut all, |key| field(index, key), &mut concept.images, &mut concept.folders);
        }
        all
    }

    /// How the pictures of each of [`TextualInversionSpec::image_sources`] are used, in the same order.
    pub fn image_uses(&self) -> Vec<ImageUse> {
        let uses = |concept: ConceptSpec| {
            let captions = concept.uses_captions();
            concept
                .folders()
                .into_iter()
                .map(move |(_, folder)| ImageUse { repeats: folder.repeats, captions })
        };
        self.concepts().into_iter().flat_map(uses).collect()
    }
}

//! Where pictures are: one folder, or several that count differently often.

use serde::{Deserialize, Serialize};

use super::{ConceptSpec, DataSpec, TextualInversionSpec, concepts};
use crate::{
    job::{ImageUse, reader::section},
    templates::use_captions,
};

/// One of several folders of pictures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderSpec {
    /// See [`DataSpec::images`].
    pub images: String,
    /// How often each of its pictures is shown while one of a folder with 1 is shown once. Default 1.
    pub repeats: u32,
}

section! {
    /// One of `data.folders`, unchecked; see [`FolderSpec`].
    FolderDraft {
        images: String as string,
        repeats: i64 as integer,
    }
}

impl ConceptSpec {
    /// Whether one of its prompts has the picture's caption in it.
    pub fn uses_captions(&self) -> bool {
        use_captions(&self.templates)
    }

    /// Where its pictures are: at least one folder, each with its key ("images" or "folders[0].images").
    pub fn folders(&self) -> Vec<(String, FolderSpec)> {
        if self.folders.is_empty() {
            return vec![("images".to_owned(), FolderSpec { images: self.images.clone(), repeats: 1 })];
        }
        let folders = self.folders.iter().cloned().enumerate();
        folders.map(|(index, folder)| (key(index), folder)).collect()
    }
}

impl TextualInversionSpec {
    /// Where all pictures of the job are, by the names of their fields.
    pub fn image_sources(&mut self) -> Vec<(String, &mut String)> {
        image_sources(&mut self.data, &mut self.concepts)
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

pub(super) fn image_sources<'a>(
    data: &'a mut DataSpec,
    concepts: &'a mut [ConceptSpec],
) -> Vec<(String, &'a mut String)> {
    let mut all = Vec::new();
    // A job that only draws has none.
    if concepts.is_empty() && !(data.images.is_empty() && data.folders.is_empty()) {
        let field = |key: &str| format!("data.{key}");
        add_sources(&mut all, field, &mut data.images, &mut data.folders);
    }
    for (index, concept) in concepts.iter_mut().enumerate() {
        let field = |key: &str| concepts::field(index, key);
        add_sources(&mut all, field, &mut concept.images, &mut concept.folders);
    }
    all
}

pub(super) fn add_sources<'a>(
    all: &mut Vec<(String, &'a mut String)>,
    field: impl Fn(&str) -> String,
    images: &'a mut String,
    folders: &'a mut [FolderSpec],
) {
    if folders.is_empty() {
        all.push((field("images"), images));
    }
    all.extend(
        folders.iter_mut().enumerate().map(|(index, folder)| (field(&key(index)), &mut folder.images)),
    );
}

fn key(index: usize) -> String {
    format!("folders[{index}].images")
}

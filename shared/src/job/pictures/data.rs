//! `[data]`: where pictures are. One folder, or several that count differently often.

use super::limits;
use crate::job::{ImageUse, section::section};

section! {
    /// What is learned from.
    #[derive(Default, Eq)]
    DataSpec from draft: DataDraft, data_keys {
        /// `artifact://sha256/HEX` of an image manifest (see [`crate::manifest`]), or a folder as every
        /// worker sees it. Empty where a kind has a list of what is learned, each with pictures of its own.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        images: String = string.images(draft.folders.is_some()),
        /// Several such folders instead, whose pictures count differently often.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        folders: Vec<FolderSpec> = tables<FolderDraft>.folders(),
    }
}

section! {
    /// One of several folders of pictures.
    #[derive(Eq)]
    FolderSpec from draft: FolderDraft, folder_keys {
        /// See [`DataSpec::images`].
        images: String = string.images(false),
        /// How often each of its pictures is shown while one of a folder with 1 is shown once. Default 1.
        repeats: u32 = integer.count(1, 1..=limits::FOLDER_REPEATS),
    }
}

impl DataSpec {
    /// Whether the pictures are those of a list of what is learned.
    pub(in crate::job) fn is_unused(&self) -> bool {
        self.images.is_empty() && self.folders.is_empty()
    }

    /// Where the pictures are: at least one folder, each with its key ("images" or "folders[0].images").
    pub fn folders(&self) -> Vec<(String, FolderSpec)> {
        if self.folders.is_empty() {
            return vec![("images".to_owned(), FolderSpec { images: self.images.clone(), repeats: 1 })];
        }
        let folders = self.folders.iter().cloned().enumerate();
        folders.map(|(index, folder)| (key(index), folder)).collect()
    }

    /// Where the pictures are, by the names of their fields.
    pub(in crate::job) fn sources(&mut self) -> Vec<(String, &mut String)> {
        let mut all = Vec::new();
        add_sources(&mut all, |key| format!("data.{key}"), &mut self.images, &mut self.folders);
        all
    }

    /// How the pictures of each of [`DataSpec::sources`] are used, in the same order.
    pub(in crate::job) fn uses(&self, captions: bool) -> Vec<ImageUse> {
        self.folders()
            .into_iter()
            .map(|(_, FolderSpec { repeats, .. })| ImageUse { repeats, captions })
            .collect()
    }
}

/// Adds where the pictures are: in one folder, or in those of the list.
pub(in crate::job) fn add_sources<'a>(
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

/// The key of a listed folder's pictures.
fn key(index: usize) -> String {
    format!("folders[{index}].images")
}

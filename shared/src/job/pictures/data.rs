//! `[data]`: where pictures are. One folder, several that count differently often, or a source that every worker reads itself.

use super::limits;
use crate::job::{ImageUse, ModelLocation, check::Check, section::section};

section! {
    /// What is learned from.
    #[derive(Default, Eq)]
    DataSpec from draft: DataDraft, data_keys {
        /// `artifact://sha256/HEX` of an image manifest (see [`crate::manifest`]), or a folder as every
        /// worker sees it. Empty where a kind has a list of what is learned, each with pictures of its own.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        images: String = string.images(instead_of_images(draft.folders.is_some(), draft.source.as_deref())),
        /// Several such folders instead, whose pictures count differently often.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        folders: Vec<FolderSpec> = tables<FolderDraft>.folders(),
        /// Instead of both: a folder as every worker sees it, `s3://BUCKET/PREFIX` or `hf://datasets/ORG/NAME[@REVISION]`, with
        /// pictures and captions, tar shards or .parquet files in it. It is read where it is, and never uploaded.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        source: String = string.source(!folders.is_empty()),
        /// The column of the captions in a folder's metadata file. Empty: "text".
        #[serde(default, skip_serializing_if = "String::is_empty")]
        caption_column: String = string.line(limits::CAPTION_COLUMN_CHARACTERS),
    }
}

section! {
    /// One of several folders of pictures.
    #[derive(Eq)]
    FolderSpec from draft: FolderDraft, folder_keys {
        /// See [`DataSpec::images`].
        images: String = string.images(None),
        /// How often each of its pictures is shown while one of a folder with 1 is shown once. Default 1.
        repeats: u32 = integer.count(1, 1..=limits::FOLDER_REPEATS),
        /// See [`DataSpec::caption_column`]. Empty: the one that stands beside the folders.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        caption_column: String = string.line(limits::CAPTION_COLUMN_CHARACTERS),
    }
}

impl DataSpec {
    /// Whether the pictures are those of a list of what is learned.
    pub(in crate::job) fn is_unused(&self) -> bool {
        self.images.is_empty()
            && self.folders.is_empty()
            && self.source.is_empty()
            && self.caption_column.is_empty()
    }

    /// Where the pictures are: folders, each with its key ("images" or "folders[0].images"); none where they have a source.
    pub fn folders(&self) -> Vec<(String, FolderSpec)> {
        let caption_column = self.caption_column.clone();
        if !self.source.is_empty() {
            return Vec::new();
        }
        if self.folders.is_empty() {
            let images = self.images.clone();
            return vec![("images".to_owned(), FolderSpec { images, repeats: 1, caption_column })];
        }
        let folders = self.folders.iter().cloned().enumerate();
        let with_column = |(index, mut folder): (usize, FolderSpec)| {
            if folder.caption_column.is_empty() {
                folder.caption_column.clone_from(&caption_column);
            }
            (key(index), folder)
        };
        folders.map(with_column).collect()
    }

    /// Where ranks read or fetch the pictures themselves; none where they have folders.
    pub fn source_location(&self) -> Option<ModelLocation> {
        (!self.source.is_empty()).then(|| ModelLocation::parse_pictures(&self.source).ok()).flatten()
    }

    /// What is checked of it and `[train]` together. `counts`: the steps follow from the number of pictures.
    pub(in crate::job) fn check(&self, check: &mut Check, counts: bool) {
        if counts && !self.source.is_empty() {
            let problem = "missing; give the number of steps: nobody counts the pictures of data.source before the job begins";
            check.refuse("train.max_train_steps", problem);
        }
    }

    /// Where the pictures are, a source too, by the names of their fields.
    pub(in crate::job) fn all_places(&mut self) -> Vec<(String, &mut String)> {
        if self.source.is_empty() {
            self.sources()
        } else {
            vec![("data.source".to_owned(), &mut self.source)]
        }
    }

    /// Where folders of pictures are, by the names of their fields.
    pub(in crate::job) fn sources(&mut self) -> Vec<(String, &mut String)> {
        let mut all = Vec::new();
        if !self.source.is_empty() {
            return all;
        }
        add_sources(&mut all, |key| format!("data.{key}"), &mut self.images, &mut self.folders);
        all
    }

    /// How the pictures of each of [`DataSpec::sources`] are used, in the same order.
    pub(in crate::job) fn uses(&self, captions: bool) -> Vec<ImageUse> {
        self.folders().into_iter().map(|(_, folder)| folder.used(captions)).collect()
    }
}

impl FolderSpec {
    /// How its pictures are used. `captions`: whether these stand in prompts.
    pub(in crate::job) fn used(self, captions: bool) -> ImageUse {
        ImageUse { repeats: self.repeats, captions: captions.then_some(self.caption_column) }
    }
}

/// The key that is given instead of "images".
pub(in crate::job) fn instead_of_images(folders: bool, source: Option<&str>) -> Option<&'static str> {
    match (folders, source.unwrap_or_default()) {
        (true, _) => Some("folders"),
        (false, "") => None,
        (false, _) => Some("source"),
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

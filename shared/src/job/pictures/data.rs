//! `[data]`: where pictures are. One folder, several that count differently often, or a source that every worker reads itself.

use super::limits;
use crate::job::{ImageUse, ModelLocation, check::Check, section::section, text::shortened};

/// The field of the folder of masks.
pub const MASKS: &str = "data.masks";
/// The field of the folder of the class.
pub const CLASS_IMAGES: &str = "data.class_images";

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
        /// A folder of masks, one for each picture and called like it but for the end of its name: what is white there counts in
        /// the loss, and what is black does not. Default none: all of a picture counts alike.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        masks: String = string.folder_if_given(),
        /// Instead: a picture's own transparency is its mask; one without any counts whole. Default false, which is not sent:
        /// workers of earlier releases know jobs without it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        alpha_mask: Option<bool> = boolean.flag_if_set(),
    }
}

section! {
    /// What of `[data]` says what pictures show, and what the class of it looks like. Of jobs that train parts of the network
    /// that predicts the noise.
    #[derive(Default, Eq)]
    PromptSpec from draft: PromptDraft, prompt_keys {
        /// What all pictures show, as in dreambooth; empty: each has a caption of its own. Default empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        instance_prompt: String = string.line(limits::TEMPLATE_CHARACTERS),
        /// A folder of pictures of other things of the same class, which the model is to go on drawing as it does. `ringtune run`
        /// and `ringtune submit` have those drawn that it lacks, and keep them there. Default none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        class_images: String = string.folder_if_given(),
        /// What these show. Default empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        class_prompt: String = string.line(limits::TEMPLATE_CHARACTERS),
        /// Instead of pictures: so many samples of normal noise, each with a prompt of random tokens, drawn by `train.seed`; to
        /// measure with. Default none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        synthetic_samples: Option<u64> = integer.count_if_given(1..=limits::SYNTHETIC_SAMPLES),
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
    /// Whether the pictures are others: those of a list of what is learned, or synthetic ones.
    pub(in crate::job) fn is_unused(&self) -> bool {
        self.images.is_empty()
            && self.folders.is_empty()
            && self.source.is_empty()
            && self.caption_column.is_empty()
            && self.masks.is_empty()
            && self.alpha_mask.is_none()
    }

    /// Where the pictures are: folders, each with its key ("images" or "folders[0].images"); none where they have a source.
    pub fn folders(&self) -> Vec<(String, FolderSpec)> {
        let caption_column = self.caption_column.clone();
        if !self.source.is_empty() || self.is_unused() {
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
        if !self.masks.is_empty() && self.alpha_mask.is_some() {
            check.refuse("data.alpha_mask", "got true beside data.masks; give one of the two");
        }
        if !self.masks.is_empty() && !self.source.is_empty() {
            let given = shortened(&self.masks);
            let problem = format!(
                "got {given:?} beside data.source; masks are for data.images and data.folders, or data.alpha_mask"
            );
            check.refuse(MASKS, problem);
        }
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
        if !self.source.is_empty() || self.is_unused() {
            return all;
        }
        add_sources(&mut all, |key| format!("data.{key}"), &mut self.images, &mut self.folders);
        add_folder(&mut all, MASKS, &mut self.masks);
        all
    }

    /// How the pictures of each of [`DataSpec::sources`] are used, in the same order.
    pub(in crate::job) fn uses(&self, captions: bool) -> Vec<ImageUse> {
        let pictures = self.folders().into_iter().map(|(_, folder)| folder.used(captions));
        pictures.chain(self.masks_used()).collect()
    }

    /// How the masks are used, where there are some in a folder.
    pub(in crate::job) fn masks_used(&self) -> Option<ImageUse> {
        let has_some = !self.masks.is_empty() && self.source.is_empty();
        has_some.then_some(ImageUse { repeats: 0, captions: None, drawn: None })
    }
}

impl PromptSpec {
    /// The folder of the class, by its field's name, where there is one.
    pub(in crate::job) fn class_source(&mut self) -> Option<(String, &mut String)> {
        let mut all = Vec::new();
        add_folder(&mut all, CLASS_IMAGES, &mut self.class_images);
        all.pop()
    }

    /// How its pictures are used, of which there have to be `wanted`.
    pub(in crate::job) fn class_used(&self, wanted: u32) -> Option<ImageUse> {
        (!self.class_images.is_empty()).then_some(ImageUse {
            repeats: 0,
            captions: None,
            drawn: Some(wanted),
        })
    }
}

impl FolderSpec {
    /// How its pictures are used. `captions`: whether these stand in prompts.
    pub(in crate::job) fn used(self, captions: bool) -> ImageUse {
        ImageUse { repeats: self.repeats, captions: captions.then_some(self.caption_column), drawn: None }
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

/// Adds a folder that may be given.
fn add_folder<'a>(all: &mut Vec<(String, &'a mut String)>, field: &str, place: &'a mut String) {
    if !place.is_empty() {
        all.push((field.to_owned(), place));
    }
}

/// The key of a listed folder's pictures.
fn key(index: usize) -> String {
    format!("folders[{index}].images")
}

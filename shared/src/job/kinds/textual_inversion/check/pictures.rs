//! The checks of folders, of templates and of what they make of captions.

use super::{
    super::{ConceptSpec, DataSpec, FolderDraft, FolderSpec, TextualInversionSpec, TrainSpec},
    Check, limits, printable, shortened,
};
use crate::templates::Template;

/// Where pictures are, unchecked.
pub(super) struct Places {
    pub(super) images: Option<String>,
    pub(super) folders: Option<Vec<FolderDraft>>,
}

impl Check {
    /// One folder or several. `section`: "data" or "concepts[0]".
    pub(super) fn places(&mut self, section: &str, places: Places) -> DataSpec {
        let (images, folders) = (format!("{section}.images"), format!("{section}.folders"));
        let Some(drafts) = places.folders else {
            return DataSpec { images: self.images(&images, places.images), folders: Vec::new() };
        };
        if let Some(given) = places.images.filter(|given| !given.is_empty()) {
            let problem = format!("got {:?} beside {folders}; give one of the two", shortened(&given));
            self.refuse(&images, problem);
        }
        if drafts.is_empty() || drafts.len() > limits::FOLDERS {
            self.refuse(&folders, format!("got {} folders; allowed: 1 to {}", drafts.len(), limits::FOLDERS));
        }
        let folder = |(index, draft): (usize, FolderDraft)| FolderSpec {
            images: self.images(&format!("{folders}[{index}].images"), draft.images),
            repeats: self.count(
                &format!("{folders}[{index}].repeats"),
                draft.repeats,
                1,
                1..=limits::FOLDER_REPEATS,
            ),
        };
        let folders = drafts.into_iter().take(limits::FOLDERS).enumerate().map(folder).collect();
        DataSpec { images: String::new(), folders }
    }

    pub(super) fn templates(&mut self, field: &str, given: Option<Vec<String>>) -> Vec<String> {
        let templates = given.unwrap_or_default();
        if templates.len() > limits::TEMPLATES {
            self.refuse(field, format!("got {}; allowed: at most {}", templates.len(), limits::TEMPLATES));
        }
        for (index, template) in templates.iter().enumerate().take(limits::TEMPLATES) {
            let field = format!("{field}[{index}]");
            if let Err(problem) = printable(template, limits::TEMPLATE_CHARACTERS) {
                self.refuse(&field, problem);
            } else if let Err(allowed) = Template::parse(template) {
                self.refuse(&field, format!("got {template:?}; allowed: {allowed}"));
            }
        }
        templates
    }

    /// A side of a picture, in pixels.
    pub(super) fn side(&mut self, field: &str, given: Option<i64>, default: u32) -> u32 {
        self.count(field, given, default, 1..=limits::RESOLUTION)
    }

    /// There must be a bucket. The rules are kohya's.
    pub(super) fn buckets(&mut self, train: &TrainSpec) {
        if !train.enable_bucket {
            return;
        }
        let TrainSpec { resolution, min_bucket_reso, max_bucket_reso, bucket_reso_steps, .. } = *train;
        let allowed = format!("train.resolution, which is {resolution}");
        if !train.bucket_no_upscale && min_bucket_reso > resolution {
            self.refuse(
                "train.min_bucket_reso",
                format!("got {min_bucket_reso}; allowed: at most {allowed}"),
            );
        }
        if !train.bucket_no_upscale && max_bucket_reso < resolution {
            self.refuse(
                "train.max_bucket_reso",
                format!("got {max_bucket_reso}; allowed: at least {allowed}"),
            );
        }
        if bucket_reso_steps > resolution {
            self.refuse(
                "train.bucket_reso_steps",
                format!("got {bucket_reso_steps}; allowed: at most {allowed}"),
            );
        }
        if train.center_crop {
            let problem = "makes squares, and enable_bucket keeps aspect ratios; give one of the two";
            self.refuse("train.center_crop", problem);
        }
    }

    /// Options about captions need captions; a caption that is left empty must leave the token where it is.
    pub(super) fn caption_options(&mut self, work: &TextualInversionSpec) {
        let concepts = work.concepts();
        let train = &work.train;
        let options = [
            ("train.caption_dropout", train.caption_dropout > 0.0),
            ("train.shuffle_tags", train.shuffle_tags),
            ("train.keep_tags", train.keep_tags > 0),
        ];
        if !concepts.iter().any(ConceptSpec::uses_captions) {
            for (field, _) in options.into_iter().filter(|(_, is_set)| *is_set) {
                self.refuse(
                    field,
                    "is about captions, and no template has [caption]; give one in train.templates",
                );
            }
        }
        let nameless = |template: &String| Template::parse(template).is_ok_and(|read| !read.has_name());
        let without_name = concepts.iter().flat_map(|concept| &concept.templates).find(|text| nameless(text));
        if let Some(template) = without_name.filter(|_| train.caption_dropout > 0.0) {
            let problem = format!(
                "leaves the caption of the template {template:?} empty, and with it the token; put [name] into it"
            );
            self.refuse("train.caption_dropout", problem);
        }
    }
}

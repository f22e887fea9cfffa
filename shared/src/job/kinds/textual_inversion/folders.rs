//! Where pictures are: one folder, or several that count differently often.

use serde::{Deserialize, Serialize};

use crate::job::reader::section;

/// One of several folders of pictures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderSpec {
    /// See [`super::DataSpec::images`].
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

/// Adds where the pictures are: in one folder, or in those of the list.
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

/// The key of a listed folder's pictures.
pub(super) fn key(index: usize) -> String {
    format!("folders[{index}].images")
}

//! Locations of the files that a job draws with: embeddings and LoRAs.

use crate::{
    files::check_file_name,
    ids::{CONTENT_URI_PREFIX, ContentHash},
};

/// Between the address of an uploaded embedding and its file's name, as in a URI's fragment.
const NAME_MARK: char = '#';

/// A file's location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilePlace {
    /// A file that every worker sees.
    File(String),
    /// At the coordinator.
    Uploaded {
        /// Of its content.
        hash: ContentHash,
        /// The file's name, which can be an embedding's token.
        name: String,
    },
}

/// What a file adds to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Teaches {
    /// Words: an embedding.
    Words,
    /// What stands beside layers: a LoRA.
    Layers,
}

/// A file that a job names.
#[derive(Debug, PartialEq, Eq)]
pub struct JobFile<'a> {
    /// The job's field that names it; of a list of embeddings, that list.
    pub field: String,
    /// As [`FilePlace`] reads it; may be empty.
    pub place: &'a mut String,
    /// What it adds.
    pub teaches: Teaches,
    /// All ranks start from it: it has to be a content.
    pub is_start: bool,
}

impl FilePlace {
    /// Reads an entry of `generate.embeddings`, or the file of a LoRA.
    ///
    /// # Errors
    /// What is wrong with an address.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.starts_with(CONTENT_URI_PREFIX) {
            return Ok(Self::File(text.to_owned()));
        }
        let (uri, name) = text.split_once(NAME_MARK).unwrap_or((text, "embedding.safetensors"));
        let hash = ContentHash::from_uri(uri).map_err(|error| error.to_string())?;
        check_file_name(name).map_err(|error| error.to_string())?;
        Ok(Self::Uploaded { hash, name: name.to_owned() })
    }

    /// The entry of an uploaded file.
    pub fn uploaded(uri: &str, name: &str) -> String {
        format!("{uri}{NAME_MARK}{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uploaded_file_keeps_its_name_and_no_folder() {
        let uri = format!("{CONTENT_URI_PREFIX}{}", "ab".repeat(32));
        let FilePlace::Uploaded { hash, name } =
            FilePlace::parse(&FilePlace::uploaded(&uri, "my cat.safetensors")).unwrap()
        else {
            panic!("uploaded")
        };
        assert_eq!((hash.uri(), name.as_str()), (uri.clone(), "my cat.safetensors"));
        assert!(FilePlace::parse(&format!("{uri}#../cat")).is_err());
        assert_eq!(FilePlace::parse("/e/a#b").unwrap(), FilePlace::File("/e/a#b".to_owned()));
    }
}

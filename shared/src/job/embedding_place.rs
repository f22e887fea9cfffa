//! Locations of a job's embeddings.

use crate::{
    files::check_file_name,
    ids::{CONTENT_URI_PREFIX, ContentHash},
};

/// Between the address of an uploaded embedding and its file's name, as in a URI's fragment.
const NAME_MARK: char = '#';

/// An embedding's location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EmbeddingPlace {
    /// A file that every worker sees.
    File(String),
    /// At the coordinator.
    Uploaded {
        /// Of its content.
        hash: ContentHash,
        /// The file's name, which can be its token's.
        name: String,
    },
}

impl EmbeddingPlace {
    /// Reads an entry of `generate.embeddings`.
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
    fn an_uploaded_embedding_keeps_its_name_and_no_folder() {
        let uri = format!("{CONTENT_URI_PREFIX}{}", "ab".repeat(32));
        let EmbeddingPlace::Uploaded { hash, name } =
            EmbeddingPlace::parse(&EmbeddingPlace::uploaded(&uri, "my cat.safetensors")).unwrap()
        else {
            panic!("uploaded")
        };
        assert_eq!((hash.uri(), name.as_str()), (uri.clone(), "my cat.safetensors"));
        assert!(EmbeddingPlace::parse(&format!("{uri}#../cat")).is_err());
        assert_eq!(EmbeddingPlace::parse("/e/a#b").unwrap(), EmbeddingPlace::File("/e/a#b".to_owned()));
    }
}

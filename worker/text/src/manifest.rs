//! `meta.json`: what the files beside it are.

use std::{fs::File, io::Read, path::Path};

use ringtune_shared::ids::ContentHash;
use serde::{Deserialize, Serialize};

use crate::Error;

/// The file of training tokens.
pub const TRAIN_FILE: &str = "train.bin";
/// The file of validation tokens.
pub const VAL_FILE: &str = "val.bin";
/// The file that says what they are; it is written last.
pub const MANIFEST_FILE: &str = "meta.json";
/// The largest manifest that is read.
const LARGEST: u64 = 1 << 20;
/// Type of the tokens: 16 bits each, little-endian.
pub const TOKEN_TYPE: &str = "uint16";

/// Manifest of two files of tokens. It depends on the documents and the options alone: no time, path or host is in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Of Ringtune.
    pub ringtune_version: String,
    /// [`TOKEN_TYPE`].
    pub token_type: String,
    /// Of both files: all ids are below.
    pub vocabulary_size: u32,
    /// The token after each document.
    pub end_of_text_id: u16,
    /// Of the tokenizer's files.
    pub tokenizer_sha256: ContentHash,
    /// Seed of the order.
    pub seed: u64,
    /// The share of the documents that is for validation.
    pub val_fraction: f64,
    /// Documents that could not be read and were left out.
    pub skipped_documents: u64,
    /// `train.bin`.
    pub train: FileFacts,
    /// `val.bin`.
    pub val: FileFacts,
}

/// Facts of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// In it.
    pub documents: u64,
    /// In it, those that end documents included.
    pub tokens: u64,
    /// Of its bytes.
    pub sha256: ContentHash,
}

impl Manifest {
    /// Its file's content.
    ///
    /// # Errors
    /// None of what is in it can fail to be written.
    pub fn to_json(&self) -> Result<String, Error> {
        let text = serde_json::to_string_pretty(self).map_err(|error| Error::Internal(error.to_string()))?;
        Ok(text + "\n")
    }

    /// Reads a folder's `meta.json`. Blocks.
    ///
    /// # Errors
    /// It is missing, broken, or of files that are written otherwise.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(MANIFEST_FILE);
        let file = File::open(&path).map_err(Error::io("read", &path))?;
        Self::of_file(file, &path)
    }

    /// Reads an open `meta.json`; `path`: what it is called. Blocks.
    ///
    /// # Errors
    /// As [`Manifest::read`].
    pub fn of_file(file: File, path: &Path) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        let read = file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
        if read as u64 > LARGEST {
            return Err(Error::unusable(path, format!("has more than {LARGEST} bytes, the most allowed")));
        }
        let read: Self = serde_json::from_slice(&bytes)
            .map_err(|error| Error::unusable(path, format!("is no manifest of prepare-text: {error}")))?;
        if read.token_type != TOKEN_TYPE {
            let problem = format!("token_type is {:?}; allowed: {TOKEN_TYPE:?}", read.token_type);
            return Err(Error::unusable(path, problem));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let facts = FileFacts { documents: 2, tokens: 9, sha256: ContentHash::of(b"x") };
        Manifest {
            ringtune_version: "0.3.0".to_owned(),
            token_type: TOKEN_TYPE.to_owned(),
            vocabulary_size: 50_257,
            end_of_text_id: 50_256,
            tokenizer_sha256: ContentHash::of(b"t"),
            seed: u64::MAX,
            val_fraction: 0.0005,
            skipped_documents: 0,
            train: facts.clone(),
            val: facts,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(MANIFEST_FILE);
        std::fs::write(&file, manifest().to_json().unwrap()).unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), manifest());
        let other = manifest().to_json().unwrap().replace("uint16", "uint32");
        std::fs::write(&file, other).unwrap();
        assert!(Manifest::read(folder.path()).unwrap_err().to_string().contains("token_type"));
        std::fs::write(&file, "{}").unwrap();
        assert!(Manifest::read(folder.path()).unwrap_err().to_string().contains("meta.json"));
    }
}

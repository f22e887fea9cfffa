//! `learned_embeds.safetensors`.

use std::path::Path;

use serde_json::{Value, json};

use super::{Error, TensorFile, canonical_json};

/// The file of a finished job.
pub const FILE_NAME: &str = "learned_embeds.safetensors";

/// The file of a job that has taken `step` steps.
pub fn file_name_at(step: u64) -> String {
    format!("learned_embeds-steps-{step}.safetensors")
}

/// Where an embedding comes from: all that decides its bits, and nothing else (no time, no job id, no ring size), so
/// that equal runs write equal files.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingFacts {
    /// Hash of the checkpoint's weights.
    pub model_hash: String,
    /// Hash of the images' manifest.
    pub data_hash: String,
    /// The job spec.
    pub job: Value,
    /// What the ranks computed on.
    pub numerics_class: String,
    /// Ringtune's version.
    pub version: String,
}

impl EmbeddingFacts {
    /// As the metadata entry `ringtune` has it: JSON with sorted keys.
    pub fn to_json(&self) -> String {
        canonical_json(&json!({
            "data_hash": self.data_hash,
            "job": self.job,
            "model_hash": self.model_hash,
            "numerics_class": self.numerics_class,
            "version": self.version,
        }))
    }
}

/// Writes the learned rows, [num_vectors, width] flat in fp32, under the placeholder token as the only key, so that
/// diffusers' `load_textual_inversion` loads them (several vectors as `token`, `token_1`, …).
///
/// # Errors
/// The rows do not divide into `num_vectors`, or the file cannot be written.
pub fn write(
    file: &Path,
    placeholder_token: &str,
    num_vectors: usize,
    rows: &[f32],
    facts: &EmbeddingFacts,
) -> Result<(), Error> {
    let width = rows.len() / num_vectors.max(1);
    TensorFile::new()
        .with_f32(placeholder_token, &[num_vectors, width], rows)?
        .with_metadata("format", "pt")
        .with_metadata("ringtune", facts.to_json())
        .write(file)
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    fn facts() -> EmbeddingFacts {
        EmbeddingFacts {
            model_hash: "m".to_string(),
            data_hash: "d".to_string(),
            job: json!({"train": {"seed": 7, "learning_rate": 0.002}, "kind": "textual_inversion"}),
            numerics_class: "c".to_string(),
            version: "0.1.0".to_string(),
        }
    }

    #[test]
    fn one_key_and_two_metadata_entries() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE_NAME);
        write(&file, "<a>", 2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &facts()).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.names(), ["<a>"]);
        assert_eq!(read.tensor("<a>").unwrap().shape(), [2, 3]);
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().as_ref().unwrap();
        assert_eq!(metadata["format"], "pt");
        assert_eq!(
            metadata["ringtune"],
            r#"{"data_hash":"d","job":{"kind":"textual_inversion","train":{"learning_rate":0.002,"seed":7}},"model_hash":"m","numerics_class":"c","version":"0.1.0"}"#
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn rows_that_do_not_divide_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = write(&folder.path().join("x"), "<a>", 2, &[0.0; 5], &facts());
        assert!(matches!(refused, Err(Error::Shape { .. })));
        assert_eq!(file_name_at(250), "learned_embeds-steps-250.safetensors");
    }
}

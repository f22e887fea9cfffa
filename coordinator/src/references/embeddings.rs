//! The embeddings that a job draws with or starts from, checked before the job is made.

use ringtune_proto::convert::FieldError;
use ringtune_shared::embedding::{LARGEST_FILE, LearnedEmbedding};
use ringtune_shared::ids::ContentHash;
use ringtune_shared::job::{EmbeddingPlace, JobSpec};

use super::{References, Ties, read_whole};

impl References {
    /// Checks that the uploaded embeddings of a job are here and can be read, and that what its concepts start from is
    /// uploaded and fits them. They count as used from now on: the sweep leaves them for another day.
    pub(crate) async fn check_embeddings(&self, ties: &mut Ties, spec: &JobSpec) -> Result<(), FieldError> {
        let refuse = |field: &str, problem: String| FieldError::new(format!("spec.{field}"), problem);
        // 1. A job may also draw with files that its workers have.
        for (index, entry) in spec.drawn_embeddings().iter().enumerate() {
            let refuse = |problem: String| refuse(&format!("generate.embeddings[{index}]"), problem);
            if let EmbeddingPlace::Uploaded { hash, .. } = EmbeddingPlace::parse(entry).map_err(refuse)? {
                self.use_embedding(ties, hash).await.map_err(refuse)?;
            }
        }
        // 2. All ranks start from the same rows: those of a content.
        let mut spec = spec.clone();
        for embedding in spec.initializer_embeddings() {
            if embedding.place.is_empty() {
                continue;
            }
            let refuse = |problem: String| refuse(&embedding.field, problem);
            let hash = ContentHash::from_uri(embedding.place).map_err(|error| {
                refuse(format!("{error} (`ringtune run` and `submit` upload a file that the job names)"))
            })?;
            let learned = self.use_embedding(ties, hash).await.map_err(refuse)?;
            embedding.check(&learned).map_err(|problem| refuse(format!("{}: {problem}", hash.uri())))?;
        }
        Ok(())
    }

    /// What an uploaded file teaches.
    async fn use_embedding(&self, ties: &mut Ties, hash: ContentHash) -> Result<LearnedEmbedding, String> {
        ties.claims.push(self.claims.share(vec![hash]).await);
        let contents = self.contents.clone();
        let read = move || {
            let bytes = read_whole(&contents, hash, LARGEST_FILE)?;
            let learned =
                LearnedEmbedding::from_bytes(&bytes).map_err(|error| format!("{}: {error}", hash.uri()))?;
            contents.touch(&hash).map_err(|error| error.to_string())?;
            Ok((learned, bytes.len() as u64))
        };
        let (learned, size) = self.checked(read).await?;
        ties.named.push((hash, size));
        Ok(learned)
    }
}

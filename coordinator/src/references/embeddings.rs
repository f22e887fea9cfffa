//! The embeddings and LoRAs that a job draws with or starts from, checked before the job is made.

use ringtune_proto::convert::FieldError;
use ringtune_shared::embedding::{LARGEST_FILE, LearnedEmbedding};
use ringtune_shared::ids::{CONTENT_URI_PREFIX, ContentHash};
use ringtune_shared::job::{FilePlace, JobFile, JobSpec, Teaches};
use ringtune_shared::lora::{LARGEST_OF_A_JOB, LoraFile};

use super::{References, Ties, read_whole};

impl References {
    /// Checks that the uploaded embeddings and LoRAs of a job are here and can be read, and that what its concepts start from is
    /// uploaded and fits them. They count as used from now on: the sweep leaves them for another day.
    pub(crate) async fn check_embeddings(&self, ties: &mut Ties, spec: &JobSpec) -> Result<(), FieldError> {
        let refuse = |field: &str, problem: String| FieldError::new(format!("spec.{field}"), problem);
        // 1. A job may also draw with files that its workers have.
        let mut spec = spec.clone();
        for (index, JobFile { field, place, teaches, is_start }) in spec.files().into_iter().enumerate() {
            // Embeddings come first, and share a field.
            let field = if teaches == Teaches::Words { format!("{field}[{index}]") } else { field };
            let refuse = |problem: String| refuse(&field, problem);
            if is_start && !place.is_empty() && !place.starts_with(CONTENT_URI_PREFIX) {
                let problem =
                    "got a file's path (`ringtune run` and `submit` upload a file that the job names)";
                return Err(refuse(problem.to_owned()));
            }
            let FilePlace::Uploaded { hash, .. } = FilePlace::parse(place).map_err(refuse)? else { continue };
            match teaches {
                Teaches::Words => drop(self.use_embedding(ties, hash).await.map_err(refuse)?),
                Teaches::Layers => self.use_lora(ties, hash).await.map_err(refuse)?,
            }
        }
        // 2. All ranks start from the same rows: those of a content.
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

    /// What an uploaded embedding teaches.
    async fn use_embedding(&self, ties: &mut Ties, hash: ContentHash) -> Result<LearnedEmbedding, String> {
        let read = |bytes: &[u8]| LearnedEmbedding::from_bytes(bytes).map_err(|error| error.to_string());
        self.use_file(ties, hash, LARGEST_FILE, read).await
    }

    /// Checks an uploaded LoRA.
    async fn use_lora(&self, ties: &mut Ties, hash: ContentHash) -> Result<(), String> {
        let read = |bytes: &[u8]| LoraFile::check(bytes).map_err(|error| error.to_string());
        self.use_file(ties, hash, LARGEST_OF_A_JOB, read).await
    }

    /// Reads an uploaded file, which counts as used from now on.
    async fn use_file<T: Send + 'static>(
        &self,
        ties: &mut Ties,
        hash: ContentHash,
        largest: u64,
        read: impl FnOnce(&[u8]) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        ties.claims.push(self.claims.share(vec![hash]).await);
        let contents = self.contents.clone();
        let read = move || {
            let bytes = read_whole(&contents, hash, largest)?;
            let read = read(&bytes).map_err(|problem| format!("{}: {problem}", hash.uri()))?;
            contents.touch(&hash).map_err(|error| error.to_string())?;
            Ok((read, bytes.len() as u64))
        };
        let (read, size) = self.checked(read).await?;
        ties.named.push((hash, size));
        Ok(read)
    }
}

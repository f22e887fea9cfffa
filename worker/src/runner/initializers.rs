//! The learned embeddings that concepts start from, instead of words.

use std::path::PathBuf;

use ringtune_shared::{
    embedding::{self, LARGEST_FILE, LearnedEmbedding},
    job::{EmbeddingPlace, JobSpec},
};

use super::{Context, RankError, images::one_file};

/// An embedding, and the job's field that names it.
#[derive(Debug)]
pub(super) struct Initializer {
    field: String,
    learned: LearnedEmbedding,
}

impl Initializer {
    /// [num_vectors, width] flat.
    ///
    /// # Errors
    /// It was learned for a text encoder of another width.
    pub(super) fn rows(self, width: usize) -> Result<Vec<f32>, RankError> {
        match self.learned.check_width(width) {
            Ok(()) => Ok(self.learned.rows),
            Err(error) => Err(RankError::Initializer { field: self.field, problem: error.to_string() }),
        }
    }
}

/// Fetches what each concept starts from; none: it starts from words. Reads files only in a rehearsal: a coordinator
/// takes no job whose embeddings are not uploaded.
///
/// # Errors
/// It cannot be fetched, is no embedding, or has another number of rows than the concept.
pub(super) async fn fetch(spec: &JobSpec, context: &Context) -> Result<Vec<Option<Initializer>>, RankError> {
    let mut spec = spec.clone();
    let mut all = Vec::new();
    for wanted in spec.initializer_embeddings() {
        if wanted.place.is_empty() {
            all.push(None);
            continue;
        }
        let refused = |problem: String| RankError::Initializer { field: wanted.field.clone(), problem };
        let bytes = match EmbeddingPlace::parse(wanted.place).map_err(refused)? {
            EmbeddingPlace::Uploaded { hash, .. } => {
                one_file(hash, LARGEST_FILE, &context.artifacts, &context.cache).await?
            }
            EmbeddingPlace::File(path) => {
                let file = PathBuf::from(&path);
                let read = tokio::task::spawn_blocking(move || embedding::read_file(&file)).await?;
                read.map_err(|error| refused(format!("{path}: {error}")))?
            }
        };
        let read = tokio::task::spawn_blocking(move || LearnedEmbedding::from_bytes(&bytes)).await?;
        let learned = read.map_err(|error| refused(error.to_string()))?;
        wanted.check(&learned).map_err(refused)?;
        all.push(Some(Initializer { field: wanted.field, learned }));
    }
    Ok(all)
}

//! The learned embeddings that concepts start from, instead of words.

use ringtune_shared::{
    embedding::{LARGEST_FILE, LearnedEmbedding},
    job::JobSpec,
};

use crate::{
    fault::Refusal,
    inputs::file_bytes,
    rank::{Context, Error},
};

/// An embedding, and the job's field that names it.
#[derive(Debug)]
pub(in crate::kinds) struct Initializer {
    field: String,
    learned: LearnedEmbedding,
}

impl Initializer {
    /// [num_vectors, width] flat.
    ///
    /// # Errors
    /// It was learned for a text encoder of another width.
    pub(super) fn rows(self, width: usize) -> Result<Vec<f32>, Error> {
        match self.learned.check_width(width) {
            Ok(()) => Ok(self.learned.rows),
            Err(error) => Err(Refusal { field: self.field, problem: error.to_string() }.into()),
        }
    }
}

/// Fetches what each concept starts from; none: it starts from words.
///
/// # Errors
/// It cannot be fetched, is no embedding, or has another number of rows than the concept.
pub(in crate::kinds) async fn fetch_initializers(
    spec: &JobSpec,
    context: &Context,
) -> Result<Vec<Option<Initializer>>, Error> {
    let mut spec = spec.clone();
    let mut all = Vec::new();
    for wanted in spec.initializer_embeddings() {
        if wanted.place.is_empty() {
            all.push(None);
            continue;
        }
        let refused = |problem: String| Refusal { field: wanted.field.clone(), problem };
        let bytes = file_bytes(wanted.place, &wanted.field, LARGEST_FILE, context).await?;
        let read =
            ringtune_shared::tasks::spawn_blocking(move || LearnedEmbedding::from_bytes(&bytes)).await?;
        let learned = read.map_err(|error| refused(error.to_string()))?;
        wanted.check(&learned).map_err(refused)?;
        all.push(Some(Initializer { field: wanted.field, learned }));
    }
    Ok(all)
}

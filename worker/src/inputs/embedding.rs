//! Learned embeddings that a job names, on this machine.

use ringtune_shared::{
    embedding::{self, LARGEST_FILE},
    job::{EmbeddingPlace, PathUse},
};

use crate::{
    contents::one_file,
    fault::Refusal,
    rank::{Context, Error},
};

/// The bytes of an embedding's file. Files of this machine are read only in a rehearsal: a coordinator takes no job whose
/// embeddings are not uploaded. `field`: the job's, that names it.
///
/// # Errors
/// It cannot be fetched or read.
pub(crate) async fn embedding_bytes(place: &str, field: &str, context: &Context) -> Result<Vec<u8>, Error> {
    let refused = |problem: String| Refusal::of(field, problem);
    match EmbeddingPlace::parse(place).map_err(refused)? {
        EmbeddingPlace::Uploaded { hash, .. } => {
            Ok(one_file(hash, LARGEST_FILE, &context.artifacts, &context.cache).await?)
        }
        EmbeddingPlace::File(path) => {
            let (access, named, given) = (context.access.clone(), field.to_owned(), path);
            let read = move || {
                let file = access.place(PathUse::Embedding, &named, &given)?;
                let read = embedding::read_opened(file.open());
                Ok::<_, Error>(read.map_err(|error| Refusal::of(&named, format!("{given}: {error}")))?)
            };
            ringtune_shared::tasks::spawn_blocking(read).await?
        }
    }
}

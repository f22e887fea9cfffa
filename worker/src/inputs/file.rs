//! Embeddings and LoRAs that a job starts from, on this machine.

use ringtune_shared::{
    files,
    job::{FilePlace, PathUse},
};

use crate::{
    contents::one_file,
    fault::Refusal,
    rank::{Context, Error},
};

/// The bytes of such a file. Files of this machine are read only in a rehearsal: a coordinator takes no job that starts from a
/// file that is not uploaded. `field`: the job's, that names it.
///
/// # Errors
/// It cannot be fetched or read.
pub(crate) async fn file_bytes(
    place: &str,
    field: &str,
    largest: u64,
    context: &Context,
) -> Result<Vec<u8>, Error> {
    let refused = |problem: String| Refusal::of(field, problem);
    match FilePlace::parse(place).map_err(refused)? {
        FilePlace::Uploaded { hash, .. } => {
            Ok(one_file(hash, largest, &context.artifacts, &context.cache).await?)
        }
        FilePlace::File(path) => {
            let (access, named, given) = (context.access.clone(), field.to_owned(), path);
            let read = move || {
                let file = access.place(PathUse::Embedding, &named, &given)?;
                let read = files::read_opened(file.open(), largest);
                Ok::<_, Error>(read.map_err(|error| Refusal::of(&named, format!("{given}: {error}")))?)
            };
            ringtune_shared::tasks::spawn_blocking(read).await?
        }
    }
}

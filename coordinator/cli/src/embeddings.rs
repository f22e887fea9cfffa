//! The embeddings that a job draws with or starts from: files of this machine, uploaded like pictures.

use std::path::Path;

use bytes::Bytes;
use ringtune_shared::{
    embedding::{EmbeddingError, LearnedEmbedding, read_file},
    files::safe_file_name,
    ids::{CONTENT_URI_PREFIX, ContentHash},
    job::{EmbeddingPlace, JobSpec},
};

use crate::{
    client::{Client, ClientError, Content},
    error::Error,
};

const MEDIA_TYPE: &str = "application/octet-stream";

/// Refuses, before anything starts, files that are no embeddings or cannot be uploaded.
pub fn check(spec: &JobSpec) -> Result<(), Error> {
    for embedding in spec.drawn_embeddings() {
        let Ok(EmbeddingPlace::File(path)) = EmbeddingPlace::parse(embedding) else { continue };
        let refuse = |problem: String| Err(Error::Usage(format!("generate.embeddings: {path}: {problem}")));
        let read = read_file(Path::new(&path)).and_then(|bytes| LearnedEmbedding::from_bytes(&bytes));
        if let Err(error) = read {
            return refuse(error.to_string());
        }
        if file_name(&path).is_none() {
            return refuse("its name cannot travel: rename it".to_owned());
        }
    }
    Ok(())
}

/// Uploads the embeddings and puts their addresses in the job.
pub async fn upload(spec: &mut JobSpec, client: &Client) -> Result<(), Error> {
    for embedding in spec.drawn_embeddings_mut() {
        let Ok(EmbeddingPlace::File(path)) = EmbeddingPlace::parse(embedding) else { continue };
        let read = tokio::fs::read(&path).await;
        let failed = |source| ClientError::File { doing: "cannot read", path: path.clone().into(), source };
        let bytes = Bytes::from(read.map_err(failed)?);
        let sha256 = ContentHash::of(&bytes);
        let uri = client.upload(&Content { bytes, sha256, media_type: MEDIA_TYPE }).await?;
        *embedding = EmbeddingPlace::uploaded(&uri, file_name(&path).unwrap_or_default());
    }
    Ok(())
}

/// Reads the embeddings that a job's concepts start from, and puts the addresses that they will have in the job.
///
/// # Errors
/// A file is not an embedding, or has another number of rows than its concept.
pub fn take_initializers(spec: &mut JobSpec) -> Result<Vec<Content>, Error> {
    let mut contents = Vec::new();
    for embedding in spec.initializer_embeddings() {
        let place = embedding.place.as_str();
        if place.is_empty() || place.starts_with(CONTENT_URI_PREFIX) {
            continue;
        }
        let refuse = |problem: String| Error::Usage(format!("{}: {place}: {problem}", embedding.field));
        let unusable = |error: EmbeddingError| refuse(error.to_string());
        let bytes = read_file(Path::new(place)).map_err(unusable)?;
        let learned = LearnedEmbedding::from_bytes(&bytes).map_err(unusable)?;
        embedding.check(&learned).map_err(refuse)?;
        let sha256 = learned.hash;
        *embedding.place = sha256.uri();
        contents.push(Content { bytes: bytes.into(), sha256, media_type: MEDIA_TYPE });
    }
    Ok(contents)
}

fn file_name(path: &str) -> Option<&str> {
    Path::new(path).file_name().and_then(|name| name.to_str()).filter(|name| safe_file_name(name))
}

//! The embeddings and LoRAs that a job draws with or starts from: files of this machine, uploaded like pictures.

use std::path::Path;

use bytes::Bytes;
use ringtune_shared::{
    embedding::{EmbeddingError, LearnedEmbedding, read_file},
    files::safe_file_name,
    ids::{CONTENT_URI_PREFIX, ContentHash},
    job::{FilePlace, JobFile, JobSpec, Teaches},
    lora::{LARGEST_OF_A_JOB, LoraFile},
};

use crate::{
    client::{Client, ClientError, Content},
    error::Error,
};

const MEDIA_TYPE: &str = "application/octet-stream";

/// Refuses, before anything starts, files that are not what the job takes them for, or cannot be uploaded.
pub fn check(spec: &JobSpec) -> Result<(), Error> {
    for JobFile { field, place, teaches, .. } in spec.clone().files() {
        let Some(path) = own_file(place) else { continue };
        let refuse = |problem: String| Error::Usage(format!("{field}: {path}: {problem}"));
        check_file(Path::new(path), teaches).map_err(refuse)?;
        if file_name(path).is_none() {
            return Err(refuse("its name cannot travel: rename it".to_owned()));
        }
    }
    Ok(())
}

fn check_file(path: &Path, teaches: Teaches) -> Result<(), String> {
    match teaches {
        Teaches::Words => {
            let read = read_file(path).and_then(|bytes| LearnedEmbedding::from_bytes(&bytes));
            read.map(drop).map_err(|error| error.to_string())
        }
        Teaches::Layers => {
            let bytes = ringtune_shared::files::read_file(path, LARGEST_OF_A_JOB);
            LoraFile::check(&bytes.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
        }
    }
}

/// Uploads these files and puts their addresses in the job.
pub async fn upload(spec: &mut JobSpec, client: &Client) -> Result<(), Error> {
    for JobFile { place, .. } in spec.files() {
        let Some(path) = own_file(place) else { continue };
        let read = tokio::fs::read(path).await;
        let failed = |source| ClientError::File { doing: "cannot read", path: path.into(), source };
        let bytes = Bytes::from(read.map_err(failed)?);
        let sha256 = ContentHash::of(&bytes);
        let uri = client.upload(&Content { bytes, sha256, media_type: MEDIA_TYPE }).await?;
        *place = FilePlace::uploaded(&uri, file_name(path).unwrap_or_default());
    }
    Ok(())
}

/// The path of a file that is not uploaded yet.
fn own_file(place: &str) -> Option<&str> {
    Some(place).filter(|place| !place.is_empty() && !place.starts_with(CONTENT_URI_PREFIX))
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

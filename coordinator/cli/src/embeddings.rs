//! The embeddings of a job that draws: files of this machine, uploaded like pictures.

use std::path::Path;

use bytes::Bytes;
use ringtune_shared::{
    embedding::{LARGEST_FILE, LearnedEmbedding},
    files::safe_file_name,
    ids::ContentHash,
    spec::{EmbeddingPlace, JobSpec},
};

use crate::{
    client::{Client, ClientError, Content},
    error::Error,
};

/// Refuses, before anything starts, files that are no embeddings or cannot be uploaded.
pub fn check(spec: &JobSpec) -> Result<(), Error> {
    for embedding in spec.generate.iter().flat_map(|generate| &generate.embeddings) {
        let Ok(EmbeddingPlace::File(path)) = EmbeddingPlace::parse(embedding) else { continue };
        let refuse = |problem: String| Err(Error::Usage(format!("generate.embeddings: {path}: {problem}")));
        if let Err(problem) = read(Path::new(&path)) {
            return refuse(problem);
        }
        if file_name(&path).is_none() {
            return refuse("its name cannot travel: rename it".to_owned());
        }
    }
    Ok(())
}

/// Uploads the embeddings and puts their addresses in the job.
pub async fn upload(spec: &mut JobSpec, client: &Client) -> Result<(), Error> {
    for embedding in spec.generate.iter_mut().flat_map(|generate| &mut generate.embeddings) {
        let Ok(EmbeddingPlace::File(path)) = EmbeddingPlace::parse(embedding) else { continue };
        let read = tokio::fs::read(&path).await;
        let failed = |source| ClientError::File { doing: "cannot read", path: path.clone().into(), source };
        let bytes = Bytes::from(read.map_err(failed)?);
        let sha256 = ContentHash::of(&bytes);
        let media_type = "application/octet-stream";
        let uri = client.upload(&Content { bytes, sha256, media_type }).await?;
        *embedding = EmbeddingPlace::uploaded(&uri, file_name(&path).unwrap_or_default());
    }
    Ok(())
}

/// What a file teaches, or what is wrong with it.
fn read(path: &Path) -> Result<LearnedEmbedding, String> {
    let about = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("is no file".to_owned());
    }
    if !(1..=LARGEST_FILE).contains(&about.len()) {
        return Err(format!("has {} bytes; allowed: 1 to {LARGEST_FILE}", about.len()));
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    LearnedEmbedding::from_bytes(&bytes).map_err(|error| error.to_string())
}

fn file_name(path: &str) -> Option<&str> {
    Path::new(path).file_name().and_then(|name| name.to_str()).filter(|name| safe_file_name(name))
}

//! Content-addressed uploads that go on where an earlier attempt stopped.

use bytes::Bytes;
use ringtune_proto::v1::{self, upload_request::Part};
use ringtune_shared::ids::ContentHash;
use tonic::{Request, Status};

use super::{Client, ClientError, Retries};

/// Bytes in one message of an upload.
const CHUNK_BYTES: usize = 512 * 1024;

/// What to upload: the bytes and what they are.
#[derive(Debug, Clone)]
pub struct Content {
    /// All of it.
    pub bytes: Bytes,
    /// Its hash.
    pub sha256: ContentHash,
    /// For example "image/png".
    pub media_type: &'static str,
}

impl Client {
    /// Uploads `content` and returns its address, `artifact://sha256/HEX`.
    ///
    /// What the coordinator has already is not sent again.
    pub async fn upload(&self, content: &Content) -> Result<String, ClientError> {
        let doing = "upload a file";
        let sha256 = content.sha256.to_string();
        let mut retries = Retries::new();
        let mut committed = None;
        loop {
            // A header alone asks how much is there.
            let (offset, from) = match committed {
                None => (0, content.bytes.len()),
                Some(offset) => (offset, offset),
            };
            let header = v1::UploadHeader {
                sha256: sha256.clone(),
                size: i64::try_from(content.bytes.len()).unwrap_or(i64::MAX),
                offset: i64::try_from(offset).unwrap_or(i64::MAX),
                media_type: content.media_type.to_owned(),
                ..v1::UploadHeader::default()
            };
            match self.send_upload(header, content.bytes.slice(from..)).await {
                Ok(answer) if answer.complete => return Ok(answer.uri),
                Ok(answer) => {
                    let now = usize::try_from(answer.committed_size).unwrap_or(usize::MAX);
                    if now > content.bytes.len() || committed.is_some_and(|before| now <= before) {
                        return Err(self.nonsense(
                            doing,
                            format!("{now} of {} bytes after having been sent the rest", content.bytes.len()),
                        ));
                    }
                    committed = Some(now);
                }
                Err(status) => {
                    retries.after(status, doing).await.map_err(|status| self.failure(doing, *status))?;
                    // What is there by now is asked again.
                    committed = None;
                }
            }
        }
    }

    async fn send_upload(&self, header: v1::UploadHeader, rest: Bytes) -> Result<v1::UploadResponse, Status> {
        let chunks = (0..rest.len()).step_by(CHUNK_BYTES).map(move |start| {
            let chunk = rest.slice(start..rest.len().min(start + CHUNK_BYTES));
            v1::UploadRequest { part: Some(Part::Chunk(chunk)) }
        });
        let first = v1::UploadRequest { part: Some(Part::Header(header)) };
        let messages = tokio_stream::iter(std::iter::once(first).chain(chunks));
        Ok(self.artifacts().upload(Request::new(messages)).await?.into_inner())
    }
}

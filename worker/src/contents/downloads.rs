//! Contents from the coordinator. A download that breaks goes on where it was, however often; it may take as long as
//! it likes, as long as something comes.

use std::time::Duration;

use ringtune_proto::v1::{self, download_request::Source};
use ringtune_shared::ids::ContentHash;
use tokio::time::timeout;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use super::{Error, client::ArtifactClient};

/// A download to which nothing is added for so long counts as broken.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

impl ArtifactClient {
    /// The whole content of `hash`, of at most `limit` bytes, checked.
    ///
    /// # Errors
    /// The coordinator refuses, or has another content than it says.
    pub async fn download(&self, hash: ContentHash, limit: u64) -> Result<Vec<u8>, Error> {
        match self.download_once(hash, limit).await {
            // The way here may have done it. What comes twice is what the coordinator has.
            Err(Error::WrongContent { .. }) => self.download_once(hash, limit).await,
            downloaded => downloaded,
        }
    }

    async fn download_once(&self, hash: ContentHash, limit: u64) -> Result<Vec<u8>, Error> {
        let uri = hash.uri();
        let mut tries = self.tries(&uri);
        let mut content = Vec::new();
        loop {
            let before = content.len();
            let Err(status) = self.receive(&uri, limit, &mut content).await else { break };
            if content.len() > before {
                tries.went_on().await;
            }
            tries.wait_after(status).await?;
        }
        tries.went_on().await;
        let wrong = |problem| Error::WrongContent { uri: uri.clone(), problem };
        if content.len() as u64 > limit {
            return Err(wrong(format!("more than the {limit} bytes that it should have")));
        }
        let (found, content) =
            ringtune_shared::tasks::spawn_blocking(move || (ContentHash::of(&content), content)).await?;
        if found != hash {
            return Err(wrong(format!("{} bytes with the hash {found}", content.len())));
        }
        Ok(content)
    }

    /// Receives the rest of `content` in one call.
    async fn receive(&self, uri: &str, limit: u64, content: &mut Vec<u8>) -> Result<(), Status> {
        let offset = i64::try_from(content.len()).unwrap_or(i64::MAX);
        let request =
            v1::DownloadRequest { source: Some(Source::Uri(uri.to_owned())), offset, ..Default::default() };
        let mut service = self.service();
        let stream = within_idle_limit(service.download(request)).await?;
        append(stream?.into_inner(), limit, content).await
    }
}

/// Adds what comes to `content`, and stops as soon as there is more than there may be.
async fn append(
    mut stream: impl Stream<Item = Result<v1::DownloadResponse, Status>> + Unpin,
    limit: u64,
    content: &mut Vec<u8>,
) -> Result<(), Status> {
    while let Some(part) = within_idle_limit(stream.next()).await? {
        content.extend_from_slice(&part?.chunk);
        if content.len() as u64 > limit {
            break;
        }
    }
    Ok(())
}

/// Waits for what is to come, but not for ever.
pub(crate) async fn within_idle_limit<T>(coming: impl Future<Output = T>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded(format!("nothing came for {} s", IDLE_LIMIT.as_secs()));
    timeout(IDLE_LIMIT, coming).await.map_err(late)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;
    use tonic::Code;

    use super::*;

    fn part(chunk: &'static [u8]) -> Result<v1::DownloadResponse, Status> {
        Ok(v1::DownloadResponse { artifact: None, chunk: Bytes::from_static(chunk) })
    }

    #[tokio::test(start_paused = true)]
    async fn only_silence_ends_a_download() {
        let (sender, receiver) = mpsc::channel(1);
        // An hour, with a byte now and then; then silence.
        let sending = ringtune_shared::tasks::spawn(async move {
            for _ in 0..180 {
                tokio::time::sleep(Duration::from_secs(20)).await;
                sender.send(part(b"x")).await.unwrap();
            }
            std::future::pending::<()>().await;
        });
        let mut content = b"before ".to_vec();
        let status = append(ReceiverStream::new(receiver), 1000, &mut content).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert_eq!(content.len(), 7 + 180);
        sending.abort();
    }

    #[tokio::test]
    async fn no_more_is_read_than_there_may_be() {
        let endless = tokio_stream::iter(std::iter::repeat_with(|| part(b"abcd")));
        let mut content = Vec::new();
        append(endless, 10, &mut content).await.unwrap();
        assert_eq!(content.len(), 12);
    }
}

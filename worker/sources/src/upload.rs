//! Files of this machine become objects of a bucket.
//!
//! A large file goes in parts, a few at a time. Its object is there only when all parts are; a try that fails takes its parts
//! back. (Parts of a process that was killed stay until the bucket's own rules remove them.)

use std::{
    path::PathBuf,
    pin::{Pin, pin},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesUnordered};
use object_store::{ObjectStoreExt as _, PutPayload, path::Path as ObjectPath};
use tokio::{fs::File, io::AsyncReadExt as _, time::timeout};

use crate::{
    Error, ProgressSender,
    progress::{FileProgress, progress_channel},
    s3::Bucket,
};

/// Bytes of a part. S3 takes parts from 5 MiB on.
const PART: u64 = 16 << 20;
/// Parts of one object. S3 takes 10,000.
const MOST_PARTS: u64 = 9_000;
/// Parts that are under way at once: these are in memory.
const AT_ONCE: usize = 4;
/// A part, or the end of an object, takes less.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// Object that tests whether a bucket takes files.
const CHECK: &str = ".ringtune-check";

/// A file to upload to a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Its name there.
    pub name: String,
    /// Its local path.
    pub path: PathBuf,
}

impl Bucket {
    /// Puts an empty object and removes it.
    pub(crate) async fn check_writable(&self) -> Result<(), Error> {
        let what = self.model.to_string();
        let place = self.place_of(CHECK);
        let put = self.store.put(&place, PutPayload::new());
        self.answered(&what, put).await?;
        self.answered(&what, self.store.delete(&place)).await
    }

    /// Puts files one after the other. The last one is taken away first.
    pub(crate) async fn upload(
        &self,
        files: &[Upload],
        progress: &ProgressSender,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let mut stop = pin!(stop);
        let mut sizes = Vec::new();
        for file in files {
            let about = tokio::fs::metadata(&file.path).await.map_err(Error::io(&file.path))?;
            sizes.push(about.len());
        }
        let total = sizes.iter().sum();
        if let Some(last) = files.last() {
            unless(stop.as_mut(), &self.named(&last.name), self.remove(&last.name)).await?;
        }
        let mut done = 0;
        for (file, size) in files.iter().zip(sizes) {
            self.put(file, size, &FileProgress::new(progress, done, total), stop.as_mut()).await?;
            done += size;
            progress.set(done, total);
        }
        Ok(())
    }

    /// Puts one file.
    pub(crate) async fn put_one(&self, file: &Upload) -> Result<(), Error> {
        let about = tokio::fs::metadata(&file.path).await.map_err(Error::io(&file.path))?;
        let (progress, _nobody) = progress_channel();
        let progress = FileProgress::new(&progress, 0, about.len());
        self.put(file, about.len(), &progress, pin!(std::future::pending())).await
    }

    /// Removes an object, if it is there.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), Error> {
        let (what, place) = (self.named(name), self.place_of(name));
        let removed = async {
            match self.store.delete(&place).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                answer => answer,
            }
        };
        self.answered(&what, removed).await
    }

    async fn put(
        &self,
        file: &Upload,
        size: u64,
        progress: &FileProgress,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), Error> {
        let (what, place) = (self.named(&file.name), self.place_of(&file.name));
        let mut reading = File::open(&file.path).await.map_err(Error::io(&file.path))?;
        let length = PART.max(size.div_ceil(MOST_PARTS));
        if size <= length {
            let bytes = part(&mut reading, size, file).await?;
            let put = self.store.put(&place, bytes.into());
            unless(stop, &what, self.answered(&what, put)).await?;
            return Ok(());
        }
        // 1. Parts, a few at a time; all of them are the object.
        let begun = self.store.put_multipart(&place);
        let mut object = unless(stop.as_mut(), &what, self.answered(&what, begun)).await?;
        let whole = async {
            let (mut under_way, mut read, mut sent) = (FuturesUnordered::new(), 0, 0);
            while read < size || !under_way.is_empty() {
                if read < size && under_way.len() < AT_ONCE {
                    let bytes = part(&mut reading, length.min(size - read), file).await?;
                    let length = bytes.len() as u64;
                    read += length;
                    let putting = object.put_part(bytes.into());
                    under_way.push(async move {
                        timeout(LONGEST_WAIT, putting).await.map(|put| put.map(|()| length))
                    });
                    continue;
                }
                if let Some(put) = under_way.next().await {
                    sent += self.explained(&what, put)?;
                    progress.set(sent);
                }
            }
            self.answered(&what, object.complete()).await?;
            Ok(())
        };
        let ended = unless(stop, &what, whole).await;
        // 2. Or none of them stays.
        if ended.is_err() {
            // If this fails too, the first failure says more.
            let _ = timeout(self.patience.stall, object.abort()).await;
        }
        ended
    }

    fn named(&self, name: &str) -> String {
        format!("{}/{name}", self.model.to_string().trim_end_matches('/'))
    }

    fn place_of(&self, name: &str) -> ObjectPath {
        ObjectPath::from(format!("{}/{name}", self.model.prefix).as_str())
    }

    async fn answered<T>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, Error> {
        self.explained(what, timeout(LONGEST_WAIT, request).await)
    }

    fn explained<T>(
        &self,
        what: &str,
        answer: Result<Result<T, object_store::Error>, tokio::time::error::Elapsed>,
    ) -> Result<T, Error> {
        match answer {
            Ok(answer) => answer.map_err(|error| self.explain(what, error)),
            Err(_) => Err(Error::Unreachable {
                what: what.to_owned(),
                problem: format!("no answer for {} seconds", LONGEST_WAIT.as_secs()),
            }),
        }
    }
}

/// The outcome of `work` on `what`, unless `stop` comes to its end before; then it is dropped.
async fn unless<T>(
    stop: Pin<&mut impl Future<Output = ()>>,
    what: &str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::select! {
        done = work => done,
        () = stop => Err(Error::Stopped { what: what.to_owned() }),
    }
}

/// The next `length` bytes of a file.
async fn part(file: &mut File, length: u64, about: &Upload) -> Result<Bytes, Error> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    file.read_exact(&mut bytes).await.map_err(Error::io(&about.path))?;
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use ringtune_shared::job::S3Model;
    use tokio::net::TcpListener;

    use super::*;
    use crate::{Environment, Patience};

    #[tokio::test]
    async fn who_asks_to_stop_does_not_wait_for_an_answer() {
        // It takes connections and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", silent.local_addr().unwrap());
        let variables = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ALLOW_HTTP", "true"),
        ];
        let environment: Environment =
            variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let model = S3Model { bucket: "models".to_owned(), prefix: "tokens".to_owned() };
        let bucket = Bucket::open(&model, &environment, Patience::default(), 0).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meta.json");
        std::fs::write(&path, "{}").unwrap();
        let files = [Upload { name: "meta.json".to_owned(), path }];
        let (progress, _seen) = progress_channel();
        let uploading = bucket.upload(&files, &progress, std::future::ready(()));
        let ended = timeout(Duration::from_secs(60), uploading).await.unwrap();
        assert!(matches!(ended, Err(Error::Stopped { .. })), "{ended:?}");
    }
}

//! Files in buckets of S3 and compatible servers.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::{
    ClientConfigKey, GetOptions, GetRange, ObjectMeta, ObjectStore, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    path::Path as ObjectPath,
};
use ringtune_shared::{ids::ContentHasher, job::S3Model};

use crate::{
    Environment, Error, LocalModel, Patience, ProgressSender,
    digest::Expected,
    environment::CREDENTIALS,
    model_cache::{Entry, ModelCache, Right},
    names::{MOST_FILES, check_listed},
    progress::FileProgress,
    transfer::{self, Download, Opened, Origin},
    web::{self, with_retries},
};

/// Interval of looks at a model that another process fetches.
const RETRY: Duration = Duration::from_millis(200);

/// Selects the needed files of a listing; the error is for users.
pub type Needed<'a> = &'a (dyn Fn(&[String]) -> Result<Vec<String>, String> + Sync);

/// A bucket, and a prefix in it.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) store: Arc<AmazonS3>,
    pub(crate) model: S3Model,
    /// The bucket's endpoint, for the key of its cache.
    endpoint: String,
    pub(crate) patience: Patience,
}

/// A needed object.
#[derive(Clone, Debug)]
struct Object {
    /// Name below the prefix.
    name: String,
    location: ObjectPath,
    size: u64,
    etag: Option<String>,
    /// Seconds of the Unix clock.
    changed: i64,
}

impl Bucket {
    /// Configured by the AWS_* variables. `repeats`: how often the library itself may repeat a request.
    pub(crate) fn open(
        model: &S3Model,
        environment: &Environment,
        patience: Patience,
        repeats: usize,
    ) -> Result<Self, Error> {
        web::use_ring();
        let endpoint = environment.first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]);
        let allowed = ["1", "true", "yes", "on"];
        let allow_http = environment
            .get("AWS_ALLOW_HTTP")
            .is_some_and(|value| allowed.contains(&value.to_lowercase().as_str()));
        if endpoint.is_some_and(|url| url.starts_with("http://")) && !allow_http {
            let problem = "AWS_ENDPOINT_URL begins with http://, which needs AWS_ALLOW_HTTP=true".to_owned();
            return Err(Error::Variable { variable: "AWS_ALLOW_HTTP", problem });
        }
        let mut builder = AmazonS3Builder::new();
        for (name, value) in environment.with_prefix("AWS_") {
            if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        if !CREDENTIALS.iter().any(|name| environment.get(name).is_some()) {
            builder = builder.with_skip_signature(true);
        }
        // Its own limit is on a whole request, however much of it arrives; ours is on silence. What is fetched it does not
        // repeat: when that is done is decided in one place.
        let store = builder
            .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), "7 days")
            .with_retry(RetryConfig { max_retries: repeats, ..RetryConfig::default() })
            .with_bucket_name(&model.bucket)
            .build()
            .map_err(|error| Error::Refused {
                place: model.to_string(),
                problem: short(&error.to_string()),
            })?;
        let endpoint = endpoint.unwrap_or_default().to_owned();
        Ok(Self { store: Arc::new(store), model: model.clone(), endpoint, patience })
    }

    /// Brings what is needed into the cache and holds it there.
    pub(crate) async fn fetch(
        &self,
        needed: Needed<'_>,
        cache: &ModelCache,
        progress: &ProgressSender,
    ) -> Result<LocalModel, Error> {
        let objects = self.needed(needed, progress).await?;
        let total: u64 = objects.iter().map(|object| object.size).fold(0, u64::saturating_add);
        let entry = cache.entry(&self.key(&objects));
        loop {
            let (asked, at) = (cache.clone(), entry.clone());
            match ringtune_shared::tasks::spawn_blocking(move || asked.ask(&at)).await?? {
                Right::Use(held) => {
                    progress.set(total, total);
                    return Ok(LocalModel::new(entry.folder, Some(cache.folder().to_owned()), Some(held)));
                }
                Right::Fetch(_alone) => self.fill(&objects, &entry, cache, progress).await?,
                // The fetching process shows its progress.
                Right::Wait => {
                    progress.set(self.arrived(&objects, &entry).await?, total);
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// The needed objects of the bucket.
    async fn needed(&self, needed: Needed<'_>, progress: &ProgressSender) -> Result<Vec<Object>, Error> {
        let place = self.model.to_string();
        let unsuitable = |problem| Error::Unsuitable { place: place.clone(), problem };
        let objects = with_retries(&self.patience, &place, progress, || self.list()).await?;
        if objects.is_empty() {
            return Err(unsuitable("there is nothing under this prefix".to_owned()));
        }
        let names: Vec<String> = objects.iter().map(|object| object.name.clone()).collect();
        names.iter().try_for_each(|name| check_listed(name)).map_err(unsuitable)?;
        let needed = needed(&names).map_err(unsuitable)?;
        let find = |name: &String| objects.iter().find(|object| object.name == *name).cloned();
        Ok(needed.iter().filter_map(find).collect())
    }

    async fn list(&self) -> Result<Vec<Object>, Error> {
        let prefix = ObjectPath::from(self.model.prefix.as_str());
        let mut listed = self.store.list(Some(&prefix));
        let mut objects = Vec::new();
        while let Some(about) = listed.next().await {
            let about = about.map_err(|error| self.explain(&self.model.to_string(), error))?;
            objects.extend(object(&self.model, about));
            if objects.len() > MOST_FILES {
                let problem = format!("there are more than {MOST_FILES} objects under this prefix");
                return Err(Error::Unsuitable { place: self.model.to_string(), problem });
            }
        }
        Ok(objects)
    }

    /// Names one state of it: what is needed of it, where it is and what S3 says of each object.
    fn key(&self, objects: &[Object]) -> String {
        let mut hasher = ContentHasher::new();
        hasher.update(format!("{}\n{}\n", self.endpoint, self.model).as_bytes());
        for Object { name, size, etag, changed, .. } in objects {
            let etag = etag.as_deref().unwrap_or_default();
            hasher.update(format!("{name}\n{size}\n{etag}\n{changed}\n").as_bytes());
        }
        hasher.finish().to_string().chars().take(32).collect()
    }

    async fn fill(
        &self,
        objects: &[Object],
        entry: &Entry,
        cache: &ModelCache,
        progress: &ProgressSender,
    ) -> Result<(), Error> {
        let total: u64 = objects.iter().map(|object| object.size).sum();
        let missing = total.saturating_sub(self.arrived(objects, entry).await?);
        let (making, at, place) = (cache.clone(), entry.clone(), self.model.to_string());
        ringtune_shared::tasks::spawn_blocking(move || making.make_room(&at, &place, missing)).await??;
        let mut done = 0;
        for object in objects {
            let target = entry.folder.join(&object.name);
            let wanted = Download {
                what: format!("{}/{}", self.model, object.name),
                size: object.size,
                // An object's ETag is a hash of its content in some cases only; the ranks compare what they have.
                expected: Expected::Nothing,
                partial: partial(&target),
                target,
            };
            let part = FileProgress::new(progress, done, total);
            if !tokio::fs::try_exists(&wanted.target).await.map_err(Error::io(&wanted.target))? {
                transfer::download(&BucketObject { bucket: self, object }, &wanted, &self.patience, &part)
                    .await?;
            }
            done += object.size;
            progress.set(done, total);
        }
        let (completing, at) = (cache.clone(), entry.clone());
        ringtune_shared::tasks::spawn_blocking(move || completing.complete(&at)).await?
    }

    /// The bytes of the model that are here.
    async fn arrived(&self, objects: &[Object], entry: &Entry) -> Result<u64, Error> {
        let targets = objects.iter().map(|object| entry.folder.join(&object.name)).collect();
        Ok(ringtune_shared::tasks::spawn_blocking(move || arrived(targets)).await?)
    }

    /// Text of an unsuccessful answer. S3's own message of a wrong signature names keys, so it is left out.
    pub(crate) fn explain(&self, what: &str, error: object_store::Error) -> Error {
        let what = what.to_owned();
        let refused = |place, problem: &str| Error::Refused { place, problem: problem.to_owned() };
        match error {
            object_store::Error::NotFound { .. } => refused(what, "there is no such bucket or object"),
            object_store::Error::Precondition { .. } => {
                refused(what, "the object was replaced while it was fetched; start the job again")
            }
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                refused(
                    what,
                    "access is denied; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or the machine's role",
                )
            }
            error => {
                let text = error.to_string();
                // The crate's types do not tell that repeating is useless.
                if ["status code: 3", "status code: 4"].iter().any(|status| text.contains(status)) {
                    return Error::Refused { place: what, problem: short(&text) };
                }
                // Nor whether anybody was there.
                match format!("{error:?}").contains("(Connect,") {
                    true => Error::NotReached { what, problem: short(&text) },
                    false => Error::Unreachable { what, problem: short(&text) },
                }
            }
        }
    }
}

/// An object of a bucket.
struct BucketObject<'a> {
    bucket: &'a Bucket,
    object: &'a Object,
}

#[async_trait]
impl Origin for BucketObject<'_> {
    async fn open(&self, offset: u64) -> Result<Opened, Error> {
        let what = format!("{}/{}", self.bucket.model, self.object.name);
        let options = GetOptions {
            // The same object from its first byte to its last.
            if_match: self.object.etag.clone(),
            range: (offset > 0).then_some(GetRange::Offset(offset)),
            ..GetOptions::default()
        };
        let got = self.bucket.store.get_opts(&self.object.location, options).await;
        let got = got.map_err(|error| self.bucket.explain(&what, error))?;
        let begins = got.range.start;
        let bucket = self.bucket.clone();
        let body = got.into_stream().map_err(move |error| bucket.explain(&what, error)).boxed();
        Ok(Opened { offset: begins, body })
    }
}

/// An object below the prefix; none for the prefix itself, which some tools make an object of.
fn object(model: &S3Model, about: ObjectMeta) -> Option<Object> {
    let key = about.location.as_ref();
    let name = match model.prefix.as_str() {
        "" => key,
        prefix => key.strip_prefix(prefix)?.strip_prefix('/')?,
    };
    (!name.is_empty()).then(|| Object {
        name: name.to_owned(),
        size: about.size,
        etag: about.e_tag.clone(),
        changed: about.last_modified.timestamp(),
        location: about.location.clone(),
    })
}

fn partial(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".incomplete");
    name.into()
}

/// The bytes of files that are here, whole or not. Blocks.
fn arrived(targets: Vec<PathBuf>) -> u64 {
    let size = |path: &Path| std::fs::metadata(path).map(|about| about.len()).ok();
    targets.into_iter().filter_map(|target| size(&target).or_else(|| size(&partial(&target)))).sum()
}

fn short(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(300).collect()
}

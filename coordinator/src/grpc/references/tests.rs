//! Jobs that come while contents go: with real threads, in many orders.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringtune_shared::ids::{ContentHash, JobId};
use ringtune_shared::job::JobSpec;

use super::*;
use crate::contents::Limits;
use crate::core::Options;
use crate::metrics::Metrics;
use crate::service;
use crate::store::lists::{JobFilter, JobOrder, JobQuery};
use crate::store::{MemoryStore, conformance};

const DAY: Duration = Duration::from_secs(24 * 3600);

struct Place {
    _folder: tempfile::TempDir,
    contents: Contents,
    references: Arc<References>,
}

impl Place {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let contents = Contents::open(folder.path(), Limits::default()).unwrap();
        let settings = service::Settings {
            options: Options::default(),
            store: Arc::new(MemoryStore::default()),
            metrics: Metrics::new().unwrap(),
        };
        let (handle, _) = service::start(settings).await.unwrap();
        let references = Arc::new(References::new(handle, contents.clone()));
        Self { _folder: folder, contents, references }
    }

    /// A content that nobody has asked for.
    fn put(&self, bytes: &[u8]) -> ContentHash {
        let hash = ContentHash::of(bytes);
        let mut upload = self.contents.upload(hash, bytes.len() as u64, 0).unwrap();
        upload.write(bytes).unwrap();
        assert!(upload.close().unwrap().complete);
        hash
    }

    fn is_here(&self, hash: ContentHash) -> bool {
        self.contents.committed(&hash).unwrap().complete
    }

    /// A manifest of one picture, with both contents.
    fn put_images(&self, name: &str) -> [ContentHash; 2] {
        let picture = self.put(name.as_bytes());
        let json = format!(
            r#"{{"version":1,"files":[{{"name":"a.png","sha256":"{picture}","size":{}}}]}}"#,
            name.len()
        );
        [self.put(json.as_bytes()), picture]
    }

    async fn create(&self, spec: JobSpec, ties: Ties) -> JobId {
        let id = JobId::new();
        let new = NewJob { id, spec: Arc::new(spec), request: None, resumed: None, queue: Arc::default() };
        self.references.create_job(new, ties).await.map_err(Status::from).unwrap();
        id
    }

    /// An ended job that lists these contents as its files.
    async fn ended_with(&self, files: &[ContentHash]) -> JobId {
        let id = self.create(spec("/images"), Ties::default()).await;
        for hash in files {
            let record = ArtifactRecord {
                job: id,
                name: hash.to_string(),
                hash: *hash,
                size: 1,
                media_type: String::new(),
                created: crate::core::Time(0),
                epoch: None,
            };
            let claim = self.references.hold(*hash).await;
            self.references.keep(record, claim).await.map_err(Status::from).unwrap();
        }
        self.references.handle.cancel_job(id, String::new()).await.unwrap();
        id
    }
}

fn spec(images: &str) -> JobSpec {
    let mut spec = (*conformance::queued_job(1).spec).clone();
    spec.textual_inversion_mut().unwrap().data.images = images.to_owned();
    spec
}

async fn rest(turns: u64) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_job_that_is_made_has_its_contents_whatever_goes_meanwhile() {
    let place = Arc::new(Place::new().await);
    let mut made = 0;
    for round in 0..100_u64 {
        let [manifest, picture] = place.put_images(&format!("picture {round}"));
        let ended = place.ended_with(&[manifest, picture]).await;
        // 1. Someone makes a job of the images; in every third round the call breaks off.
        let creating = tokio::spawn({
            let place = place.clone();
            async move {
                rest(round % 7).await;
                let mut ties = Ties::default();
                let checked = place.references.check(&mut ties, "data.images", &manifest.uri()).await;
                rest(round % 5).await;
                if checked.is_ok() {
                    place.create(spec(&manifest.uri()), ties).await;
                }
            }
        });
        // 2. The job that had them is deleted, and old contents are swept, two days later.
        let deleting = tokio::spawn({
            let place = place.clone();
            async move {
                rest(round % 11).await;
                place.references.delete_job(ended).await.map_err(Status::from).unwrap();
            }
        });
        let sweeping = tokio::spawn({
            let place = place.clone();
            async move {
                rest(round % 3).await;
                place.references.sweep(SystemTime::now() + 2 * DAY).await.map_err(Status::from).unwrap();
            }
        });
        if round % 3 == 0 {
            rest(round % 13).await;
            creating.abort();
        }
        let _ = creating.await;
        deleting.await.unwrap();
        sweeping.await.unwrap();
        // 3. What a call that broke off began runs on; then a job has its images, or they went or will go.
        while !place.references.claims.is_idle() {
            tokio::task::yield_now().await;
        }
        let filter = JobFilter::default();
        let newest = JobQuery { filter, order: JobOrder::Creation, descending: true, after: None, limit: 1 };
        let jobs = place.references.handle.store().list_jobs(&newest).await.unwrap();
        if jobs.first().is_some_and(|job| job.spec.textual_inversion().unwrap().data.images == manifest.uri())
        {
            made += 1;
            assert!(place.is_here(manifest) && place.is_here(picture), "round {round}");
        }
        place.references.sweep(SystemTime::now() + 2 * DAY).await.map_err(Status::from).unwrap();
        let is_made = jobs
            .first()
            .is_some_and(|job| job.spec.textual_inversion().unwrap().data.images == manifest.uri());
        assert_eq!([place.is_here(manifest), place.is_here(picture)], [is_made; 2], "round {round}");
    }
    assert!(made > 0, "no round made its job");
}

#[tokio::test]
async fn what_is_asked_for_again_stays_for_another_day() {
    let place = Place::new().await;
    let [asked, idle] = [place.put(b"asked"), place.put(b"idle")];
    place.contents.touch(&asked).unwrap();
    place.references.sweep(SystemTime::now()).await.map_err(Status::from).unwrap();
    assert_eq!([place.is_here(asked), place.is_here(idle)], [true, false]);
    // Also when the job goes that had it.
    let ended = place.ended_with(&[asked]).await;
    place.references.delete_job(ended).await.map_err(Status::from).unwrap();
    assert!(place.is_here(asked));
    place.references.sweep(SystemTime::now() + 2 * DAY).await.map_err(Status::from).unwrap();
    assert!(!place.is_here(asked));
}

#[tokio::test]
async fn what_somebody_ties_to_a_job_stays_though_nobody_wants_it_yet() {
    let place = Place::new().await;
    let hash = place.put(b"content");
    let claim = place.references.hold(hash).await;
    place.references.sweep(SystemTime::now() + 2 * DAY).await.map_err(Status::from).unwrap();
    assert!(place.is_here(hash));
    drop(claim);
    place.references.sweep(SystemTime::now() + 2 * DAY).await.map_err(Status::from).unwrap();
    assert!(!place.is_here(hash));
}

#[tokio::test]
async fn manifests_of_an_older_version_are_read_before_anything_goes() {
    let place = Place::new().await;
    let [manifest, picture] = place.put_images("picture");
    // As after an upgrade: the job is there, and nobody has told the store what its manifest names.
    place.create(spec(&manifest.uri()), Ties::default()).await;
    let store = place.references.handle.store();
    assert_eq!(store.unread_manifests(9).await.unwrap(), [manifest]);
    place.references.sweep(SystemTime::now() + 2 * DAY).await.map_err(Status::from).unwrap();
    assert!(store.unread_manifests(9).await.unwrap().is_empty());
    assert!(place.is_here(manifest) && place.is_here(picture));
}

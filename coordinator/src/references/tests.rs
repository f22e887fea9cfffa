//! Jobs that come while contents go: with real threads, in many orders.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringtune_shared::ids::{ContentHash, JobId};
use ringtune_shared::job::{JobSpec, QueueSpec};

use super::*;
use crate::contents::Limits;
use crate::core::testing::{file, new_job};
use crate::core::{Options, OwnerLimits};
use crate::metrics::Metrics;
use crate::service;
use crate::store::conformance;
use crate::store::lists::{JobFilter, JobOrder, JobQuery};

const DAY: Duration = Duration::from_secs(24 * 3600);

struct Fixture {
    _folder: tempfile::TempDir,
    contents: Contents,
    references: Arc<References>,
}

impl Fixture {
    async fn new() -> Self {
        let (folder, store) = conformance::temporary().await;
        let contents = Contents::open(&folder.path().join("artifacts"), Limits::default()).unwrap();
        let store = Arc::new(store);
        let metrics = Metrics::new().unwrap();
        let settings = service::Settings {
            options: Options::default(),
            store: store.clone(),
            metrics: metrics.clone(),
            notifier: Default::default(),
            tracer: Default::default(),
        };
        let (handle, _) = service::start(settings).await.unwrap();
        let quotas = Quotas::new(store, OwnerLimits { bytes: 0, files: 1000 }, metrics);
        let references = Arc::new(References::new(handle, contents.clone(), quotas));
        Self { _folder: folder, contents, references }
    }

    /// A content that nobody has asked for.
    fn put(&self, bytes: &[u8]) -> ContentHash {
        crate::contents::tests::put(&self.contents, bytes)
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
        self.create_for("", spec, ties).await
    }

    async fn create_for(&self, owner: &str, spec: JobSpec, ties: Ties) -> JobId {
        let id = JobId::new();
        let queue = Arc::new(QueueSpec { owner: owner.to_owned(), ..QueueSpec::default() });
        let new = NewJob { queue, ..new_job(id, Arc::new(spec)) };
        self.references.create_job(new, ties).await.unwrap();
        id
    }

    /// How many files an owner has.
    async fn files(&self, owner: &str) -> u64 {
        self.references.quotas.usage(owner).await.unwrap().unwrap().0.files
    }

    async fn sweep(&self, now: SystemTime) {
        self.references.sweep(now).await.unwrap();
    }

    /// An ended job that lists these contents as its files.
    async fn ended_with(&self, files: &[ContentHash]) -> JobId {
        let id = self.create(spec("/images"), Ties::default()).await;
        for hash in files {
            let record = ArtifactRecord { hash: *hash, size: 1, ..file(id, &hash.to_string(), b"", None) };
            let claim = self.references.hold(*hash).await;
            self.references.keep(record, claim).await.unwrap();
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
    let fixture = Arc::new(Fixture::new().await);
    let mut made = 0;
    for round in 0..100_u64 {
        let [manifest, picture] = fixture.put_images(&format!("picture {round}"));
        let ended = fixture.ended_with(&[manifest, picture]).await;
        // 1. Someone makes a job of the images; in every third round the call breaks off.
        let creating = tokio::spawn({
            let fixture = fixture.clone();
            async move {
                rest(round % 7).await;
                let mut ties = Ties::default();
                let checked =
                    fixture.references.check_manifest(&mut ties, "data.images", &manifest.uri()).await;
                rest(round % 5).await;
                if checked.is_ok() {
                    fixture.create(spec(&manifest.uri()), ties).await;
                }
            }
        });
        // 2. The job that had them is deleted, and old contents are swept, two days later.
        let deleting = tokio::spawn({
            let fixture = fixture.clone();
            async move {
                rest(round % 11).await;
                fixture.references.delete_job(ended).await.unwrap();
            }
        });
        let sweeping = tokio::spawn({
            let fixture = fixture.clone();
            async move {
                rest(round % 3).await;
                fixture.references.sweep(SystemTime::now() + 2 * DAY).await.unwrap();
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
        while !fixture.references.claims.is_idle() {
            tokio::task::yield_now().await;
        }
        let filter = JobFilter::default();
        let newest = JobQuery { filter, order: JobOrder::Creation, descending: true, after: None, limit: 1 };
        let jobs = fixture.references.handle.store().list_jobs(&newest).await.unwrap();
        if jobs.first().is_some_and(|job| job.spec.textual_inversion().unwrap().data.images == manifest.uri())
        {
            made += 1;
            assert!(fixture.is_here(manifest) && fixture.is_here(picture), "round {round}");
        }
        fixture.references.sweep(SystemTime::now() + 2 * DAY).await.unwrap();
        let is_made = jobs
            .first()
            .is_some_and(|job| job.spec.textual_inversion().unwrap().data.images == manifest.uri());
        assert_eq!([fixture.is_here(manifest), fixture.is_here(picture)], [is_made; 2], "round {round}");
    }
    assert!(made > 0, "no round made its job");
}

#[tokio::test]
async fn what_is_asked_for_again_stays_for_another_day() {
    let fixture = Fixture::new().await;
    let [asked, idle] = [fixture.put(b"asked"), fixture.put(b"idle")];
    fixture.contents.touch(&asked).unwrap();
    fixture.references.sweep(SystemTime::now()).await.unwrap();
    assert_eq!([fixture.is_here(asked), fixture.is_here(idle)], [true, false]);
    // Also when the job goes that had it.
    let ended = fixture.ended_with(&[asked]).await;
    fixture.references.delete_job(ended).await.unwrap();
    assert!(fixture.is_here(asked));
    fixture.references.sweep(SystemTime::now() + 2 * DAY).await.unwrap();
    assert!(!fixture.is_here(asked));
}

#[tokio::test]
async fn what_somebody_ties_to_a_job_stays_though_nobody_wants_it_yet() {
    let fixture = Fixture::new().await;
    let hash = fixture.put(b"content");
    let claim = fixture.references.hold(hash).await;
    fixture.references.sweep(SystemTime::now() + 2 * DAY).await.unwrap();
    assert!(fixture.is_here(hash));
    drop(claim);
    fixture.references.sweep(SystemTime::now() + 2 * DAY).await.unwrap();
    assert!(!fixture.is_here(hash));
}

#[tokio::test]
async fn manifests_of_an_older_version_are_read_before_anything_goes() {
    let fixture = Fixture::new().await;
    let [manifest, picture] = fixture.put_images("picture");
    // As after an upgrade: the job is there, and nobody has told the store what its manifest names.
    fixture.create(spec(&manifest.uri()), Ties::default()).await;
    let store = fixture.references.handle.store();
    assert_eq!(store.unread_manifests(None, 9).await.unwrap(), [manifest]);
    fixture.references.sweep(SystemTime::now() + 2 * DAY).await.unwrap();
    assert!(store.unread_manifests(None, 9).await.unwrap().is_empty());
    assert!(fixture.is_here(manifest) && fixture.is_here(picture));
}

#[tokio::test]
async fn nothing_goes_while_a_list_of_images_is_missing_and_what_a_job_misses_stays_on_its_owners_account() {
    let fixture = Fixture::new().await;
    let [manifest, picture] = fixture.put_images("picture");
    for hash in [manifest, picture] {
        fixture.references.quotas.upload("ada", (hash, 1)).await.unwrap();
    }
    fixture.create_for("ada", spec(&manifest.uri()), Ties::default()).await;
    // Its disk is not there.
    fixture.contents.remove(&manifest).unwrap();
    let later = SystemTime::now() + 2 * DAY;
    fixture.sweep(later).await;
    assert!(fixture.is_here(picture), "nobody knows whether it is wanted");
    assert_eq!(fixture.files("ada").await, 2);
    // It is there again, and then the picture is not.
    fixture.put_images("picture");
    fixture.sweep(later).await;
    fixture.contents.remove(&picture).unwrap();
    fixture.sweep(later).await;
    assert_eq!(fixture.files("ada").await, 2);
    assert!(fixture.is_here(manifest));
}

#[tokio::test]
async fn what_a_job_lets_go_of_is_kept_but_what_a_rank_replaced() {
    let fixture = Fixture::new().await;
    let [deleted, unwanted, replaced] =
        [fixture.put(b"deleted"), fixture.put(b"unwanted"), fixture.put(b"replaced")];
    let ended = fixture.ended_with(&[deleted]).await;
    fixture.references.delete_job(ended).await.unwrap();
    fixture.references.let_go(&[replaced], Way::ForGood, SystemTime::now()).await.unwrap();
    fixture.sweep(SystemTime::now()).await;
    assert_eq!([deleted, unwanted, replaced].map(|hash| fixture.is_here(hash)), [false; 3]);
    let back = [deleted, unwanted, replaced].map(|hash| fixture.contents.take_back(&hash).unwrap());
    assert_eq!(back, [true, true, false]);
}

#[tokio::test]
async fn what_an_owner_has_counts_until_it_is_gone_or_anothers_alone() {
    let fixture = Fixture::new().await;
    let quotas = &fixture.references.quotas;
    let (now, later) = (SystemTime::now(), SystemTime::now() + 2 * DAY);
    let [manifest, picture] = fixture.put_images("picture");
    let loose = fixture.put(b"loose");
    for hash in [manifest, picture, loose] {
        fixture.contents.touch(&hash).unwrap();
        quotas.upload("ada", (hash, 1)).await.unwrap();
    }
    // 1. One that broke off counts as long as its part is here; one that never came does not.
    let (part, absent) = (ContentHash::of(b"part"), ContentHash::of(b"absent"));
    let mut upload = fixture.contents.upload(part, 4, 0).unwrap();
    upload.write(b"pa").unwrap();
    upload.close().unwrap();
    quotas.upload("ada", (part, 4)).await.unwrap();
    quotas.upload("ada", (absent, 4)).await.unwrap();
    assert_eq!(fixture.files("ada").await, 5);
    // As long as somebody holds it, it may be about to come.
    let claim = fixture.references.hold(absent).await;
    fixture.sweep(now).await;
    assert_eq!(fixture.files("ada").await, 5);
    drop(claim);
    fixture.sweep(now).await;
    assert_eq!(fixture.files("ada").await, 4);
    // 2. Somebody who makes a job of contents has them too.
    let mut ties = Ties::default();
    fixture.references.check_manifest(&mut ties, "data.images", &manifest.uri()).await.unwrap();
    let his = fixture.create_for("bob", spec(&manifest.uri()), ties).await;
    assert_eq!((fixture.files("ada").await, fixture.files("bob").await), (4, 2));
    // 3. What was used in the last day stays everybody's who had it; later it is of those whose jobs want it.
    fixture.sweep(now).await;
    assert_eq!((fixture.files("ada").await, fixture.files("bob").await), (4, 2));
    fixture.sweep(later).await;
    assert_eq!((fixture.files("ada").await, fixture.files("bob").await), (0, 2));
    assert!(!fixture.is_here(loose) && fixture.is_here(picture));
    // 4. It goes with the job.
    fixture.references.handle.cancel_job(his, String::new()).await.unwrap();
    fixture.references.delete_job(his).await.unwrap();
    fixture.sweep(later).await;
    assert_eq!(fixture.files("bob").await, 0);
}

#[tokio::test]
async fn a_checkpoint_is_damaged_wherever_a_bit_of_it_is_another_one() {
    let fixture =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/0.1.0/plain/checkpoint-6.safetensors");
    let bytes = std::fs::read(fixture).unwrap();
    let fixture = Fixture::new().await;
    let hash = fixture.put(&bytes);
    assert_eq!(fixture.references.check_whole(hash).await, Ok(()));
    let file = {
        let mut folders = vec![fixture._folder.path().to_owned()];
        std::iter::from_fn(|| {
            let entries = std::fs::read_dir(folders.pop()?).unwrap().flatten().map(|entry| entry.path());
            let (more, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
            folders.extend(more);
            Some(files)
        })
        .flatten()
        .find(|path| path.ends_with(hash.to_string()) || path.to_string_lossy().contains(&hash.to_string()))
        .unwrap()
    };
    for byte in [0, 100, bytes.len() / 2, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[byte] ^= 1;
        std::fs::write(&file, damaged).unwrap();
        assert!(fixture.references.check_whole(hash).await.is_err(), "byte {byte}");
    }
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    assert!(fixture.references.check_whole(hash).await.is_err(), "cut short");
}

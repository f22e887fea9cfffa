//! Which contents a store gives free, and how it forgets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringtune_shared::ids::{ContentHash, JobId};

use super::{event, queued_job, step};
use crate::core::{ArtifactRecord, Job, Time, Write};
use crate::store::Store;

/// The greatest number of a job that the suite made and deleted again.
pub(super) const LAST_NUMBER: u64 = 13;

fn content(name: &str) -> ContentHash {
    ContentHash::of(name.as_bytes())
}

fn file(job: JobId, name: &str, hash: ContentHash) -> Write {
    let (name, media_type) = (name.to_owned(), String::new());
    Write::PutArtifact(ArtifactRecord { job, name, hash, size: 1, media_type, created: Time(1), epoch: None })
}

/// A queued job with these images and this checkpoint.
fn job_of(number: u64, images: Option<ContentHash>, checkpoint: Option<ContentHash>) -> Arc<Job> {
    let mut job = (*queued_job(number)).clone();
    let mut spec = (*job.spec).clone();
    if let Some(work) = spec.textual_inversion_mut() {
        work.data.images = images.map_or_else(|| "/images".to_owned(), |hash| hash.uri());
        work.train.resume_from_checkpoint = checkpoint.map(|hash| hash.uri()).unwrap_or_default();
    }
    job.spec = Arc::new(spec);
    Arc::new(job)
}

fn sorted(mut contents: Vec<ContentHash>) -> Vec<ContentHash> {
    contents.sort_unstable();
    contents
}

pub(super) async fn contents_are_wanted_as_long_as_a_job_names_them(store: &dyn Store) {
    let [manifest, image, checkpoint, file_of_it] = ["manifest", "image", "checkpoint", "file"].map(content);
    let all = [manifest, image, checkpoint, file_of_it];
    assert_eq!(store.unwanted(&all).await.expect("unwanted"), sorted(all.to_vec()));

    // 1. A job names a manifest that nobody has read, as after an upgrade: nothing is free.
    let first = job_of(10, Some(manifest), Some(checkpoint));
    store.commit(&[Write::InsertJob(first.clone())]).await.expect("insert");
    assert_eq!(store.unread_manifests(None, 10).await.expect("unread"), [manifest]);
    assert!(store.unwanted(&all).await.expect("unwanted").is_empty());
    // 2. Once it is read, what it names is wanted too.
    store.put_manifest(manifest, &[image]).await.expect("manifest");
    store.put_manifest(manifest, &[image]).await.expect("manifest again");
    assert!(store.unread_manifests(None, 10).await.expect("unread").is_empty());
    assert_eq!(store.unwanted(&all).await.expect("unwanted"), [file_of_it]);
    // 3. A job's own file goes with it, but not what another job names.
    let second = job_of(11, None, None);
    let files = [("a", file_of_it), ("b", image), ("c", checkpoint), ("d", file_of_it)];
    let mut writes = vec![Write::InsertJob(second.clone())];
    writes.extend(files.map(|(name, hash)| file(second.id, name, hash)));
    store.commit(&writes).await.expect("files");
    assert!(store.unwanted(&all).await.expect("unwanted").is_empty());
    assert_eq!(store.delete_job(second.id).await.expect("delete"), [file_of_it]);
    // 4. A manifest that a job names is not forgotten; it is forgotten with the last one.
    store.forget_contents(&[manifest]).await.expect("forget");
    assert_eq!(store.unwanted(&all).await.expect("unwanted"), [file_of_it]);
    assert!(store.delete_job(first.id).await.expect("delete").is_empty());
    assert_eq!(store.unwanted(&all).await.expect("unwanted"), sorted(all.to_vec()));
    store.forget_contents(&all).await.expect("forget");
    assert!(store.unread_manifests(None, 10).await.expect("unread").is_empty());
    // 5. One that nobody could read keeps nothing back once no job names it, and pages begin behind the one before.
    let [one, other] = ["one", "other"].map(content);
    let jobs = [job_of(12, Some(one), None), job_of(13, Some(other), None)];
    for job in &jobs {
        store.commit(&[Write::InsertJob(job.clone())]).await.expect("insert");
    }
    let both = sorted(vec![one, other]);
    assert_eq!(store.unread_manifests(None, 1).await.expect("unread"), both[..1]);
    assert_eq!(store.unread_manifests(Some(both[0]), 9).await.expect("unread"), both[1..]);
    assert!(store.unwanted(&all).await.expect("unwanted").is_empty());
    for job in jobs {
        store.delete_job(job.id).await.expect("delete");
    }
    assert_eq!(store.unwanted(&all).await.expect("unwanted"), sorted(all.to_vec()));
}

pub(super) async fn a_deleted_jobs_history_goes_in_chunks(store: &dyn Store) {
    while store.purge(100).await.expect("purge") {}
    let job = queued_job(9);
    let mut writes = vec![Write::InsertJob(job.clone())];
    writes.extend((1..=5).map(|sequence| Write::AppendEvent(event(job.id, sequence))));
    writes.extend((1..=3).map(|number| Write::AppendStep(job.id, step(number))));
    store.commit(&writes).await.expect("history");
    assert!(!store.purge(100).await.expect("purge"), "a job that is there lost its history");
    store.delete_job(job.id).await.expect("delete");
    assert_eq!(store.job(job.id).await.expect("job"), None);
    assert!(store.purge(2).await.expect("purge"));
    let left = store.events(job.id, 0, 10).await.expect("events");
    assert_eq!(left.len(), 3, "more than asked for went at once");
    while store.purge(2).await.expect("purge") {}
    assert!(store.events(job.id, 0, 10).await.expect("events").is_empty());
    assert!(store.steps(job.id, 0, 10).await.expect("steps").is_empty());
}

/// A small generator (splitmix64), so that a seed gives one history.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % (bound as u64)).unwrap_or(0)
    }
}

/// What a job names, as plainly as can be.
#[derive(Default)]
struct Named {
    images: Option<ContentHash>,
    checkpoint: Option<ContentHash>,
    files: BTreeMap<String, ContentHash>,
}

pub(super) async fn any_history_leaves_what_a_model_says(store: &dyn Store, seed: u64) {
    let mut random = Random(seed);
    // The last three are manifests too, each of two of the others.
    let all: Vec<ContentHash> = (0..8).map(|index| content(&format!("content {index}"))).collect();
    let names = |manifest: ContentHash| -> Vec<ContentHash> {
        let index = all.iter().position(|one| *one == manifest).unwrap_or(0);
        if index < 5 { Vec::new() } else { vec![all[index - 5], all[index - 4]] }
    };
    let mut jobs: BTreeMap<JobId, Named> = BTreeMap::new();
    for turn in 0..150 {
        let pick = random.below(all.len());
        let any = jobs.keys().copied().nth(random.below(jobs.len().max(1)));
        match (random.below(4), any) {
            (0, _) | (_, None) => {
                let images = (pick >= 5).then(|| all[pick]);
                let checkpoint = (random.below(2) == 0).then(|| all[random.below(5)]);
                if let Some(manifest) = images {
                    store.put_manifest(manifest, &names(manifest)).await.expect("manifest");
                }
                let job = job_of(100 + turn, images, checkpoint);
                store.commit(&[Write::InsertJob(job.clone())]).await.expect("insert");
                jobs.insert(job.id, Named { images, checkpoint, files: BTreeMap::new() });
            }
            (1, Some(job)) => {
                let name = format!("file {}", random.below(3));
                store.commit(&[file(job, &name, all[pick])]).await.expect("file");
                jobs.entry(job).or_default().files.insert(name, all[pick]);
            }
            (2, Some(job)) => {
                let name = format!("file {}", random.below(3));
                store.commit(&[Write::DropArtifact(job, name.clone())]).await.expect("drop");
                jobs.entry(job).or_default().files.remove(&name);
            }
            (_, Some(job)) => {
                let gone = jobs.remove(&job).unwrap_or_default();
                let wanted = wanted(&jobs, names);
                let free: BTreeSet<ContentHash> =
                    gone.files.values().copied().filter(|hash| !wanted.contains(hash)).collect();
                let deleted = store.delete_job(job).await.expect("delete");
                assert_eq!(deleted, Vec::from_iter(free), "seed {seed}, turn {turn}");
                store.forget_contents(&deleted).await.expect("forget");
            }
        }
        let wanted = wanted(&jobs, names);
        let unwanted: BTreeSet<ContentHash> =
            all.iter().copied().filter(|hash| !wanted.contains(hash)).collect();
        let found = store.unwanted(&all).await.expect("unwanted");
        assert_eq!(found, Vec::from_iter(unwanted), "seed {seed}, turn {turn}");
    }
    for job in jobs.into_keys() {
        store.delete_job(job).await.expect("delete");
    }
    assert_eq!(store.unwanted(&all).await.expect("unwanted"), sorted(all), "seed {seed}");
}

fn wanted(
    jobs: &BTreeMap<JobId, Named>,
    names: impl Fn(ContentHash) -> Vec<ContentHash>,
) -> BTreeSet<ContentHash> {
    let mut wanted = BTreeSet::new();
    for job in jobs.values() {
        wanted.extend(job.files.values());
        wanted.extend(job.checkpoint);
        wanted.extend(job.images);
        wanted.extend(job.images.into_iter().flat_map(&names));
    }
    wanted
}

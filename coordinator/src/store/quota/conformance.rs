//! What every [`QuotaStore`] that is also a [`Store`] must do. Panics where one does not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringtune_shared::ids::{ContentHash, JobId};
use ringtune_shared::job::QueueSpec;

use super::{QuotaStore, Sized};
use crate::core::{ArtifactRecord, Job, OwnerLimits, Scarce, Time, Usage, Write};
use crate::store::Store;
use crate::store::conformance::queued_job;

const PLENTY: OwnerLimits = OwnerLimits { bytes: 0, files: 1_000_000 };

fn content(name: &str) -> ContentHash {
    ContentHash::of(name.as_bytes())
}

fn sized(name: &str, size: u64) -> Sized {
    (content(name), size)
}

/// Files and bytes of an owner.
async fn used(store: &dyn QuotaStore, owner: &str) -> (u64, u64) {
    let Usage { files, bytes } = store.usage(owner).await.expect("usage");
    (files, bytes)
}

async fn own(store: &dyn QuotaStore, owner: &str, contents: &[Sized]) {
    store.own(owner, contents, PLENTY).await.expect("own").expect("there is room");
}

/// On an empty store.
pub(crate) async fn run(store: &(impl Store + QuotaStore)) {
    contents_count_once_for_each_owner(store).await;
    what_is_over_a_limit_leaves_nothing(store).await;
    all_that_is_owned_is_found_in_portions(store).await;
    what_an_owners_jobs_want_stays_theirs(store).await;
    sums_are_those_of_any_history(store).await;
}

async fn contents_count_once_for_each_owner(store: &dyn QuotaStore) {
    assert_eq!(used(store, "ada").await, (0, 0));
    own(store, "ada", &[sized("a", 10), sized("b", 5), sized("empty", 0)]).await;
    own(store, "bob", &[sized("a", 10)]).await;
    assert_eq!((used(store, "ada").await, used(store, "bob").await), ((3, 15), (1, 10)));
    // Again; with more bytes than were announced before; with fewer.
    let again = [sized("a", 10), sized("b", 8), sized("empty", 0), sized("c", 1)];
    assert_eq!(store.more("ada", &again).await.expect("more"), Usage { files: 1, bytes: 4 });
    assert_eq!(store.more("bob", &again).await.expect("more"), Usage { files: 3, bytes: 9 });
    own(store, "ada", &again).await;
    own(store, "ada", &[sized("b", 1)]).await;
    assert_eq!((used(store, "ada").await, used(store, "bob").await), ((4, 19), (1, 10)));
    store.disown(&[content("a"), content("nobody's")]).await.expect("disown");
    store.disown(&[]).await.expect("disown nothing");
    assert_eq!((used(store, "ada").await, used(store, "bob").await), ((3, 9), (0, 0)));
    store.disown(&["b", "c", "empty"].map(content)).await.expect("disown");
    assert_eq!(used(store, "ada").await, (0, 0));
}

async fn what_is_over_a_limit_leaves_nothing(store: &dyn QuotaStore) {
    let limits = OwnerLimits { bytes: 20, files: 2 };
    let own = async |contents: &[Sized]| {
        let outcome = store.own("ada", contents, limits).await.expect("own");
        outcome.map_err(|over| (over.what, over.used, over.after, over.limit))
    };
    assert_eq!(own(&[sized("a", 12), sized("b", 9)]).await, Err((Scarce::Bytes, 0, 21, 20)));
    assert_eq!(used(store, "ada").await, (0, 0), "half of what was refused is there");
    assert_eq!(own(&[sized("a", 12)]).await, Ok(()));
    assert_eq!(own(&[sized("b", 9)]).await, Err((Scarce::Bytes, 12, 21, 20)));
    assert_eq!(own(&[sized("a", 21)]).await, Err((Scarce::Bytes, 12, 21, 20)));
    assert_eq!(own(&[sized("b", 8)]).await, Ok(()));
    assert_eq!(own(&[sized("c", 0)]).await, Err((Scarce::Files, 2, 3, 2)));
    // What is there costs nothing, also where there is too much.
    let none = OwnerLimits { bytes: 1, files: 1 };
    assert_eq!(store.own("ada", &[sized("a", 12), sized("b", 1)], none).await.expect("own"), Ok(()));
    assert_eq!(used(store, "ada").await, (2, 20));
    store.disown(&[content("a"), content("b")]).await.expect("disown");
}

async fn all_that_is_owned_is_found_in_portions(store: &dyn QuotaStore) {
    let mut all: Vec<ContentHash> = ["a", "b", "c", "d", "e"].map(content).to_vec();
    for owner in ["ada", "bob"] {
        own(store, owner, &all.iter().map(|hash| (*hash, 1)).collect::<Vec<_>>()).await;
    }
    all.sort_unstable();
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let portion = store.owned(after, 2).await.expect("owned");
        assert!(portion.len() <= 2);
        let Some(last) = portion.last() else { break };
        after = Some(*last);
        found.extend(portion);
    }
    assert_eq!(found, all);
    store.disown(&all).await.expect("disown");
    assert!(store.owned(None, 2).await.expect("owned").is_empty());
}

/// A queued job of an owner with these images.
fn job_of(owner: &str, number: u64, images: ContentHash) -> Arc<Job> {
    let mut job = (*queued_job(number)).clone();
    let mut spec = (*job.spec).clone();
    if let Some(work) = spec.textual_inversion_mut() {
        work.data.images = images.uri();
    }
    job.spec = Arc::new(spec);
    job.queue = Arc::new(QueueSpec { owner: owner.to_owned(), ..QueueSpec::default() });
    Arc::new(job)
}

fn file(job: JobId, hash: ContentHash) -> Write {
    let (name, media_type) = ("a file".to_owned(), String::new());
    Write::PutArtifact(ArtifactRecord { job, name, hash, size: 1, media_type, created: Time(1), epoch: None })
}

async fn what_an_owners_jobs_want_stays_theirs(store: &(impl Store + QuotaStore)) {
    let all @ [manifest, image, artifact] = ["manifest", "image", "artifact"].map(content);
    let (hers, his) = (job_of("ada", 501, manifest), job_of("bob", 502, manifest));
    for owner in ["ada", "bob", "eve"] {
        own(store, owner, &all.map(|hash| (hash, 1))).await;
    }
    let files = async || (used(store, "ada").await.0, used(store, "bob").await.0, used(store, "eve").await.0);
    store.commit(&[Write::InsertJob(hers.clone()), file(hers.id, artifact)]).await.expect("insert");
    // Nobody knows what the manifest names.
    store.disown_unwanted(&all).await.expect("disown");
    assert_eq!(files().await, (3, 3, 3));
    store.put_manifest(manifest, &[image]).await.expect("manifest");
    store.disown_unwanted(&[image]).await.expect("disown");
    assert_eq!(files().await, (3, 2, 2), "of what was asked about");
    store.disown_unwanted(&all).await.expect("disown");
    assert_eq!(files().await, (3, 0, 0));
    // Who makes a job of them has them.
    own(store, "bob", &all.map(|hash| (hash, 1))).await;
    store.commit(&[Write::InsertJob(his.clone())]).await.expect("insert");
    store.disown_unwanted(&all).await.expect("disown");
    assert_eq!(files().await, (3, 2, 0));
    store.delete_job(hers.id).await.expect("delete");
    store.disown_unwanted(&all).await.expect("disown");
    assert_eq!(files().await, (0, 2, 0));
    store.delete_job(his.id).await.expect("delete");
    store.disown_unwanted(&all).await.expect("disown");
    assert_eq!(files().await, (0, 0, 0));
}

/// However contents come and go, the sums are those of what is there.
async fn sums_are_those_of_any_history(store: &dyn QuotaStore) {
    let mut there: BTreeMap<u64, u64> = BTreeMap::new();
    let mut state = 7_u64;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let hash = |number: u64| content(&format!("content {number}"));
    for turn in 0..200 {
        let picked: BTreeSet<u64> = (0..below(100)).map(|_| below(120)).collect();
        if below(3) == 0 {
            store
                .disown(&picked.iter().map(|number| hash(*number)).collect::<Vec<_>>())
                .await
                .expect("disown");
            there.retain(|number, _| !picked.contains(number));
        } else {
            let contents: Vec<(u64, u64)> = picked.iter().map(|number| (*number, below(50))).collect();
            let named: Vec<Sized> = contents.iter().map(|(number, size)| (hash(*number), *size)).collect();
            own(store, "ada", &named).await;
            for (number, size) in contents {
                let largest = there.entry(number).or_default();
                *largest = (*largest).max(size);
            }
        }
        let expected = (there.len() as u64, there.values().sum());
        assert_eq!(used(store, "ada").await, expected, "turn {turn}");
    }
    let all: Vec<ContentHash> = there.keys().map(|number| hash(*number)).collect();
    store.disown(&all).await.expect("disown");
    assert_eq!(used(store, "ada").await, (0, 0));
}

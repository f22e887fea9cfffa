//! What every [`Store`] must do, as one suite for all of them. Panics where one does not.

mod contents;

use std::collections::BTreeSet;
use std::sync::Arc;

use ringtune_shared::checkpoint::{Numerics, Resumed};
use ringtune_shared::ids::{ContentHash, Epoch, JobId, SweepId, WorkerId};
use ringtune_shared::job::{
    JobDraft, JobSpec, MixedPrecision, ModelDraft, QueueSpec, Rung, pictures::DataDraft,
    pictures::concepts::WordDraft,
};
use ringtune_shared::trace::TraceContext;

use super::lists::{ArtifactQuery, JobFilter, JobOrder, JobQuery};
use super::{SqliteStore, Store};
use crate::core::testing::{file, step_record};
use crate::core::{
    Account, AnyFloat, ArtifactRecord, BrokenLink, Checkpoint, EventBody, Failure, Goal, Job, JobEvent,
    JobState, Joiner, Links, LogLevel, Member, Phase, Pin, Reforming, RequestKey, Ring, StepRecord, Stop,
    SweepPlace, Time, Validation, Write,
};

/// What [`run`] left in the store.
#[derive(Debug)]
pub(crate) struct Written {
    /// Oldest first.
    pub(crate) jobs: Vec<Job>,
}

/// A new database, and its folder, with which it goes.
pub(crate) async fn temporary() -> (tempfile::TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("coordinator.db")).await.unwrap();
    (folder, store)
}

/// One of two uploaded image folders.
fn images(number: u64) -> Option<String> {
    Some(ContentHash::of((number % 2).to_string().as_bytes()).uri())
}

/// A small job as CreateJob would make it, without its first event.
pub(crate) fn queued_job(number: u64) -> Arc<Job> {
    let spec = JobSpec::from_draft(JobDraft {
        kind: Some("textual_inversion".to_owned()),
        name: Some(format!("job {number}")),
        model: ModelDraft { base: Some("/models/sd".to_owned()), ..ModelDraft::default() },
        data: DataDraft { images: images(number), ..DataDraft::default() },
        word: WordDraft {
            placeholder_token: Some("<star>".to_owned()),
            initializer_token: Some("star".to_owned()),
            ..WordDraft::default()
        },
        ..JobDraft::default()
    });
    Arc::new(Job {
        id: JobId::new(),
        number,
        spec: Arc::new(spec.expect("a valid spec")),
        queue: Arc::default(),
        request: None,
        resumed: None,
        state: JobState::Queued,
        reason: String::new(),
        failure: None,
        created: Time(1_700_000_000_123),
        updated: Time(1_700_000_000_123),
        started: None,
        ended: None,
        step: 0,
        loss: None,
        validation: None,
        sweep: None,
        last_sequence: 0,
        artifacts: 0,
        rings: 0,
        tries: 0,
        errors: 0,
        ring: None,
        pin: None,
        stop: None,
        checkpoint: None,
        verification: None,
        trace: None,
        refused_by: BTreeSet::new(),
        links: Links::default(),
        refusals: 0,
        waits_behind: false,
        wait: None,
        orders: Arc::default(),
        preempted: false,
        waits_since: Time::default(),
        overdue: false,
    })
}

/// Writes and reads everything that a store has, on an empty store.
pub(crate) async fn run(store: &dyn Store) -> Written {
    let first = jobs_are_kept(store).await;
    accounts_are_kept_and_forgotten(store).await;
    events_and_steps_are_kept_in_order(store, first.id).await;
    a_commit_is_all_or_nothing(store, first.id).await;
    let other = artifacts_outlive_only_their_jobs(store, first.id).await;
    contents::contents_are_wanted_as_long_as_a_job_names_them(store).await;
    contents::a_deleted_jobs_history_goes_in_chunks(store).await;
    let jobs = vec![first, other];
    let written = Written { jobs };
    check_written(store, &written).await;
    // Also in any other order of whatever can happen to contents. Another seed: RINGTUNE_TEST_SEED.
    let seed = std::env::var("RINGTUNE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    contents::any_history_leaves_what_a_model_says(store, seed).await;
    written
}

/// Checks that what [`run`] left is there.
pub(crate) async fn check_written(store: &dyn Store, written: &Written) {
    for job in &written.jobs {
        assert_eq!(store.job(job.id).await.expect("job").as_ref(), Some(job));
    }
    assert_eq!(store.list_jobs(&all_jobs()).await.expect("jobs"), written.jobs);
    let recovered = store.recover().await.expect("recover");
    let open = written.jobs.iter().filter(|job| !job.state.is_terminal()).count();
    assert_eq!(recovered.jobs.len(), open);
    assert!(recovered.last_number >= contents::LAST_NUMBER, "a deleted job's number came back");
}

async fn jobs_are_kept(store: &dyn Store) -> Job {
    let mut job = (*queued_job(1)).clone();
    let fingerprint = ContentHash::of(b"spec");
    job.request = Some(RequestKey { id: "request".to_owned(), fingerprint });
    let numerics = Numerics { class: "class".to_owned(), threads_per_rank: 2, precision: "no".to_owned() };
    job.resumed = Some(Resumed { step: 6, numerics });
    let mut spec = (*job.spec).clone();
    if let Some(resume_from) = spec.resume_from_mut() {
        *resume_from = fingerprint.uri();
    }
    job.spec = Arc::new(spec);
    job.trace = Some(TraceContext::root());
    let labels = [("team".to_owned(), "red".to_owned())].into();
    job.queue = Arc::new(QueueSpec { owner: "ada".to_owned(), priority: 7, labels, ..QueueSpec::default() });
    let mut place = SweepPlace {
        sweep: SweepId::new(),
        point: 2,
        points: 3,
        settings: [("train.seed".to_owned(), "7".to_owned())].into(),
        rungs: vec![Rung { step: 6, keep: 2 }],
        passed: 0,
        scores: Vec::new(),
    };
    job.sweep = Some(Arc::new(place.clone()));
    store.commit(&[Write::InsertJob(Arc::new(job.clone()))]).await.expect("insert");
    assert_eq!(store.job(job.id).await.expect("job"), Some(job.clone()));
    assert_eq!(store.job(JobId::new()).await.expect("job"), None);
    let request = store.request("request").await.expect("request");
    assert_eq!(request, job.request.clone().map(|request| (job.id, request)));
    assert_eq!(store.request("other").await.expect("request"), None);

    job.state = JobState::Running;
    job.reason = "training".to_owned();
    job.started = Some(Time(5));
    job.step = 7;
    job.loss = Some(0.125);
    job.pin = Some(Arc::new(Pin {
        numerics_class: "class".to_owned(),
        threads_per_rank: 2,
        precision: MixedPrecision::Bf16,
        version: "0.2.0".to_owned(),
    }));
    job.stop = Some(Stop { goal: Goal::Cancelled { reason: "enough".to_owned() }, deadline: Time(9) });
    job.checkpoint = Some(Checkpoint { step: 6, epoch: Epoch(2), hash: fingerprint, recovery: true });
    job.updated = Time(12);
    job.failure = Some(Failure::WorkerLost);
    place.scores = vec![AnyFloat(0.5)];
    job.sweep = Some(Arc::new(place));
    (job.rings, job.tries, job.errors) = (3, 2, 1);
    let member = |gone| Member {
        worker: WorkerId::new(),
        incarnation: 4,
        address: "127.0.0.1:7080".to_owned(),
        host_name: "host".to_owned(),
        phase: Phase::default(),
        last_step: 0,
        reforms: true,
        gone,
        newcomer: gone,
        yields_to: gone.then(JobId::new),
        pause: None,
    };
    let members = vec![member(false), member(true)];
    let link = BrokenLink { workers: (members[0].worker, members[1].worker), times: 2 };
    job.ring = Some(Arc::new(Ring {
        formed: Time(4),
        started: true,
        joining: vec![Joiner { member: member(false), epoch: Epoch(2) }],
        reformed: 2,
        led: 1,
        pauses: true,
        reforming: Some(Reforming { since: Time(3), planned: false, spare_by: Some(Time(8)) }),
        fruitless: 1,
        link: Some(link),
        ..Ring::new(Epoch(3), members)
    }));
    store.commit(&[Write::UpdateJob(Arc::new(job.clone()))]).await.expect("update");
    assert_eq!(store.job(job.id).await.expect("job"), Some(job.clone()));

    (job.step, job.loss, job.last_sequence, job.artifacts, job.updated) = (8, None, 30, 2, Time(13));
    job.validation = Some(Validation { step: 8, loss: 0.25 });
    store.commit(&[Write::progress_of(&job)]).await.expect("update the progress");
    assert_eq!(store.job(job.id).await.expect("job"), Some(job.clone()));
    job
}

fn event(job: JobId, sequence: u64) -> JobEvent {
    JobEvent {
        job,
        sequence,
        time: Time(1),
        body: EventBody::note(LogLevel::Info, format!("event {sequence}")),
    }
}

/// A step as rank 0 reports it.
pub(crate) fn step(number: u64) -> StepRecord {
    StepRecord {
        epoch: Epoch(3),
        loss: 0.1,
        learning_rate: 1e-4,
        step_seconds: 1.0,
        compute_seconds: 0.5,
        exchange_seconds: 0.25,
        wait_seconds: 0.25,
        world_size: 2,
        ..step_record(number)
    }
}

/// What owners have used comes back to the last bit, the newest word of each.
async fn accounts_are_kept_and_forgotten(store: &dyn Store) {
    let account = |used| Account { used, as_of: Time(5), held: 0 };
    let set = |owner: &str, account| Write::SetAccount(owner.to_owned(), account);
    let writes =
        [set("ada", Some(account(1.0))), set("", Some(account(2.5))), set("ada", Some(account(0.1 + 0.2)))];
    store.commit(&writes).await.expect("accounts");
    store.commit(&[set("", None)]).await.expect("forget one");
    let recovered = store.recover().await.expect("recover").accounts;
    assert_eq!(recovered, [("ada".to_owned(), account(0.1 + 0.2))]);
}

async fn events_and_steps_are_kept_in_order(store: &dyn Store, job: JobId) {
    let mut writes: Vec<Write> = (1..=20).map(|sequence| Write::AppendEvent(event(job, sequence))).collect();
    writes.extend((1..=20).map(|number| Write::AppendStep(job, step(number))));
    store.commit(&writes).await.expect("append");
    let sequences = |events: Vec<JobEvent>| events.iter().map(|event| event.sequence).collect::<Vec<_>>();
    assert_eq!(sequences(store.events(job, 0, 3).await.expect("events")), [1, 2, 3]);
    assert_eq!(sequences(store.events(job, 18, 10).await.expect("events")), [19, 20]);
    assert_eq!(store.events(job, 4, 1).await.expect("events"), [event(job, 5)]);
    assert!(store.events(JobId::new(), 0, 10).await.expect("events").is_empty());
    assert_eq!(store.steps(job, 19, 10).await.expect("steps"), [step(20)]);
    assert_eq!(store.steps(job, 0, 2).await.expect("steps"), [step(1), step(2)]);
    // A step and its event, as the core writes them; its numbers come back to the last bit.
    let record = StepRecord { loss: f64::INFINITY, learning_rate: 0.1 + 0.2, ..step(21) };
    let happened = JobEvent { body: EventBody::Step(record), ..event(job, 21) };
    let writes = [Write::AppendStep(job, record), Write::AppendEvent(happened.clone())];
    store.commit(&writes).await.expect("a step");
    assert_eq!(store.events(job, 19, 10).await.expect("events"), [event(job, 20), happened]);
}

async fn a_commit_is_all_or_nothing(store: &dyn Store, job: JobId) {
    let twice = [Write::AppendEvent(event(job, 22)), Write::AppendEvent(event(job, 20))];
    assert!(store.commit(&twice).await.is_err(), "an event was stored twice");
    assert!(store.events(job, 21, 10).await.expect("events").is_empty(), "half a commit was kept");
    store.commit(&[]).await.expect("an empty commit");
    store.probe().await.expect("a probe");
}

/// All jobs, oldest first.
fn all_jobs() -> JobQuery {
    let filter = JobFilter::default();
    JobQuery { filter, order: JobOrder::Creation, descending: false, after: None, limit: 100 }
}

async fn artifacts(store: &dyn Store, job: JobId) -> Vec<ArtifactRecord> {
    let query = ArtifactQuery {
        job,
        name: None,
        media_type: None,
        by_time: false,
        descending: false,
        after: None,
        limit: 100,
    };
    store.list_artifacts(&query).await.expect("artifacts")
}

async fn artifacts_outlive_only_their_jobs(store: &dyn Store, first: JobId) -> Job {
    let (second, third) = (queued_job(2), queued_job(3));
    let artifact = |job: JobId, name: &str, content: &[u8]| ArtifactRecord {
        created: Time(3),
        ..file(job, name, content, None)
    };
    let (shared, replaced) = (artifact(third.id, "a", b"shared"), artifact(third.id, "b", b"new"));
    store
        .commit(&[
            Write::InsertJob(second.clone()),
            Write::InsertJob(third.clone()),
            Write::PutArtifact(artifact(first, "Z", b"shared")),
            Write::PutArtifact(shared.clone()),
            Write::PutArtifact(artifact(third.id, "b", b"old")),
            Write::PutArtifact(replaced.clone()),
        ])
        .await
        .expect("artifacts");
    assert_eq!(artifacts(store, third.id).await, [shared, replaced.clone()]);
    assert_eq!(store.artifact(third.id, "b").await.expect("one"), Some(replaced.clone()));
    assert_eq!(store.artifact(third.id, "c").await.expect("one"), None);
    let found = store.artifact_of_content(replaced.hash).await.expect("content");
    assert_eq!(found, Some(replaced.clone()));

    let last = Write::PutArtifact(artifact(third.id, "c", b"last"));
    let dropped = Write::DropArtifact(third.id, "c".to_owned());
    store.commit(&[last, dropped.clone(), dropped]).await.expect("drop an artifact, and again");
    assert_eq!(store.artifact(third.id, "c").await.expect("one"), None);

    // Which of them are checkpoints of jobs that have not ended is known after a start.
    let checkpoint = |name: &str, epoch: Option<u64>| ArtifactRecord {
        epoch: epoch.map(Epoch),
        ..artifact(third.id, name, name.as_bytes())
    };
    let kept = checkpoint("checkpoint-10.safetensors", Some(2));
    let point = checkpoint(".recovery-11.safetensors", Some(2));
    let writes = [
        Write::PutArtifact(point.clone()),
        Write::PutArtifact(kept.clone()),
        Write::PutArtifact(checkpoint("checkpoint-9.safetensors", None)),
        Write::PutArtifact(checkpoint("checkpoint-x.safetensors", Some(2))),
        Write::PutArtifact(checkpoint("learned_embeds.safetensors", Some(2))),
        Write::PutArtifact(checkpoint("checkpoint-8.safetensors", Some(2))),
        Write::DropArtifact(third.id, "checkpoint-8.safetensors".to_owned()),
    ];
    store.commit(&writes).await.expect("checkpoints");
    assert_eq!(store.artifact(third.id, &kept.name).await.expect("one"), Some(kept.clone()));
    let mut recovered = store.recover().await.expect("recover").checkpoints;
    recovered.sort_by_key(|(_, one)| one.step);
    let known = [(10, &kept), (11, &point)].map(|(step, file)| {
        (third.id, Checkpoint { step, epoch: Epoch(2), hash: file.hash, recovery: step == 11 })
    });
    assert_eq!(recovered, known);
    // What is there for the loss of a ring alone is in no list.
    let query = ArtifactQuery {
        job: third.id,
        name: None,
        media_type: None,
        by_time: false,
        descending: false,
        after: None,
        limit: 100,
    };
    let listed = store.list_artifacts(&query).await.expect("list");
    assert!(listed.iter().any(|file| file.name == kept.name));
    assert!(listed.iter().all(|file| file.name != point.name), "{listed:?}");
    for write in writes {
        if let Write::PutArtifact(file) = write {
            store.commit(&[Write::DropArtifact(file.job, file.name)]).await.expect("drop");
        }
    }

    assert_eq!(store.count_jobs().await.expect("counts")[&JobState::Queued], 2);

    // Nothing is free as long as nobody knows what the manifests name.
    assert!(store.unwanted(&[ContentHash::of(b"nobody's")]).await.expect("unwanted").is_empty());
    for manifest in store.unread_manifests(None, 10).await.expect("unread") {
        store.put_manifest(manifest, &[]).await.expect("manifest");
    }
    // The content that job 1 also has is not free.
    assert_eq!(store.delete_job(third.id).await.expect("delete"), [replaced.hash]);
    assert_eq!(store.job(third.id).await.expect("job"), None);
    assert!(artifacts(store, third.id).await.is_empty());
    assert!(store.delete_job(third.id).await.expect("delete again").is_empty());
    (*second).clone()
}

//! The SQLite store: reopened, of older schemas, full, damaged.

use std::sync::Arc;

use super::rows::to_json;
use super::schema::SCHEMAS;
use super::*;
use ringtune_shared::job::MixedPrecision;

use crate::core::{EventBody, Goal, LogLevel, Pin, StepRecord, Stop, Time, Usage};
use crate::store::access::{AccessStore as _, conformance as access_conformance};
use crate::store::conformance;
use crate::store::lists::{JobFilter, JobOrder};
use crate::store::quota::QuotaStore as _;

#[tokio::test]
async fn conforms_and_survives_reopening() {
    let (folder, store) = conformance::temporary().await;
    let path = folder.path().join("coordinator.db");
    let written = conformance::run(&store).await;
    store.close().await;
    let store = SqliteStore::open(&path).await.unwrap();
    conformance::check_written(&store, &written).await;
    let store = SqliteStore::open(&folder.path().join("lists.db")).await.unwrap();
    crate::store::lists::conformance::run(&store).await;
    crate::store::access::conformance::run(&store).await;
    let store = SqliteStore::open(&folder.path().join("quota.db")).await.unwrap();
    crate::store::quota::conformance::run(&store).await;
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let (folder, store) = conformance::temporary().await;
    let path = folder.path().join("coordinator.db");
    sqlx::raw_sql("PRAGMA user_version = 99").execute(&store.writer).await.unwrap();
    store.close().await;
    assert!(matches!(SqliteStore::open(&path).await, Err(Error::Newer { found: 99, known: 13 })));
}

/// A database as an older version made it.
async fn older(path: &Path, version: usize) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let old = SqlitePoolOptions::new().connect_with(options).await.unwrap();
    for schema in &SCHEMAS[..version] {
        sqlx::raw_sql(*schema).execute(&old).await.unwrap();
    }
    let version = format!("PRAGMA user_version = {version}");
    sqlx::raw_sql(AssertSqlSafe(version)).execute(&old).await.unwrap();
    old
}

async fn insert_as_before(old: &SqlitePool, job: &Job, spec: &str) {
    let query = "INSERT INTO jobs (job_id, number, spec, request_id, request_fingerprint, state, reason, created, \
                 step, loss, last_sequence, artifacts) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    sqlx::query(query)
        .bind(job.id.to_string())
        .bind(integer(job.number))
        .bind(spec)
        .bind(job.request.as_ref().map(|request| request.id.clone()))
        .bind(job.request.as_ref().map(|request| request.fingerprint.to_string()))
        .bind(job.state.as_str())
        .bind(job.reason.as_str())
        .bind(job.created.0)
        .bind(integer(job.step))
        .bind(job.loss)
        .bind(integer(job.last_sequence))
        .bind(integer(job.artifacts))
        .execute(old)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_database_of_the_first_schema_is_brought_forward() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordinator.db");
    let old = older(&path, 1).await;
    let job = conformance::queued_job(1);
    insert_as_before(&old, &job, &to_json("spec", &*job.spec).unwrap()).await;
    old.close().await;
    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(store.job(job.id).await.unwrap().as_ref(), Some(&*job));
}

#[tokio::test]
async fn a_database_of_the_last_release_is_brought_forward_with_all_that_is_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordinator.db");
    let old = older(&path, 2).await;
    // 1. A job with images and a checkpoint, steps and their events; and one whose spec no version could read.
    let mut job = (*conformance::queued_job(1)).clone();
    let checkpoint = ContentHash::of(b"checkpoint");
    let mut spec = (*job.spec).clone();
    spec.textual_inversion_mut().unwrap().train.resume_from_checkpoint = checkpoint.uri();
    job.spec = Arc::new(spec);
    job.request = Some(RequestKey { id: "request".to_owned(), fingerprint: ContentHash::of(b"spec") });
    (job.step, job.loss, job.last_sequence, job.artifacts) = (1, Some(0.1 + 0.2), 2, 1);
    let broken = conformance::queued_job(2);
    insert_as_before(&old, &job, &to_json("spec", &*job.spec).unwrap()).await;
    insert_as_before(&old, &broken, "{\"kind\":").await;
    let step = conformance::step(1);
    let events = [EventBody::note(LogLevel::Info, "a line"), EventBody::Step(step)];
    for (sequence, body) in (1_i64..).zip(&events) {
        let query = "INSERT INTO events (job_id, sequence, time, body) VALUES (?, ?, 1, ?)";
        let body = to_json("events.body", body).unwrap();
        sqlx::query(query).bind(job.id.to_string()).bind(sequence).bind(body).execute(&old).await.unwrap();
    }
    let body = to_json("steps.body", &step).unwrap();
    let query = "INSERT INTO steps (job_id, step, body) VALUES (?, 1, ?)";
    sqlx::query(query).bind(job.id.to_string()).bind(body).execute(&old).await.unwrap();
    let listed = ContentHash::of(b"listed");
    let query = "INSERT INTO artifacts VALUES (?, 'a', ?, 6, '', 3)";
    sqlx::query(query).bind(job.id.to_string()).bind(listed.to_string()).execute(&old).await.unwrap();
    old.close().await;

    // 2. All of it is there.
    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(store.recover().await.unwrap().jobs, [job.clone()]);
    assert_eq!(store.request("request").await.unwrap(), Some((job.id, job.request.clone().unwrap())));
    let bodies: Vec<EventBody> =
        store.events(job.id, 0, 9).await.unwrap().into_iter().map(|event| event.body).collect();
    assert_eq!(bodies, events);
    assert_eq!(store.steps(job.id, 0, 9).await.unwrap(), [step]);
    assert_eq!(store.job(broken.id).await.unwrap().unwrap().state, JobState::Failed);
    // 3. Nothing that it names is free, and what its manifest names is asked for first.
    let images = ContentHash::from_uri(&job.spec.textual_inversion().unwrap().data.images).unwrap();
    let (picture, other) = (ContentHash::of(b"picture"), ContentHash::of(b"other"));
    let all = [images, checkpoint, listed, picture, other];
    assert!(store.unwanted(&all).await.unwrap().is_empty());
    assert_eq!(store.unread_manifests(None, 9).await.unwrap(), [images]);
    store.put_manifest(images, &[picture]).await.unwrap();
    assert_eq!(store.unwanted(&all).await.unwrap(), [other]);
    // 4. It goes on.
    let next = StepRecord { step: 2, ..step };
    let event = JobEvent { job: job.id, sequence: 3, time: job.created, body: EventBody::Step(next) };
    let mut progress = job.clone();
    (progress.step, progress.last_sequence, progress.artifacts) = (2, 3, 1);
    let progress = Write::progress_of(&progress);
    let writes = [Write::AppendStep(job.id, next), Write::AppendEvent(event.clone()), progress];
    store.commit(&writes).await.unwrap();
    assert_eq!(store.events(job.id, 2, 9).await.unwrap(), [event]);
    assert_eq!(store.delete_job(job.id).await.unwrap(), [listed]);
}

#[tokio::test]
async fn jobs_that_had_not_ended_under_schema_3_keep_their_rings_and_how_they_were_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordinator.db");
    let old = older(&path, 3).await;
    let ring = r#"{"epoch":2,"members":[],"threads_per_rank":3,"numerics_class":"a class"VERSION}"#;
    let [with, without] = [",\"version\":\"0.2.0\"", ""].map(|version| ring.replace("VERSION", version));
    let cancel = r#"{"reason":"enough \"of\" it","deadline":77}"#;
    // Number, state, ring, precision, cancel, finish_by.
    type Row<'a> = (i64, &'a str, Option<&'a str>, Option<&'a str>, Option<&'a str>, Option<i64>);
    let rows: [Row<'_>; 7] = [
        (1, "queued", None, None, None, None),
        (2, "preparing", Some(&with), Some("bf16"), None, None),
        (3, "running", Some(&without), Some("no"), Some(cancel), Some(5)),
        (4, "running", Some(&with), Some("no"), None, Some(66)),
        (5, "running", Some(&with), Some("no"), Some("{\"reason\""), None),
        (6, "running", Some("round"), Some("no"), None, None),
        (7, "succeeded", None, Some("bf16"), None, None),
    ];
    let jobs: Vec<Arc<Job>> = (1..=7).map(conformance::queued_job).collect();
    for (job, (number, state, ring, precision, cancel, finish_by)) in jobs.iter().zip(rows) {
        let query = "INSERT INTO jobs (job_id, number, state, reason, created, rings, ring, precision, cancel, \
                     finish_by) VALUES (?, ?, ?, '', 1, 2, ?, ?, ?, ?)";
        let row = sqlx::query(query).bind(job.id.to_string()).bind(number).bind(state);
        row.bind(ring).bind(precision).bind(cancel).bind(finish_by).execute(&old).await.unwrap();
        let spec = job.spec.to_stored().unwrap();
        let query = "INSERT INTO job_specs (number, version, spec) VALUES (?, ?, ?)";
        let version = ringtune_shared::job::STORED_VERSION;
        sqlx::query(query).bind(number).bind(version).bind(spec).execute(&old).await.unwrap();
        let query = "INSERT INTO job_progress VALUES (?, 0, NULL, 1, 0, 1)";
        sqlx::query(query).bind(job.id.to_string()).execute(&old).await.unwrap();
    }
    let file = "INSERT INTO artifacts VALUES (?, 'checkpoint-5.safetensors', ?, 6, '', 3)";
    let hash = ContentHash::of(b"of nobody knows which ring").to_string();
    sqlx::query(file).bind(jobs[2].id.to_string()).bind(hash).execute(&old).await.unwrap();
    old.close().await;

    let store = SqliteStore::open(&path).await.unwrap();
    let recovered = store.recover().await.unwrap();
    assert!(recovered.checkpoints.is_empty());
    let numbers: Vec<u64> = recovered.jobs.iter().map(|job| job.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4], "what cannot be read is FAILED");
    let pin = |precision, version: &str| {
        let (numerics_class, threads_per_rank) = ("a class".to_owned(), 3);
        Some(Arc::new(Pin { numerics_class, threads_per_rank, precision, version: version.to_owned() }))
    };
    let [queued, preparing, cancelling, finishing] = recovered.jobs.try_into().unwrap();
    assert_eq!((queued.pin, queued.stop, queued.ring), (None, None, None));
    assert_eq!((preparing.pin, preparing.stop), (pin(MixedPrecision::Bf16, "0.2.0"), None));
    assert!(!preparing.ring.unwrap().started);
    let reason = "enough \"of\" it".to_owned();
    assert_eq!(cancelling.pin, pin(MixedPrecision::No, ""));
    assert_eq!(cancelling.stop, Some(Stop { goal: Goal::Cancelled { reason }, deadline: Time(77) }));
    assert_eq!(finishing.stop, Some(Stop { goal: Goal::Succeeded, deadline: Time(66) }));
    for job in [cancelling, finishing] {
        let ring = job.ring.unwrap();
        assert_eq!((ring.epoch, ring.started), (ringtune_shared::ids::Epoch(2), true));
    }
    for damaged in &jobs[4..6] {
        let job = store.job(damaged.id).await.unwrap().unwrap();
        assert_eq!(job.state, JobState::Failed, "{}", job.reason);
    }
    // What an ended job says of itself is still there.
    let ended = store.job(jobs[6].id).await.unwrap().unwrap();
    assert_eq!(ended.pin.unwrap().precision, MixedPrecision::Bf16);
}

#[tokio::test]
async fn a_database_from_before_there_were_tokens_gets_them_and_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordinator.db");
    older(&path, 6).await.close().await;
    let store = SqliteStore::open(&path).await.unwrap();
    let job = conformance::queued_job(1);
    store.commit(&[Write::InsertJob(job.clone())]).await.unwrap();
    access_conformance::run(&store).await;
    let kind = crate::store::access::TokenKind::Access;
    let token = access_conformance::token(90, kind, ringtune_security::Role::Admin, "ada");
    assert!(store.add_token(&token, 9).await.unwrap());
    let revoked = store.revoked(Time(0)).await.unwrap();
    store.close().await;
    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(store.token(token.id).await.unwrap().unwrap().name, "ada");
    assert_eq!(store.revoked(Time(0)).await.unwrap(), revoked);
    assert_eq!(store.job(job.id).await.unwrap().as_ref(), Some(&*job));
}

#[tokio::test]
async fn what_owners_have_is_counted_when_a_database_of_schema_7_is_brought_forward() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("coordinator.db");
    let old = older(&path, 7).await;
    let files = [("ada", "a", 10), ("ada", "b", 5), ("bob", "a", 10), ("", "c", 7)];
    for (number, (owner, content, size)) in (1_i64..).zip(files) {
        let job = conformance::queued_job(number as u64);
        let query =
            "INSERT INTO jobs (job_id, number, state, reason, created) VALUES (?, ?, 'queued', '', 1)";
        sqlx::query(query).bind(job.id.to_string()).bind(number).execute(&old).await.unwrap();
        let query = "INSERT INTO job_list VALUES (?, 'queued', '', '', ?, 0)";
        sqlx::query(query).bind(number).bind(owner).execute(&old).await.unwrap();
        // Under two names it is one content.
        for name in ["first", "second"] {
            let query = "INSERT INTO artifacts VALUES (?, ?, ?, ?, '', 3, NULL)";
            let hash = ContentHash::of(content.as_bytes()).to_string();
            let row = sqlx::query(query).bind(job.id.to_string()).bind(name).bind(hash).bind(size);
            row.execute(&old).await.unwrap();
        }
    }
    old.close().await;
    let store = SqliteStore::open(&path).await.unwrap();
    for (owner, files, bytes) in [("ada", 2, 15), ("bob", 1, 10), ("", 0, 0)] {
        assert_eq!(store.usage(owner).await.unwrap(), Usage { files, bytes }, "{owner}");
    }
    store.disown(&[ContentHash::of(b"a")]).await.unwrap();
    assert_eq!(store.usage("ada").await.unwrap(), Usage { files: 1, bytes: 5 });
}

#[tokio::test]
async fn a_damaged_job_disturbs_no_other_and_can_be_deleted() {
    let (folder, store) = conformance::temporary().await;
    let path = folder.path().join("coordinator.db");
    let jobs: Vec<Arc<Job>> = (1..=6).map(conformance::queued_job).collect();
    let writes: Vec<Write> = jobs.iter().cloned().map(Write::InsertJob).collect();
    store.commit(&writes).await.unwrap();
    for damage in [
        "UPDATE job_specs SET spec = '{}' WHERE number = 1",
        "UPDATE job_specs SET version = 99 WHERE number = 2",
        "DELETE FROM job_specs WHERE number = 3",
        "UPDATE jobs SET state = 'running', ring = 'round' WHERE number = 4",
        "UPDATE jobs SET state = 'dreaming' WHERE number = 5",
    ] {
        sqlx::raw_sql(damage).execute(&store.writer).await.unwrap();
    }
    store.close().await;

    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(store.recover().await.unwrap().jobs, [(*jobs[5]).clone()]);
    assert_eq!(store.count_jobs().await.unwrap()[&JobState::Failed], 5);
    let listed = store.list_jobs(&page(None)).await.unwrap();
    let failed = store.list_jobs(&page(Some(JobState::Failed))).await.unwrap();
    assert_eq!((listed.len(), failed.len()), (6, 5));
    for (job, said) in jobs.iter().zip(["damaged", "form 99", "job_specs", "jobs.ring", ""]) {
        let shown = store.job(job.id).await.unwrap().unwrap();
        assert_eq!((shown.id, shown.number, shown.state), (job.id, job.number, JobState::Failed));
        assert!(shown.reason.contains(said), "{}", shown.reason);
        assert!(failed.contains(&shown));
        store.delete_job(job.id).await.unwrap();
        assert_eq!(store.job(job.id).await.unwrap(), None);
    }
    assert_eq!(store.list_jobs(&page(None)).await.unwrap(), [(*jobs[5]).clone()]);
}

#[tokio::test]
async fn a_step_report_writes_few_bytes_however_large_its_job_is() {
    let (folder, store) = conformance::temporary().await;
    let mut job = (*conformance::queued_job(1)).clone();
    let mut spec = (*job.spec).clone();
    spec.textual_inversion_mut().unwrap().train.templates = vec!["x".repeat(500); 500];
    job.spec = Arc::new(spec);
    store.commit(&[Write::InsertJob(Arc::new(job.clone()))]).await.unwrap();
    let log = || std::fs::metadata(folder.path().join("coordinator.db-wal")).unwrap().len();
    let before = log();
    for number in 1..=10 {
        let step = conformance::step(number);
        let event =
            JobEvent { job: job.id, sequence: number, time: job.created, body: EventBody::Step(step) };
        (job.step, job.loss, job.last_sequence) = (number, Some(step.loss), number);
        let progress = Write::progress_of(&job);
        let writes = [Write::AppendStep(job.id, step), Write::AppendEvent(event), progress];
        store.commit(&writes).await.unwrap();
    }
    // Three tables' pages of 4 KiB each, instead of the spec's 250 KB.
    assert!(log() - before <= 10 * 6 * 4200, "{} bytes", log() - before);
}

#[tokio::test]
async fn a_page_of_jobs_is_found_by_an_index() {
    let (_folder, store) = conformance::temporary().await;
    for (state, index) in [(None, "INTEGER PRIMARY KEY"), (Some(JobState::Failed), "job_list_by_state")] {
        let query = format!("EXPLAIN QUERY PLAN {}", lists::jobs_text(&page(state)).unwrap());
        let plan = sqlx::query(AssertSqlSafe(query)).bind(10).fetch_all(&store.readers).await.unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.try_get("detail").unwrap()).collect();
        assert!(
            !plan.iter().any(|step| step.starts_with("SCAN jobs") || step.contains("TEMP B-TREE")),
            "{plan:#?}"
        );
        assert!(plan.iter().any(|step| step.contains(index) || step == "SCAN job_list"), "{plan:#?}");
    }
}

#[tokio::test]
async fn a_full_database_says_so_and_keeps_what_it_had_and_what_comes_later() {
    let (_folder, store) = conformance::temporary().await;
    let job = conformance::queued_job(1);
    store.commit(&[Write::InsertJob(job.clone())]).await.unwrap();
    let event = |text: String| JobEvent {
        job: job.id,
        sequence: 1,
        time: job.created,
        body: EventBody::note(LogLevel::Info, text),
    };
    for _ in 0..3 {
        // SQLite answers SQLITE_FULL where a file may not grow, as on a full disk.
        sqlx::raw_sql("PRAGMA max_page_count = 1").execute(&store.writer).await.unwrap();
        let long = event("x".repeat(1 << 20));
        assert!(matches!(store.commit(&[Write::AppendEvent(long)]).await, Err(Error::Full)));
    }
    assert_eq!(store.job(job.id).await.unwrap().as_ref(), Some(&*job));
    assert!(store.events(job.id, 0, 10).await.unwrap().is_empty());
    // There is room again: what is stored now is there for other connections too.
    let short = event("short".to_owned());
    store.commit(&[Write::AppendEvent(short.clone())]).await.unwrap();
    assert_eq!(store.events(job.id, 0, 10).await.unwrap(), [short]);
}

#[tokio::test]
async fn commits_reach_the_database_beside_those_who_commit() {
    let (folder, store) = conformance::temporary().await;
    let path = folder.path().join("coordinator.db");
    let jobs: Vec<Write> =
        (1..=200).map(|number| Write::InsertJob(conformance::queued_job(number))).collect();
    store.commit(&jobs).await.unwrap();
    let moved = async {
        // The jobs' specs alone.
        while std::fs::metadata(&path).unwrap().len() < 200 * 1000 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), moved).await.unwrap();
}

/// The newest jobs, all or those in a state.
fn page(state: Option<JobState>) -> JobQuery {
    let filter = JobFilter { states: state.map(|state| vec![state]), ..JobFilter::default() };
    JobQuery { filter, order: JobOrder::Creation, descending: true, after: None, limit: 10 }
}

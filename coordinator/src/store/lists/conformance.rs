//! What every store must do for lists, as one suite for all of them. Panics where one does not.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringtune_shared::ids::{ContentHash, JobId, SweepId};
use ringtune_shared::job::JobKind;

use super::{ArtifactQuery, EventQuery, JobFilter, JobOrder, JobQuery};
use crate::core::{
    ArtifactRecord, EventBody, EventKind, Job, JobEvent, JobState, LogLevel, SweepPlace, Time, Write,
};
use crate::store::{Store, conformance};

const SWEEP: SweepId = SweepId(uuid::Uuid::from_u128(7));

/// Lists what it writes, by everything that lists know, on an empty store.
pub(crate) async fn run(store: &dyn Store) {
    let jobs = write_jobs(store).await;
    jobs_are_filtered(store).await;
    jobs_are_ordered_page_by_page(store, &jobs).await;
    a_job_is_where_its_state_is(store, &jobs[0]).await;
    events_are_listed_both_ways(store, jobs[1].id).await;
    artifacts_are_listed_by_name_and_time(store, jobs[1].id).await;
    a_deleted_job_is_in_no_list(store, jobs[1].id).await;
}

/// Names a to e, priorities 0 to 2, owners ada and "", labels by number; every third one is running.
async fn write_jobs(store: &dyn Store) -> Vec<Job> {
    let mut jobs = Vec::new();
    for number in 1..=30_u64 {
        let mut job = (*conformance::queued_job(number)).clone();
        let mut spec = (*job.spec).clone();
        spec.common.name = char::from(b'a' + (number % 5) as u8).to_string();
        job.spec = Arc::new(spec);
        let queue = Arc::make_mut(&mut job.queue);
        queue.priority = (number % 3) as u32;
        queue.owner = if number % 2 == 0 { "ada".to_owned() } else { String::new() };
        queue.labels.insert("even".to_owned(), (number % 2 == 0).to_string());
        queue.labels.insert("all/of.them".to_owned(), "x \"y\"".to_owned());
        if number % 7 == 3 {
            let (point, points, settings) = (number as u32, 30, BTreeMap::new());
            let (rungs, passed, scores) = (Vec::new(), 0, Vec::new());
            let place = SweepPlace { sweep: SWEEP, point, points, settings, rungs, passed, scores };
            job.sweep = Some(Arc::new(place));
        }
        if number % 3 == 0 {
            job.state = JobState::Running;
        }
        store.commit(&[Write::InsertJob(Arc::new(job.clone()))]).await.expect("insert");
        jobs.push(job);
    }
    jobs
}

fn query(filter: JobFilter) -> JobQuery {
    JobQuery { filter, order: JobOrder::Creation, descending: false, after: None, limit: 100 }
}

async fn numbers(store: &dyn Store, filter: JobFilter) -> Vec<u64> {
    store.list_jobs(&query(filter)).await.expect("jobs").iter().map(|job| job.number).collect()
}

fn labels(of: &[(&str, &str)]) -> JobFilter {
    let labels = of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    JobFilter { labels, ..JobFilter::default() }
}

async fn jobs_are_filtered(store: &dyn Store) {
    let of = |wanted: fn(u64) -> bool| (1..=30).filter(|number| wanted(*number)).collect::<Vec<u64>>();
    let any = JobFilter::default;
    assert_eq!(numbers(store, any()).await, of(|_| true));
    let running = JobFilter { states: Some(vec![JobState::Running]), ..any() };
    assert_eq!(numbers(store, running).await, of(|number| number % 3 == 0));
    let active = JobFilter { states: Some(vec![JobState::Running, JobState::Queued]), ..any() };
    assert_eq!(numbers(store, active).await, of(|_| true));
    assert!(numbers(store, JobFilter { states: Some(Vec::new()), ..any() }).await.is_empty());
    let named = JobFilter { name: Some("b".to_owned()), ..any() };
    assert_eq!(numbers(store, named).await, of(|number| number % 5 == 1));
    let nobodys = JobFilter { owner: Some(String::new()), ..any() };
    assert_eq!(numbers(store, nobodys).await, of(|number| number % 2 == 1));
    let urgent = JobFilter { priority: Some(2), ..any() };
    assert_eq!(numbers(store, urgent).await, of(|number| number % 3 == 2));
    let learning = JobFilter { kind: Some(JobKind::TextualInversion), ..any() };
    assert_eq!(numbers(store, learning).await, of(|_| true));
    assert!(numbers(store, JobFilter { kind: Some(JobKind::Generate), ..any() }).await.is_empty());
    assert_eq!(numbers(store, labels(&[("even", "true")])).await, of(|number| number % 2 == 0));
    let both = labels(&[("even", "false"), ("all/of.them", "x \"y\"")]);
    assert_eq!(numbers(store, both).await, of(|number| number % 2 == 1));
    assert!(numbers(store, labels(&[("even", "false"), ("odd", "true")])).await.is_empty());
    let sweep = |sweep| JobFilter { sweep: Some(sweep), ..any() };
    assert_eq!(numbers(store, sweep(SWEEP)).await, of(|number| number % 7 == 3));
    assert!(numbers(store, sweep(SweepId::new())).await.is_empty());
    let all = JobFilter {
        states: Some(vec![JobState::Queued]),
        name: Some("c".to_owned()),
        owner: Some("ada".to_owned()),
        priority: Some(1),
        kind: Some(JobKind::TextualInversion),
        sweep: None,
        labels: labels(&[("even", "true")]).labels,
    };
    assert_eq!(numbers(store, all).await, [22]);
    let hostile = JobFilter { name: Some("a' OR '1'='1".to_owned()), ..any() };
    assert!(numbers(store, hostile).await.is_empty());
}

async fn jobs_are_ordered_page_by_page(store: &dyn Store, jobs: &[Job]) {
    let states = [None, Some(vec![JobState::Queued])];
    for order in [JobOrder::Creation, JobOrder::Priority, JobOrder::Name] {
        for (descending, states) in
            [false, true].iter().flat_map(|desc| states.iter().map(|one| (*desc, one)))
        {
            let filter = JobFilter { states: states.clone(), ..JobFilter::default() };
            let mut page = JobQuery { order, descending, limit: 7, ..query(filter) };
            let mut expected: Vec<Job> = jobs.to_vec();
            expected.retain(|job| states.as_ref().is_none_or(|states| states.contains(&job.state)));
            expected.sort_by_key(|job| (order.place(job).key, job.number));
            if descending {
                // Equals stay in the order of their numbers.
                match order {
                    JobOrder::Creation => expected.reverse(),
                    _ => expected.sort_by(|one, other| order.place(other).key.cmp(&order.place(one).key)),
                }
            }
            let mut listed = Vec::new();
            loop {
                let found = store.list_jobs(&page).await.expect("jobs");
                listed.extend(found.iter().cloned());
                let Some(last) = found.last() else { break };
                page.after = Some(order.place(last));
            }
            assert_eq!(listed, expected, "{order:?}, descending: {descending}");
        }
    }
}

async fn a_job_is_where_its_state_is(store: &dyn Store, job: &Job) {
    let mut ended = job.clone();
    ended.state = JobState::Cancelled;
    store.commit(&[Write::UpdateJob(Arc::new(ended.clone()))]).await.expect("update");
    let of = |state| JobFilter { states: Some(vec![state]), ..JobFilter::default() };
    assert!(!numbers(store, of(JobState::Queued)).await.contains(&job.number));
    assert_eq!(store.list_jobs(&query(of(JobState::Cancelled))).await.expect("jobs"), [ended]);
}

async fn events_are_listed_both_ways(store: &dyn Store, job: JobId) {
    let event = |sequence: u64| JobEvent {
        job,
        sequence,
        time: Time(1),
        body: match sequence % 3 {
            0 => EventBody::StateChange { from: None, to: JobState::Queued, reason: "\"log\":".to_owned() },
            _ => EventBody::note(LogLevel::Info, format!("event {sequence}")),
        },
    };
    let writes: Vec<Write> = (1..=20).map(|sequence| Write::AppendEvent(event(sequence))).collect();
    store.commit(&writes).await.expect("append");
    let all = EventQuery { job, above: 0, below: None, kind: None, descending: false, limit: 100 };
    let expect = async |query: EventQuery, sequences: &[u64]| {
        let expected: Vec<JobEvent> = sequences.iter().map(|sequence| event(*sequence)).collect();
        assert_eq!(store.list_events(&query).await.expect("events"), expected, "{query:?}");
    };
    expect(EventQuery { limit: 3, ..all.clone() }, &[1, 2, 3]).await;
    expect(EventQuery { above: 18, ..all.clone() }, &[19, 20]).await;
    expect(EventQuery { descending: true, limit: 2, ..all.clone() }, &[20, 19]).await;
    let middle = EventQuery { above: 4, below: Some(8), descending: true, ..all.clone() };
    expect(middle, &[7, 6, 5]).await;
    let changes = EventQuery { kind: Some(EventKind::StateChange), above: 3, ..all.clone() };
    expect(changes, &[6, 9, 12, 15, 18]).await;
    let logs = EventQuery { kind: Some(EventKind::Log), descending: true, limit: 2, ..all.clone() };
    expect(logs, &[20, 19]).await;
    expect(EventQuery { kind: Some(EventKind::Artifact), ..all.clone() }, &[]).await;
    expect(EventQuery { job: JobId::new(), ..all }, &[]).await;
}

async fn artifacts_are_listed_by_name_and_time(store: &dyn Store, job: JobId) {
    let artifact = |name: &str, time: i64, media_type: &str| ArtifactRecord {
        job,
        name: name.to_owned(),
        hash: ContentHash::of(name.as_bytes()),
        size: 1,
        media_type: media_type.to_owned(),
        created: Time(time),
        epoch: None,
    };
    let kept = [
        artifact("b", 1, "image/png"),
        artifact("a", 2, ""),
        artifact("d", 2, "image/png"),
        artifact("C", 3, ""),
    ];
    let writes: Vec<Write> = kept.iter().cloned().map(Write::PutArtifact).collect();
    store.commit(&writes).await.expect("keep");
    let by = |by_time: bool, descending: bool| ArtifactQuery {
        job,
        name: None,
        media_type: None,
        by_time,
        descending,
        after: None,
        limit: 2,
    };
    for (mut query, names) in [
        (by(false, false), "C a b d"),
        (by(false, true), "d b a C"),
        (by(true, false), "b a d C"),
        (by(true, true), "C a d b"),
        (ArtifactQuery { media_type: Some("image/png".to_owned()), ..by(false, false) }, "b d"),
        (ArtifactQuery { name: Some("C".to_owned()), ..by(true, true) }, "C"),
    ] {
        let mut listed: Vec<String> = Vec::new();
        loop {
            let page = store.list_artifacts(&query).await.expect("artifacts");
            listed.extend(page.iter().map(|one| one.name.clone()));
            let Some(last) = page.last() else { break };
            query.after = Some((last.created, last.name.clone()));
        }
        assert_eq!(listed.join(" "), names, "{query:?}");
    }
}

async fn a_deleted_job_is_in_no_list(store: &dyn Store, job: JobId) {
    store.delete_job(job).await.expect("delete");
    assert!(!numbers(store, JobFilter::default()).await.contains(&2));
    assert!(!numbers(store, labels(&[("even", "true")])).await.contains(&2));
}

//! The page's stream of events.

use std::collections::BTreeMap;

use ringtune_proto::v1::{self, JobState};
use serde_json::Value;
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::TcpSocket,
};

use super::{Browser, Event, Events, Wire, read_head};
use crate::{
    coordinator::Coordinator,
    jobs::{STEPS, spec},
    soon,
    worker::{Worker, training},
};

fn job<'a>(data: &'a Value, id: &str) -> Option<&'a Value> {
    data["jobs"].as_array()?.iter().find(|job| job["jobId"] == id)
}

/// The sequence numbers of a job's events in a message.
fn sequences(event: &Event) -> Vec<u64> {
    let number = |event: &Value| event["sequence"].as_str().unwrap().parse().unwrap();
    let all: Vec<u64> = match event.name.as_str() {
        "event" => vec![number(&event.data)],
        "events" => event.data["events"].as_array().unwrap().iter().map(number).collect(),
        _ => return Vec::new(),
    };
    assert_eq!(event.id, all.last().copied(), "the id is where to go on");
    all
}

impl Events {
    /// Hears the events of a job up to this one.
    async fn hear_to(&mut self, heard: &mut Vec<u64>, last: u64) {
        while heard.last() != Some(&last) {
            let event = self.next().await.expect("the events go on");
            heard.extend(sequences(&event));
        }
    }
}

#[tokio::test]
async fn a_job_is_seen_from_its_beginning_to_its_end() {
    let coordinator = Coordinator::fresh().await;
    let browser = Browser::of(&coordinator);
    let mut worker = Worker::start(&coordinator, "host-a").await;
    let mut events = browser.events("").await;
    let cluster = events.until("cluster", |_| true).await;
    assert_eq!((&cluster.data["workersIdle"], cluster.id), (&1.into(), None));
    let id = coordinator.create(1).await.job_id;
    events.until("jobs", |data| job(data, &id).is_some()).await;
    worker.prepare().await;
    let running = events
        .until("jobs", |data| job(data, &id).is_some_and(|job| job["state"] == "JOB_STATE_RUNNING"))
        .await;
    assert_eq!(job(&running.data, &id).unwrap()["spec"], Value::Null, "without its spec");
    worker.finish().await;
    let done = events
        .until("jobs", |data| job(data, &id).is_some_and(|job| job["state"] == "JOB_STATE_SUCCEEDED"))
        .await;
    assert_eq!(job(&done.data, &id).unwrap()["step"], STEPS.to_string());
    // A later page sees jobs that have not ended.
    let other = coordinator.create(9).await.job_id;
    let mut late = browser.events("").await;
    let first = late.until("jobs", |_| true).await;
    assert!(job(&first.data, &other).is_some() && job(&first.data, &id).is_none());
    coordinator.stop().await;
}

#[tokio::test]
async fn a_page_that_comes_back_misses_nothing_and_hears_nothing_twice() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(state.path()).await;
    let mut worker = Worker::start(&coordinator, "host-a").await;
    let id = coordinator.create(1).await.job_id;
    worker.prepare().await;
    worker.step(1).await;
    let query = format!("?job={id}&after=1");
    let mut events = Browser::of(&coordinator).events(&query).await;
    let mut heard = Vec::new();
    events.hear_to(&mut heard, coordinator.job(&id).await.last_sequence).await;
    // 1. The page's connection breaks.
    drop(events);
    worker.step(2).await;
    let last = heard.last().unwrap().to_string();
    let mut events = Browser::of(&coordinator).and("last-event-id", &last).events(&query).await;
    events.hear_to(&mut heard, coordinator.job(&id).await.last_sequence).await;
    // 2. The coordinator starts again: it says so at once, and is not held up.
    let begun = std::time::Instant::now();
    let (stopped, reason) = tokio::join!(coordinator.stop(), events.end());
    assert_eq!((stopped, reason.as_str()), ((), "shutdown"));
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(8),
        "the page held it up for {:?}",
        begun.elapsed()
    );
    worker.end().await;
    let coordinator = Coordinator::start(state.path()).await;
    let mut worker = Worker::come_back(&coordinator, worker.hang_up()).await;
    worker.finish().await;
    let end = coordinator.end(&id).await;
    let last = heard.last().unwrap().to_string();
    let mut events = Browser::of(&coordinator).and("last-event-id", &last).events(&query).await;
    events.hear_to(&mut heard, end.last_sequence).await;
    assert_eq!(heard, (2..=end.last_sequence).collect::<Vec<_>>());
    coordinator.stop().await;
}

#[tokio::test]
async fn of_a_job_that_is_not_there_a_page_is_told_and_goes_on() {
    let coordinator = Coordinator::fresh().await;
    let browser = Browser::of(&coordinator);
    let mut events = browser.events("?job=0193f2a4-5b6c-7d8e-9f00-112233445566").await;
    let error = events.until("error", |_| true).await;
    assert_eq!(error.data["code"], "not_found");
    let id = coordinator.create(1).await.job_id;
    events.until("jobs", |data| job(data, &id).is_some()).await;
    // A job that was deleted right after its end.
    coordinator.cancel(&id).await.unwrap();
    let request = v1::DeleteJobRequest { job_id: id };
    coordinator.jobs().delete_job(request).await.unwrap();
    let next = coordinator.create(1).await.job_id;
    events.until("jobs", |data| job(data, &next).is_some()).await;
    for query in ["?job=x", "?after=1"] {
        // A malformed id is reported in the same way.
        assert_eq!(browser.get(&format!("/api/events{query}&y=1")).await.status, 400);
    }
    assert_eq!(coordinator.job(&next).await.state(), JobState::Queued);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_page_hears_that_jobs_are_deleted_and_a_submitter_of_their_own_alone() {
    let coordinator = super::secured().await;
    let token = async |role, name| coordinator.token(role, name).await.secret;
    let ada = token(v1::Role::Submitter, "ada").await;
    let (of_ada, of_all) = (Browser::of(&coordinator).by_bearer(&ada), Browser::of(&coordinator));
    let of_all = of_all.by_bearer(&token(v1::Role::Observer, "olga").await);
    let (mut hers, mut all) = (of_ada.events("").await, of_all.events("").await);
    let mut jobs = Vec::new();
    for owner in ["grace", "ada"] {
        let queue = Some(v1::QueueSpec { owner: owner.to_owned(), ..Default::default() });
        let request = v1::CreateJobRequest { spec: Some(spec(1)), queue, ..Default::default() };
        let id = coordinator.jobs().create_job(request).await.unwrap().into_inner().job.unwrap().job_id;
        coordinator.cancel(&id).await.unwrap();
        jobs.push(id);
    }
    for id in &jobs {
        coordinator.jobs().delete_job(v1::DeleteJobRequest { job_id: id.clone() }).await.unwrap();
    }
    let deleted = hers.until("deleted", |_| true).await;
    assert_eq!(deleted.data, serde_json::json!({ "jobIds": [jobs[1]] }), "hers alone");
    let mut told = Vec::new();
    while told.len() < 2 {
        let deleted = all.until("deleted", |_| true).await;
        told.extend(
            deleted.data["jobIds"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()),
        );
    }
    assert_eq!(told, jobs);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_page_hears_when_a_queued_job_waits_for_something_else() {
    let coordinator = Coordinator::fresh().await;
    let mut events = Browser::of(&coordinator).events("").await;
    let id = coordinator.create(2).await.job_id;
    let waits = |data: &Value, text: &str| job(data, &id).is_some_and(|job| job["stateReason"] == text);
    let before = coordinator.job(&id).await;
    events.until("jobs", |data| waits(data, &before.state_reason)).await;
    // Nothing happens to the job, but it needs one worker less.
    let _worker = Worker::start(&coordinator, "host-a").await;
    let now = coordinator.job(&id).await;
    assert_eq!((now.last_sequence, now.state()), (before.last_sequence, JobState::Queued));
    assert_ne!(now.state_reason, before.state_reason, "the test needs another reason");
    events.until("jobs", |data| waits(data, &now.state_reason)).await;
    coordinator.stop().await;
}

#[tokio::test]
async fn open_pages_are_counted_among_the_watches() {
    let coordinator = Coordinator::fresh().await;
    let id = coordinator.create(1).await.job_id;
    let watches = async |number: u32| {
        let line = format!("\nringtune_watches {number}\n");
        soon("the watches are counted", async {
            while !coordinator.http_get("/metrics").await.contains(&line) {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        })
        .await;
    };
    watches(0).await;
    let mut one = Browser::of(&coordinator).events("").await;
    one.until("jobs", |data| job(data, &id).is_some()).await;
    watches(1).await;
    let mut other = Browser::of(&coordinator).events(&format!("?job={id}")).await;
    other.until("event", |_| true).await;
    watches(3).await;
    drop((one, other));
    watches(0).await;
    coordinator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_rests_until_its_watches_are_given_up_goes_on_where_it_was() {
    // After twice as long its connection would be ended.
    let (coordinator, mut worker, running) = training(|settings| settings.limits.idle_seconds = 3.0).await;
    let id = running.job_id;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut wire: Box<dyn Wire> = Box::new(socket.connect(coordinator.http).await.unwrap());
    let request = format!("GET /api/events?job={id} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    wire.write_all(request.as_bytes()).await.unwrap();
    let mut wire = BufReader::new(wire);
    assert_eq!(soon("the beginning of events", read_head(&mut wire)).await.0, 200);
    let mut events = Events { wire, text: String::new() };
    let mut heard = sequences(&events.until("event", |_| true).await);
    // 1. It takes nothing more, until no buffer takes anything either.
    let label = |number: usize| (format!("{number:063}"), "😀".repeat(63));
    let labels: BTreeMap<String, String> = (0..32).map(label).collect();
    let mut drawn = 0;
    let filled = async {
        while !coordinator.http_get("/metrics").await.contains("\nringtune_watches 0\n") {
            for _ in 0..20 {
                let queue = Some(v1::QueueSpec { labels: labels.clone(), ..v1::QueueSpec::default() });
                let request = v1::CreateJobRequest { spec: Some(spec(9)), queue, ..Default::default() };
                coordinator.jobs().create_job(request).await.unwrap();
            }
            drawn += 1;
            worker.progress(v1::ProgressStage::Draw, drawn, 1_000_000).await;
        }
    };
    soon("the end of its watches", Box::pin(filled)).await;
    // 2. It reads again: nothing of its job is left out, and it is told that other news may be.
    worker.step(1).await;
    let last = coordinator.job(&id).await.last_sequence;
    let mut missed = false;
    while !missed || heard.last() != Some(&last) {
        let event = events.next().await.expect("the events go on");
        assert!(event.name != "error" && event.name != "end", "{event:?}");
        missed |= event.name == "missed";
        heard.extend(sequences(&event));
    }
    assert_eq!(heard, (1..=last).collect::<Vec<_>>());
    drop(events);
    worker.finish().await;
    coordinator.stop().await;
}

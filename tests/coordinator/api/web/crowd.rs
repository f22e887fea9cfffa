//! Many pages at once, and one that does not read: what they cost is bounded, and the others do not notice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ringtune_proto::v1;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::Browser;
use crate::{jobs::spec, soon, worker::training};

const PAGES: usize = 100;
const JOBS: usize = 1000;
/// The pages that this process plays itself are among them.
const MOST_BYTES: u64 = 160 << 20;

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stderr)]
async fn a_hundred_pages_cost_little_while_a_job_runs_among_a_thousand() {
    let (coordinator, mut worker, job) = training(|_| ()).await;
    for _ in 1..JOBS {
        coordinator.create(9).await;
    }
    let (before, begun) = (resident(), Instant::now());
    let mut pages = JoinSet::new();
    for _ in 0..PAGES {
        let (browser, id) = (Browser::of(&coordinator), job.job_id.clone());
        pages.spawn(async move {
            let mut events = browser.events(&format!("?job={id}")).await;
            let mut told = 0;
            while told < JOBS {
                let jobs = events.until("jobs", |_| true).await;
                told += jobs.data["jobs"].as_array().unwrap().len();
            }
            events
        });
    }
    let mut open = Vec::new();
    while let Some(page) = pages.join_next().await {
        open.push(page.unwrap());
    }
    let first = begun.elapsed();
    for step in 1..=3 {
        worker.step(step).await;
        let wanted = step.to_string();
        let wanted = wanted.as_str();
        for events in &mut open {
            events
                .until("events", |data| {
                    data["events"].as_array().unwrap().iter().any(|event| event["step"]["step"] == *wanted)
                })
                .await;
        }
    }
    let after = resident();
    eprintln!(
        "{PAGES} pages of {JOBS} jobs: all heard of all jobs within {first:?}; {} MiB before, {} MiB with them",
        before >> 20,
        after >> 20
    );
    assert!(after.saturating_sub(before) < MOST_BYTES, "{before} bytes became {after}");
    let ends = open.into_iter().map(|events| tokio::spawn(events.end())).collect::<Vec<_>>();
    let begun = Instant::now();
    coordinator.stop().await;
    eprintln!("stopped with {PAGES} pages open within {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(8), "open pages hold up its end");
    for end in ends {
        assert_eq!(soon("the end of a page", end).await.unwrap(), "shutdown");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_does_not_read_is_ended_and_others_do_not_notice() {
    let (coordinator, mut worker, job) = training(|settings| settings.limits.idle_seconds = 0.5).await;
    // 1. It asks for everything and takes nothing.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut deaf: TcpStream = socket.connect(coordinator.http).await.unwrap();
    let request = format!("GET /api/events?job={} HTTP/1.1\r\nhost: localhost\r\n\r\n", job.job_id);
    deaf.write_all(request.as_bytes()).await.unwrap();
    let mut reader = Browser::of(&coordinator).events(&format!("?job={}", job.job_id)).await;
    // 2. So much happens that no buffer of the system takes it.
    let before = resident();
    let begun = Instant::now();
    let mut step = 0;
    let label = |number: usize| (format!("{number:063}"), "😀".repeat(63));
    let labels: BTreeMap<String, String> = (0..32).map(label).collect();
    let unread = r#"ringtune_refused_connections_total{reason="unread"} 1"#;
    while !coordinator.http_get("/metrics").await.contains(unread) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is still there after {step} steps");
        for _ in 0..20 {
            let queue = v1::QueueSpec { labels: labels.clone(), ..v1::QueueSpec::default() };
            let request =
                v1::CreateJobRequest { spec: Some(spec(9)), queue: Some(queue), ..Default::default() };
            coordinator.jobs().create_job(request).await.unwrap();
        }
        if step < 4 {
            step += 1;
            worker.step(step).await;
            let wanted = step.to_string();
            let wanted = wanted.as_str();
            reader.until("events", |data| data["events"][0]["step"]["step"] == *wanted).await;
        }
    }
    assert!(resident().saturating_sub(before) < MOST_BYTES, "what it does not read is kept");
    worker.finish().await;
    reader.until("event", |data| data["stateChange"]["to"] == "JOB_STATE_SUCCEEDED").await;
    coordinator.stop().await;
}

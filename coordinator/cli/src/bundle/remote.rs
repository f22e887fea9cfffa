//! The bundle's parts of the coordinator: itself, its workers and its jobs, as far as the caller may see them.

use std::time::Duration;

use http::Uri;
use ringtune_proto::{
    convert::is_terminal,
    v1::{self, JobState},
};
use ringtune_security::{AccessToken, Connector, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use uuid::Uuid;

use super::{
    BundleRequest, Coordinator,
    gather::{Gather, LONGEST, LONGEST_LOG},
};
use crate::client::ClientError;

/// Jobs that are listed, the newest first.
const JOBS: usize = 200;
/// Jobs that failed or run and are shown in full, beside those that were named.
const IN_FULL: usize = 10;
/// Events of one job.
const EVENTS: usize = 10_000;
/// Steps of one job, enough for a curve.
const STEPS: i32 = 2000;
/// Time limit of a page.
const PATIENCE: Duration = Duration::from_secs(15);

/// All of it. A coordinator that is away is asked once.
pub(super) async fn gather(to: &mut Gather, wanted: &BundleRequest, coordinator: &Coordinator) {
    let client = &coordinator.client;
    match client.who_am_i().await {
        Ok(answer) => {
            let text = to.json("WhoAmIResponse", &answer);
            to.add_or_miss("cluster/whoami.json", text, LONGEST).await;
        }
        Err(error) if error.is_away() => {
            return to.miss("what the coordinator knows", error.to_string()).await;
        }
        Err(error) => to.miss("cluster/whoami.json", error.to_string()).await,
    }
    let cluster = client.get_cluster().await;
    let text = shown(cluster, |answer| to.json("GetClusterResponse", answer));
    to.add_or_miss("cluster/cluster.json", text, LONGEST).await;
    let workers = client.list_workers().await;
    let text = shown(workers, |workers| to.json_lines("Worker", workers));
    to.add_or_miss("cluster/workers.jsonl", text, LONGEST_LOG).await;
    to.stage("jobs");
    let listed = client.list_jobs(v1::ListJobsRequest::default(), JOBS).await;
    let chosen = listed.as_ref().map(|jobs| in_full(jobs)).unwrap_or_default();
    let text = shown(listed, |jobs| to.json_lines("Job", jobs));
    to.add_or_miss("jobs.jsonl", text, LONGEST_LOG).await;
    let mut ids = wanted.jobs.clone();
    ids.extend(chosen.into_iter().filter(|id| !wanted.jobs.contains(id)));
    for id in ids {
        job(to, coordinator, id).await;
    }
}

/// What was answered, as text.
fn shown<T>(
    answer: Result<T, ClientError>,
    write: impl FnOnce(&T) -> Result<String, String>,
) -> Result<String, String> {
    answer.map_err(|error| error.to_string()).and_then(|answer| write(&answer))
}

/// The newest jobs that failed or have not ended. They come newest first.
fn in_full(jobs: &[v1::Job]) -> Vec<Uuid> {
    jobs.iter()
        .filter(|job| job.state() == JobState::Failed || !is_terminal(job.state()))
        .filter_map(|job| job.job_id.parse().ok())
        .take(IN_FULL)
        .collect()
}

async fn job(to: &mut Gather, coordinator: &Coordinator, id: Uuid) {
    let client = &coordinator.client;
    let job = client.get_job(id).await;
    let text = shown(job, |job| to.json("Job", job));
    let failed = text.is_err();
    to.add_or_miss(&format!("jobs/{id}/job.json"), text, LONGEST).await;
    if failed {
        return;
    }
    let events = client.list_events(id, EVENTS).await;
    let text = shown(events, |events| to.json_lines("JobEvent", events));
    to.add_or_miss(&format!("jobs/{id}/events.jsonl"), text, LONGEST_LOG).await;
    let steps = client.thinned_steps(id, STEPS).await;
    let text = shown(steps, |steps| to.json_lines("StepReport", steps));
    to.add_or_miss(&format!("jobs/{id}/steps.jsonl"), text, LONGEST_LOG).await;
    let artifacts = client.list_artifacts(id).await;
    let text = shown(artifacts, |artifacts| to.json_lines("Artifact", artifacts));
    to.add_or_miss(&format!("jobs/{id}/artifacts.jsonl"), text, LONGEST).await;
}

/// /metrics of the coordinator, and of a worker on this machine if it serves them in the clear.
pub(super) async fn metrics(to: &mut Gather, wanted: &BundleRequest, coordinator: Option<&Coordinator>) {
    let url = wanted.http.clone().or_else(|| pages_of(&coordinator?.url));
    if let Some(url) = url {
        let found = coordinator.and_then(|coordinator| coordinator.found.as_ref());
        let connector = found
            .map_or_else(Connector::plain, |found| Connector::to(found.trust.clone(), Server::Coordinator));
        let token = found.and_then(|found| found.token.as_ref());
        let text = page(&connector, &url, token).await.map_err(|reason| format!("{url}: {reason}"));
        to.add_or_miss("metrics/coordinator.txt", text, LONGEST_LOG).await;
    }
    let worker = Uri::from_static("http://127.0.0.1:7081");
    let text = page(&Connector::plain(), &worker, None).await.map_err(|reason| format!("{worker}: {reason}"));
    to.add_or_miss("metrics/worker.txt", text, LONGEST_LOG).await;
}

/// Where a coordinator serves pages if nobody says otherwise: at the next port.
fn pages_of(url: &Uri) -> Option<Uri> {
    let port = url.port_u16()?.checked_add(1)?;
    format!("{}://{}:{port}", url.scheme_str()?, url.host()?).parse().ok()
}

async fn page(connector: &Connector, url: &Uri, token: Option<&AccessToken>) -> Result<String, String> {
    let asked = async {
        let mut stream = connector.connect_to_pages(url).await.map_err(|error| error.to_string())?;
        // Only over TLS: whoever reads it can use it.
        let token = token.filter(|_| url.scheme_str() == Some("https"));
        let token =
            token.map_or(String::new(), |token| format!("Authorization: Bearer {}\r\n", token.reveal()));
        let authority = url.authority().map_or("", |authority| authority.as_str());
        // 1.0: the body ends with the connection.
        let request = format!("GET /metrics HTTP/1.0\r\nHost: {authority}\r\n{token}\r\n");
        stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
        let mut answer = Vec::new();
        let read = stream.take(LONGEST_LOG as u64).read_to_end(&mut answer).await;
        // An end without TLS's own word for it is one too, behind a whole answer.
        body(&String::from_utf8_lossy(&answer)).map_err(|reason| match read {
            Err(error) => error.to_string(),
            Ok(_) => reason,
        })
    };
    tokio::time::timeout(PATIENCE, asked).await.map_err(|_| "no answer".to_owned())?
}

fn body(answer: &str) -> Result<String, String> {
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("it answered with no page")?;
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(format!("it answered {status:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_failed_or_run_are_shown_in_full() {
        let job = |number: u128, state: JobState| v1::Job {
            job_id: Uuid::from_u128(number).to_string(),
            state: state.into(),
            ..v1::Job::default()
        };
        let jobs = [
            job(1, JobState::Succeeded),
            job(2, JobState::Failed),
            job(3, JobState::Running),
            job(4, JobState::Cancelled),
        ];
        assert_eq!(in_full(&jobs), [Uuid::from_u128(2), Uuid::from_u128(3)]);
        let many: Vec<v1::Job> = (0..50).map(|number| job(number, JobState::Failed)).collect();
        assert_eq!(in_full(&many).len(), IN_FULL);
    }

    #[test]
    fn pages_are_at_the_next_port() {
        let of = |url: &'static str| pages_of(&Uri::from_static(url)).map(|url| url.to_string());
        assert_eq!(of("https://head:7070").as_deref(), Some("https://head:7071/"));
        assert_eq!(of("http://[::1]:9/").as_deref(), Some("http://[::1]:10/"));
        assert_eq!(of("http://h:65535"), None);
    }

    #[test]
    fn only_a_page_is_taken_for_one() {
        assert_eq!(body("HTTP/1.0 200 OK\r\nA: b\r\n\r\nx 1\n"), Ok("x 1\n".to_owned()));
        assert!(body("HTTP/1.1 401 Unauthorized\r\n\r\nno").expect_err("refused").contains("401"));
        assert!(body("SSH-2.0").is_err() && body("").is_err());
    }
}

//! What a job's watchers see, when they saw it, and what follows from that.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use ringtune_proto::v1::{
    self, JobState, job_event::Event, job_service_client::JobServiceClient, watch_job_response::Response,
};
use tokio::{task::JoinHandle, time::sleep};
use tonic::transport::{Channel, Endpoint};

/// Between two looks at the job, and two attempts to reach a coordinator that is away.
const PAUSE: Duration = Duration::from_millis(20);
/// A coordinator that does not answer within this is away.
const PATIENCE: Duration = Duration::from_secs(2);

/// An event and when it came here.
#[derive(Clone, Debug)]
pub struct Seen {
    /// By this process's own clock.
    pub at: Instant,
    /// What it said.
    pub event: Event,
}

/// What a fault cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// From the first fault to the first word of the job about it.
    pub detect: Option<Duration>,
    /// From the first fault to the first step of a newer ring.
    pub resume: Option<Duration>,
    /// Steps that were stored and done again.
    pub steps_lost: i64,
}

#[derive(Debug, Default)]
struct Told {
    events: Vec<Seen>,
    sequence: u64,
    job: Option<v1::Job>,
}

/// Follows one job through everything that happens to its coordinator.
#[derive(Debug)]
pub struct Story {
    told: Arc<Mutex<Told>>,
    followers: [JoinHandle<()>; 2],
}

impl Story {
    /// Of a job at the coordinator at HOST:PORT.
    pub fn follow(coordinator: &str, job_id: &str) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{coordinator}"))?.connect_timeout(PATIENCE);
        let client = JobServiceClient::new(endpoint.connect_lazy());
        let told = Arc::new(Mutex::new(Told::default()));
        let watching = tokio::spawn(watch(client.clone(), job_id.to_owned(), Arc::clone(&told)));
        let looking = tokio::spawn(look(client, job_id.to_owned(), Arc::clone(&told)));
        Ok(Self { told, followers: [watching, looking] })
    }

    /// All events so far, in their order.
    pub fn events(&self) -> Vec<Seen> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).events.clone()
    }

    /// The job as it was when the coordinator last answered.
    pub fn job(&self) -> Option<v1::Job> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).job.clone()
    }

    /// The newest step that is stored; 0: none.
    pub fn step(&self) -> i64 {
        newest_step(&self.told.lock().unwrap_or_else(PoisonError::into_inner).events)
    }

    /// The sequence number of the newest event that came.
    pub fn told(&self) -> u64 {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).sequence
    }

    /// The newest ring's epoch, as far as it is known; 0: there was none.
    pub fn epoch(&self) -> u64 {
        let steps = self.events().iter().filter_map(|seen| step(seen).map(|step| step.epoch)).max();
        let ring = self.job().and_then(|job| job.ring).map(|ring| ring.epoch);
        steps.max(ring).unwrap_or_default()
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        for follower in &self.followers {
            follower.abort();
        }
    }
}

async fn watch(mut client: JobServiceClient<Channel>, job_id: String, told: Arc<Mutex<Told>>) {
    loop {
        let after_sequence = told.lock().unwrap_or_else(PoisonError::into_inner).sequence;
        let request = v1::WatchJobRequest { job_id: job_id.clone(), after_sequence };
        if let Ok(stream) = client.watch_job(request).await {
            let mut stream = stream.into_inner();
            while let Ok(Some(message)) = stream.message().await {
                let Some(Response::Event(event)) = message.response else { continue };
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                told.sequence = event.sequence;
                told.events.extend(event.event.map(|event| Seen { at: Instant::now(), event }));
            }
        }
        sleep(PAUSE).await;
    }
}

async fn look(mut client: JobServiceClient<Channel>, job_id: String, told: Arc<Mutex<Told>>) {
    loop {
        let request = v1::GetJobRequest { job_id: job_id.clone() };
        if let Ok(Ok(answer)) = tokio::time::timeout(PATIENCE, client.get_job(request)).await {
            told.lock().unwrap_or_else(PoisonError::into_inner).job = answer.into_inner().job;
        }
        sleep(PAUSE).await;
    }
}

/// Whether a job is over.
pub fn has_ended(job: &v1::Job) -> bool {
    matches!(job.state(), JobState::Succeeded | JobState::Failed | JobState::Cancelled)
}

/// The report of a step, if it is one.
pub fn step(seen: &Seen) -> Option<&v1::StepReport> {
    match &seen.event {
        Event::Step(step) => Some(step),
        _ => None,
    }
}

/// A line of the log, if it is one.
pub fn line(seen: &Seen) -> Option<&v1::LogLine> {
    match &seen.event {
        Event::Log(line) => Some(line),
        _ => None,
    }
}

fn newest_step(events: &[Seen]) -> i64 {
    events.iter().filter_map(|seen| step(seen).map(|step| step.step)).max().unwrap_or_default()
}

/// Whether an event says that a member of the ring is missing or a link is broken.
fn tells_of_a_loss(seen: &Seen) -> bool {
    const WORDS: [&str; 9] = [
        "lost",
        "broken",
        "gone",
        "away",
        "waiting",
        "re-forming",
        "no sign of life",
        "closed the ring",
        "cannot reach",
    ];
    match &seen.event {
        Event::Log(line) => WORDS.iter().any(|word| line.message.contains(word)),
        Event::StateChange(change) => WORDS.iter().any(|word| change.reason.contains(word)),
        _ => false,
    }
}

/// What a fault at `since` cost, when the newest ring's epoch was `epoch`.
pub fn measure(events: &[Seen], since: Instant, epoch: u64) -> Measured {
    let after = || events.iter().filter(|seen| seen.at >= since);
    let elapsed = |seen: &Seen| seen.at.duration_since(since);
    Measured {
        detect: after().find(|seen| tells_of_a_loss(seen)).map(elapsed),
        resume: after().find(|seen| step(seen).is_some_and(|step| step.epoch > epoch)).map(elapsed),
        steps_lost: steps_done_again(events, since),
    }
}

/// Rank 0 says where a ring begins: "resumed after step N; …", or "training: N steps" from the first one on.
fn steps_done_again(events: &[Seen], since: Instant) -> i64 {
    let mut lost = 0;
    for (index, seen) in events.iter().enumerate().filter(|(_, seen)| seen.at >= since) {
        let Some(said) = line(seen).filter(|line| line.rank == Some(0)) else { continue };
        let begins_after = match said.message.strip_prefix("resumed after step ") {
            Some(rest) => {
                rest.split(|letter: char| !letter.is_ascii_digit()).next().and_then(|n| n.parse().ok())
            }
            None => said.message.starts_with("training: ").then_some(0),
        };
        if let Some(begins_after) = begins_after {
            lost += (newest_step(&events[..index]) - begins_after).max(0);
        }
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(start: Instant) -> Vec<Seen> {
        let seen = |milliseconds, event| Seen { at: start + Duration::from_millis(milliseconds), event };
        let step = |step, epoch| Event::Step(v1::StepReport { step, epoch, ..Default::default() });
        let said = |rank, text: &str| {
            Event::Log(v1::LogLine { message: text.to_owned(), rank, ..Default::default() })
        };
        let log = |text: &str| said(Some(0), text);
        vec![
            seen(0, log("training: 60 steps")),
            seen(100, step(1, 1)),
            seen(200, step(2, 1)),
            seen(300, step(3, 1)),
            seen(900, said(None, "the worker of rank 1 is lost")),
            seen(1000, said(Some(1), "resumed after step 2; training: steps 3 to 60")),
            seen(1000, log("resumed after step 2; training: steps 3 to 60")),
            seen(1200, step(4, 2)),
        ]
    }

    #[test]
    fn the_first_word_the_first_step_and_the_steps_done_again_are_measured() {
        let start = Instant::now();
        let measured = measure(&told(start), start + Duration::from_millis(400), 1);
        let milliseconds = Duration::from_millis;
        assert_eq!(measured.detect, Some(milliseconds(500)));
        assert_eq!(measured.resume, Some(milliseconds(800)));
        assert_eq!(measured.steps_lost, 1);
    }

    #[test]
    fn what_was_before_the_fault_does_not_count() {
        let start = Instant::now();
        let measured = measure(&told(start), start + Duration::from_millis(1100), 2);
        assert_eq!(measured, Measured::default());
    }
}

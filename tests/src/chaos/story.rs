//! A job's events with the times at which they came.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use ringtune_proto::v1::{
    self, JobState, job_event::Event, job_service_client::JobServiceClient, watch_job_response::Response,
};
use tokio::{task::JoinHandle, time::sleep};
use tonic::transport::Channel;

use super::sight::Sight;
use crate::Door;

/// Between two looks at the job, and two attempts to reach a coordinator that is away.
const PAUSE: Duration = Duration::from_millis(20);
/// A coordinator that does not answer within this is away.
const PATIENCE: Duration = Duration::from_secs(2);

/// An event and when it came here.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Time by this process's clock.
    pub at: Instant,
    /// The event.
    pub event: Event,
}

#[derive(Debug, Default)]
struct Told {
    events: Vec<Seen>,
    sequence: u64,
    newest_step: i64,
    newest_epoch: u64,
    job: Option<v1::Job>,
    sights: Vec<Sight>,
    members: BTreeSet<String>,
}

impl Told {
    fn take_event(&mut self, event: v1::JobEvent) {
        self.sequence = event.sequence;
        let Some(event) = event.event else { return };
        if let Event::Step(step) = &event {
            self.newest_step = self.newest_step.max(step.step);
            self.newest_epoch = self.newest_epoch.max(step.epoch);
        }
        self.events.push(Seen { at: Instant::now(), event });
    }

    fn take_job(&mut self, job: Option<v1::Job>) {
        let Some(job) = job else { return };
        let sight = Sight::of(&job, Instant::now());
        self.newest_epoch = self.newest_epoch.max(sight.epoch);
        if self.sights.last().is_none_or(|last| !last.says_the_same(&sight)) {
            self.sights.push(sight);
        }
        if let Some(ring) = &job.ring {
            self.members = ring.members.iter().map(|member| member.worker_id.clone()).collect();
        }
        self.job = Some(job);
    }
}

/// Follows one job through everything that happens to its coordinator.
#[derive(Debug)]
pub struct Story {
    told: Arc<Mutex<Told>>,
    followers: [JoinHandle<()>; 2],
}

impl Story {
    /// Of a job at a coordinator.
    pub fn follow(coordinator: &Door, job_id: &str) -> Result<Self> {
        let client = JobServiceClient::new(coordinator.channel_within(PATIENCE)?);
        let told = Arc::new(Mutex::new(Told::default()));
        let watching = tokio::spawn(watch(client.clone(), job_id.to_owned(), Arc::clone(&told)));
        let looking = tokio::spawn(look(client, job_id.to_owned(), Arc::clone(&told)));
        Ok(Self { told, followers: [watching, looking] })
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All events so far, in their order.
    pub fn events(&self) -> Vec<Seen> {
        self.lock().events.clone()
    }

    /// Sights of GetJob so far, each change once.
    pub fn sights(&self) -> Vec<Sight> {
        self.lock().sights.clone()
    }

    /// The events that came since then. Not all are copied: a long job has many.
    pub fn events_since(&self, since: Instant) -> Vec<Seen> {
        let told = self.lock();
        let first = told.events.partition_point(|seen| seen.at < since);
        told.events.get(first..).unwrap_or_default().to_vec()
    }

    /// Sights of GetJob since then.
    pub fn sights_since(&self, since: Instant) -> Vec<Sight> {
        let told = self.lock();
        let first = told.sights.partition_point(|sight| sight.at < since);
        told.sights.get(first..).unwrap_or_default().to_vec()
    }

    /// The job as it was when the coordinator last answered.
    pub fn job(&self) -> Option<v1::Job> {
        self.lock().job.clone()
    }

    /// The newest step that is stored; 0: none.
    pub fn step(&self) -> i64 {
        self.lock().newest_step
    }

    /// The sequence number of the newest event that came.
    pub fn told(&self) -> u64 {
        self.lock().sequence
    }

    /// The newest ring's epoch, as far as it is known; 0: there was none.
    pub fn epoch(&self) -> u64 {
        self.lock().newest_epoch
    }

    /// The ids of the workers of its newest ring, also when that is over.
    pub fn members(&self) -> BTreeSet<String> {
        self.lock().members.clone()
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
                told.lock().unwrap_or_else(PoisonError::into_inner).take_event(event);
            }
        }
        sleep(PAUSE).await;
    }
}

async fn look(mut client: JobServiceClient<Channel>, job_id: String, told: Arc<Mutex<Told>>) {
    loop {
        let request = v1::GetJobRequest { job_id: job_id.clone(), ..Default::default() };
        if let Ok(Ok(answer)) = tokio::time::timeout(PATIENCE, client.get_job(request)).await {
            let job = answer.into_inner().job;
            told.lock().unwrap_or_else(PoisonError::into_inner).take_job(job);
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

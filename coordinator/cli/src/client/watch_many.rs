//! Following many jobs through lost connections: `WatchJobs`, begun anew after each.

use std::collections::HashMap;

use ringtune_proto::v1::{self, watch_jobs_response::Response};
use tonic::{Request, Status, Streaming};
use uuid::Uuid;

use super::{Client, ClientError, outage::Outages, outage::unless_silent, watch::ends_its_job};

/// What a watcher of many jobs learns.
#[derive(Debug)]
pub enum ManyNews {
    /// A job as it is, where that is not known from its events.
    Job(Box<v1::Job>),
    /// The next event of a job; after an outage some may be left out, for which its job came.
    Event(Box<v1::JobEvent>),
    /// The coordinator cannot be reached just now; the watcher goes on trying.
    Away(String),
    /// It answers again.
    Back,
}

/// Follows some jobs until all of them have ended, or all there are without end.
#[derive(Debug)]
pub struct WatchMany {
    client: Client,
    /// Those that go on; none where all are followed.
    jobs: Option<Vec<String>>,
    /// The newest event of each job that goes on.
    seen: HashMap<String, u64>,
    stream: Option<Streaming<v1::WatchJobsResponse>>,
    outages: Outages,
}

impl Client {
    /// Follows these jobs from now on; if none is named, all.
    pub fn watch_many(&self, jobs: &[Uuid]) -> WatchMany {
        let jobs: Vec<String> = jobs.iter().map(Uuid::to_string).collect();
        WatchMany {
            client: self.clone(),
            jobs: Some(jobs).filter(|jobs| !jobs.is_empty()),
            seen: HashMap::new(),
            stream: None,
            outages: Outages::default(),
        }
    }
}

impl WatchMany {
    /// The next news; none when all jobs that were named have ended.
    ///
    /// Safe to drop in mid-wait: nothing is lost.
    pub async fn next(&mut self) -> Result<Option<ManyNews>, ClientError> {
        while self.jobs.as_ref().is_none_or(|jobs| !jobs.is_empty()) {
            let status = match self.next_answer().await {
                Ok(Some(answer)) => match self.take(answer) {
                    Some(news) => return Ok(Some(news)),
                    None => continue,
                },
                Ok(None) if self.outages.back() => return Ok(Some(ManyNews::Back)),
                Ok(None) => continue,
                Err(status) => status,
            };
            self.stream = None;
            if let Some(problem) = self.outages.after(&self.client, "watch the jobs", status).await? {
                return Ok(Some(ManyNews::Away(problem)));
            }
        }
        Ok(None)
    }

    /// None: the stream was opened.
    async fn next_answer(&mut self) -> Result<Option<v1::WatchJobsResponse>, Status> {
        let Some(stream) = &mut self.stream else {
            let job_ids = self.jobs.clone().unwrap_or_default();
            let request = Request::new(v1::WatchJobsRequest { job_ids });
            let mut jobs = self.client.jobs();
            self.stream = Some(unless_silent(jobs.watch_jobs(request)).await?.into_inner());
            return Ok(None);
        };
        match unless_silent(stream.message()).await? {
            Some(answer) => Ok(Some(answer)),
            None => Err(Status::unavailable("the stream of events ended early")),
        }
    }

    fn take(&mut self, answer: v1::WatchJobsResponse) -> Option<ManyNews> {
        self.outages.over();
        match answer.response? {
            Response::Job(job) => {
                let before = self.seen.insert(job.job_id.clone(), job.last_sequence);
                if ringtune_proto::convert::is_terminal(job.state()) {
                    self.ended(&job.job_id);
                }
                // After an outage every job comes again.
                (before != Some(job.last_sequence)).then(|| ManyNews::Job(Box::new(job)))
            }
            Response::Event(event) => {
                self.seen.insert(event.job_id.clone(), event.sequence);
                if ends_its_job(&event) {
                    self.ended(&event.job_id);
                }
                Some(ManyNews::Event(Box::new(event)))
            }
            // What has ended is watched no more.
            Response::Alive(_) | Response::Deleted(_) => None,
        }
    }

    fn ended(&mut self, job: &str) {
        self.seen.remove(job);
        if let Some(jobs) = &mut self.jobs {
            jobs.retain(|id| id != job);
        }
    }
}

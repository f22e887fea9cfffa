//! Following a job through lost connections: `WatchJob`, resumed after the last event seen.

use ringtune_proto::{
    convert::is_terminal,
    v1::{self, job_event::Event, watch_job_response::Response},
};
use tonic::{Request, Status, Streaming};
use uuid::Uuid;

use super::{Client, ClientError, outage::Outages, outage::unless_silent};

/// What a watcher learns.
#[derive(Debug)]
pub enum WatchNews {
    /// The next event of the job; sequence numbers only grow.
    Event(Box<v1::JobEvent>),
    /// Ranks that went on, for those where that is news.
    Progress(Vec<v1::RankProgress>),
    /// What a step takes on each rank now.
    Timings(Vec<v1::RankTiming>),
    /// The coordinator cannot be reached just now; the watcher goes on trying.
    Away(String),
    /// It answers again.
    Back,
}

/// Follows one job's events until the one that ended it.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    job: Uuid,
    after_sequence: u64,
    stream: Option<Streaming<v1::WatchJobResponse>>,
    outages: Outages,
    ended: bool,
}

impl Client {
    /// Follows a job's events from its first one.
    pub fn watch(&self, job: Uuid) -> Watch {
        Watch {
            client: self.clone(),
            job,
            after_sequence: 0,
            stream: None,
            outages: Outages::default(),
            ended: false,
        }
    }
}

impl Watch {
    /// The next news; none after the event that ended the job.
    ///
    /// Safe to drop in mid-wait: nothing is lost.
    pub async fn next(&mut self) -> Result<Option<WatchNews>, ClientError> {
        while !self.ended {
            let status = match self.next_answer().await {
                Ok(Some(answer)) => match self.take(answer) {
                    Some(news) => return Ok(Some(news)),
                    None => continue,
                },
                Ok(None) if self.outages.back() => return Ok(Some(WatchNews::Back)),
                Ok(None) => continue,
                Err(status) => status,
            };
            self.stream = None;
            if let Some(problem) = self.outages.after(&self.client, "watch the job", status).await? {
                return Ok(Some(WatchNews::Away(problem)));
            }
        }
        Ok(None)
    }

    /// None: the stream was opened.
    async fn next_answer(&mut self) -> Result<Option<v1::WatchJobResponse>, Status> {
        let Some(stream) = &mut self.stream else {
            let request = Request::new(v1::WatchJobRequest {
                job_id: self.job.to_string(),
                after_sequence: self.after_sequence,
            });
            let mut jobs = self.client.jobs();
            self.stream = Some(unless_silent(jobs.watch_job(request)).await?.into_inner());
            return Ok(None);
        };
        match unless_silent(stream.message()).await? {
            Some(answer) => Ok(Some(answer)),
            None => Err(Status::unavailable("the stream of events ended early")),
        }
    }

    fn take(&mut self, answer: v1::WatchJobResponse) -> Option<WatchNews> {
        self.outages.over();
        match answer.response? {
            Response::Event(event) => {
                self.after_sequence = self.after_sequence.max(event.sequence);
                self.ended = ends_its_job(&event);
                Some(WatchNews::Event(Box::new(event)))
            }
            Response::Progress(progress) => Some(WatchNews::Progress(progress.ranks)),
            Response::Timings(timings) => Some(WatchNews::Timings(timings.ranks)),
            Response::Alive(_) => None,
        }
    }
}

/// Whether nothing more happens to its job.
pub(super) fn ends_its_job(event: &v1::JobEvent) -> bool {
    matches!(&event.event, Some(Event::StateChange(change)) if is_terminal(change.to()))
}

//! Following a job through lost connections: `WatchJob`, resumed after the last event seen.

use std::time::{Duration, Instant};

use backon::BackoffBuilder as _;
use ringtune_proto::{
    convert::is_terminal,
    v1::{self, job_event::Event},
};
use tonic::{Request, Status, Streaming};
use uuid::Uuid;

use super::{Client, ClientError, backoff, is_transient};

/// How long a coordinator may be away before a watcher gives up.
const PATIENCE: Duration = Duration::from_secs(120);
const LONGEST_DELAY: Duration = Duration::from_secs(2);

/// What a watcher learns.
#[derive(Debug)]
pub enum WatchNews {
    /// The next event of the job; sequence numbers only grow.
    Event(Box<v1::JobEvent>),
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
    stream: Option<Streaming<v1::JobEvent>>,
    outage: Option<Outage>,
    ended: bool,
}

/// The time since the last event that came before the connection broke.
#[derive(Debug)]
struct Outage {
    since: Instant,
    delays: backon::ExponentialBackoff,
    /// The user knows that the coordinator is away.
    announced: bool,
}

impl Client {
    /// Follows a job's events from its first one.
    pub fn watch(&self, job: Uuid) -> Watch {
        Watch { client: self.clone(), job, after_sequence: 0, stream: None, outage: None, ended: false }
    }
}

impl Watch {
    /// The next news; none after the event that ended the job.
    ///
    /// Safe to drop in mid-wait: nothing is lost.
    pub async fn next(&mut self) -> Result<Option<WatchNews>, ClientError> {
        while !self.ended {
            let problem = match self.next_event().await {
                Ok(News::Opened) => match &mut self.outage {
                    Some(outage) if outage.announced => {
                        outage.announced = false;
                        return Ok(Some(WatchNews::Back));
                    }
                    _ => continue,
                },
                Ok(News::Event(event)) => {
                    self.outage = None;
                    self.after_sequence = self.after_sequence.max(event.sequence);
                    self.ended = ends_the_job(&event);
                    return Ok(Some(WatchNews::Event(event)));
                }
                Ok(News::StreamEnded) => "the stream of events ended early".to_owned(),
                Err(status) if is_transient(&status) => super::transport_problem(&status),
                Err(status) => return Err(self.client.failure("watch the job", status)),
            };
            self.stream = None;
            let outage = self.outage.get_or_insert_with(|| Outage {
                since: Instant::now(),
                delays: backoff().without_max_times().build(),
                announced: false,
            });
            if outage.since.elapsed() > PATIENCE {
                return Err(ClientError::Unreachable { url: self.client.url.clone(), problem });
            }
            if !outage.announced {
                outage.announced = true;
                return Ok(Some(WatchNews::Away(problem)));
            }
            let delay = outage.delays.next().unwrap_or(LONGEST_DELAY);
            tokio::time::sleep(delay).await;
        }
        Ok(None)
    }

    async fn next_event(&mut self) -> Result<News, Status> {
        let Some(stream) = &mut self.stream else {
            let request = Request::new(v1::WatchJobRequest {
                job_id: self.job.to_string(),
                after_sequence: self.after_sequence,
            });
            self.stream = Some(self.client.jobs().watch_job(request).await?.into_inner());
            return Ok(News::Opened);
        };
        Ok(stream.message().await?.map_or(News::StreamEnded, |event| News::Event(Box::new(event))))
    }
}

enum News {
    Opened,
    Event(Box<v1::JobEvent>),
    StreamEnded,
}

fn ends_the_job(event: &v1::JobEvent) -> bool {
    matches!(&event.event, Some(Event::StateChange(change)) if is_terminal(change.to()))
}

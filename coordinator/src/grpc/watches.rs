//! Streams of news that may be silent for hours: a sign of life tells that they are not broken.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use ringtune_proto::convert::{FieldError, parse};
use ringtune_proto::v1::{self, watch_job_response, watch_jobs_response};
use ringtune_shared::ids::JobId;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::ids::job_id;
use super::status::{FailedRequest, shutting_down, too_many};
use super::{Api, WATCHES};
use super::{outbound, outgoing};
use crate::access::Call;
use crate::core::Time;
use crate::metrics::Metrics;
use crate::service::{Clock, ManyNews, News, Watch, WatchMany};

/// A stream that has been silent for so long says that it lives.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
/// Jobs that one watch may name.
const MOST_NAMED: usize = 1000;

pub(super) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Where a stream's answers come from.
trait NewsSource: Send + 'static {
    type Answer: Send + 'static;

    /// The next answer; none at the end. Loses nothing when it is dropped in mid-wait.
    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Answer>, Status>> + Send;

    /// The answer that only says that the stream is alive.
    fn alive(now: Time) -> Self::Answer;
}

impl NewsSource for Watch {
    type Answer = v1::WatchJobResponse;

    async fn next(&mut self) -> Result<Option<v1::WatchJobResponse>, Status> {
        use watch_job_response::Response;
        loop {
            let response = match Watch::next(self).await.map_err(FailedRequest::from)? {
                None => return Ok(None),
                Some(News::Event(event)) => outbound::event(event).map(Response::Event),
                Some(News::Progress(ranks)) => {
                    let ranks = ranks.into_iter().map(outbound::progress).collect();
                    Some(Response::Progress(v1::RingProgress { ranks }))
                }
                Some(News::Timings(timings)) => Some(Response::Timings(outbound::timings(&timings))),
            };
            if response.is_some() {
                return Ok(Some(v1::WatchJobResponse { response }));
            }
        }
    }

    fn alive(now: Time) -> v1::WatchJobResponse {
        v1::WatchJobResponse { response: Some(watch_job_response::Response::Alive(sign_of_life(now))) }
    }
}

impl NewsSource for WatchMany {
    type Answer = v1::WatchJobsResponse;

    async fn next(&mut self) -> Result<Option<v1::WatchJobsResponse>, Status> {
        use watch_jobs_response::Response;
        loop {
            let response = match WatchMany::next(self).await.map_err(FailedRequest::from)? {
                None => return Ok(None),
                Some(ManyNews::Job(job)) => Some(Response::Job(outbound::job_without_spec(&job))),
                Some(ManyNews::Event(event)) => {
                    outbound::event(Arc::unwrap_or_clone(event)).map(Response::Event)
                }
                Some(ManyNews::Deleted(id)) => {
                    Some(Response::Deleted(v1::DeletedJob { job_id: id.to_string() }))
                }
            };
            if response.is_some() {
                return Ok(Some(v1::WatchJobsResponse { response }));
            }
        }
    }

    fn alive(now: Time) -> v1::WatchJobsResponse {
        v1::WatchJobsResponse { response: Some(watch_jobs_response::Response::Alive(sign_of_life(now))) }
    }
}

fn sign_of_life(now: Time) -> v1::SignOfLife {
    v1::SignOfLife { time: Some(outbound::time(now)) }
}

pub(super) async fn watch_job(
    api: &Api,
    call: &Call,
    request: v1::WatchJobRequest,
) -> Result<Answers<v1::WatchJobResponse>, FailedRequest> {
    let id = job_id(&request.job_id)?;
    api.check_reach(call, id).await?;
    let place = place(api)?;
    let watch = api.handle.watch_job(id, request.after_sequence).await?;
    Ok(read(api, stream(watch, place, api.handle.clock(), api.shutdown.clone())))
}

pub(super) async fn watch_jobs(
    api: &Api,
    call: &Call,
    request: v1::WatchJobsRequest,
) -> Result<Answers<v1::WatchJobsResponse>, FailedRequest> {
    let named = named(&request.job_ids)?;
    let place = place(api)?;
    let watch = api.handle.watch_jobs(&named, call.only_of()).await?;
    Ok(read(api, stream(watch, place, api.handle.clock(), api.shutdown.clone())))
}

/// A stream whose place is not kept for a client that does not read: there are few of them.
fn read<T: Send + 'static>(api: &Api, answers: Answers<T>) -> Answers<T> {
    Box::pin(outgoing::to_reader(answers, api.idle_limit))
}

fn named(ids: &[String]) -> Result<Vec<JobId>, FieldError> {
    if ids.len() > MOST_NAMED {
        return Err(FieldError::new("job_ids", format!("{} jobs; allowed: at most {MOST_NAMED}", ids.len())));
    }
    ids.iter().enumerate().map(|(index, text)| parse(&format!("job_ids[{index}]"), text)).collect()
}

/// A place among the streams of news, which is given back when it is dropped.
struct WatchPermit {
    metrics: Metrics,
    _permit: OwnedSemaphorePermit,
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        self.metrics.watches.dec();
    }
}

fn place(api: &Api) -> Result<WatchPermit, Status> {
    let permit = api.watches.clone().try_acquire_owned().map_err(|_| too_many("watches", WATCHES))?;
    api.metrics.watches.inc();
    Ok(WatchPermit { metrics: api.metrics.clone(), _permit: permit })
}

/// `place` is given back when the stream is dropped.
fn stream<S: NewsSource>(
    source: S,
    place: impl Send + 'static,
    clock: Clock,
    shutdown: CancellationToken,
) -> Answers<S::Answer> {
    Box::pin(futures::stream::unfold(Some((source, place)), move |state| {
        let shutdown = shutdown.clone();
        async move {
            let (mut source, place) = state?;
            let answer = tokio::select! {
                answer = source.next() => answer.transpose()?,
                () = tokio::time::sleep(SIGN_OF_LIFE) => Ok(S::alive(clock.now())),
                () = shutdown.cancelled() => Err(shutting_down()),
            };
            // After a status nothing more is read from the stream.
            let state = answer.is_ok().then_some((source, place));
            Some((answer, state))
        }
    }))
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use tokio::sync::Semaphore;
    use tokio::time::Instant;

    use super::*;

    /// Answers after so many seconds each.
    struct Slow(std::vec::IntoIter<u64>);

    impl NewsSource for Slow {
        type Answer = Option<u64>;

        async fn next(&mut self) -> Result<Option<Option<u64>>, Status> {
            let Some(seconds) = self.0.as_slice().first().copied() else { return Ok(None) };
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            self.0.next();
            Ok(Some(Some(seconds)))
        }

        fn alive(_: Time) -> Option<u64> {
            None
        }
    }

    async fn slow(seconds: &[u64]) -> (Answers<Option<u64>>, CancellationToken, Arc<Semaphore>) {
        let (places, shutdown) = (Arc::new(Semaphore::new(1)), CancellationToken::new());
        let place = places.clone().acquire_owned().await.unwrap();
        let source = Slow(Vec::from(seconds).into_iter());
        (stream(source, place, Clock::start(), shutdown.clone()), shutdown, places)
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_never_silent_for_long_and_ends_with_its_source() {
        let (mut answers, _shutdown, places) = slow(&[1, 9, 3]).await;
        for expected in [1, 9, 3] {
            assert_eq!(answers.next().await.unwrap().unwrap(), Some(expected));
        }
        assert!(answers.next().await.is_none());
        drop(answers);
        assert_eq!(places.available_permits(), 1);

        let (mut answers, shutdown, _) = slow(&[1_000_000]).await;
        for _ in 0..3 {
            let began = Instant::now();
            assert_eq!(answers.next().await.unwrap().unwrap(), None, "a sign of life");
            assert_eq!(began.elapsed(), SIGN_OF_LIFE);
        }
        shutdown.cancel();
        assert_eq!(answers.next().await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
        assert!(answers.next().await.is_none());
    }

    #[test]
    fn too_many_or_strange_names_are_refused() {
        let id = || JobId::new().to_string();
        assert_eq!(named(&vec![id(); MOST_NAMED]).unwrap().len(), MOST_NAMED);
        assert_eq!(named(&vec![id(); MOST_NAMED + 1]).unwrap_err().field, "job_ids");
        assert_eq!(named(&[id(), "seven".to_owned()]).unwrap_err().field, "job_ids[1]");
    }
}

//! Calls of JobService for tests.

use std::sync::atomic::{AtomicU64, Ordering};

use ringtune_proto::v1::{self, JobState, job_event::Event, watch_job_response::Response};
use tonic::Streaming;

use crate::{coordinator::Coordinator, soon};

pub(crate) use crate::samples::{STEPS, spec};

impl Coordinator {
    pub(crate) async fn create(&self, world_size: i64) -> v1::Job {
        self.create_of(world_size, world_size).await
    }

    pub(crate) async fn create_of(&self, world_size: i64, min_world_size: i64) -> v1::Job {
        static REQUESTS: AtomicU64 = AtomicU64::new(0);
        let request_id = format!("test-{}", REQUESTS.fetch_add(1, Ordering::Relaxed));
        let min_world_size = Some(min_world_size);
        let world_size = Some(world_size);
        let cluster = v1::ClusterSpec { world_size, min_world_size, ..Default::default() };
        let spec = v1::JobSpec { cluster: Some(cluster), ..spec(1) };
        let request = v1::CreateJobRequest { spec: Some(spec), request_id, ..Default::default() };
        self.jobs().create_job(request).await.unwrap().into_inner().job.unwrap()
    }

    pub(crate) async fn job(&self, id: &str) -> v1::Job {
        let request = v1::GetJobRequest { job_id: id.to_owned(), ..Default::default() };
        self.jobs().get_job(request).await.unwrap().into_inner().job.unwrap()
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<v1::Job, tonic::Status> {
        let request = v1::CancelJobRequest { job_id: id.to_owned(), reason: "enough".to_owned() };
        Ok(self.jobs().cancel_job(request).await?.into_inner().job.unwrap())
    }

    pub(crate) async fn watch(&self, id: &str, after_sequence: u64) -> Watch {
        let request = v1::WatchJobRequest { job_id: id.to_owned(), after_sequence };
        let answers = self.jobs().watch_job(request).await.unwrap().into_inner();
        Watch { answers, last: after_sequence }
    }

    /// Waits for a job's end.
    pub(crate) async fn end(&self, id: &str) -> v1::Job {
        self.watch(id, 0).await.rest().await;
        self.job(id).await
    }
}

/// The events of a job; every one must carry the number that follows.
pub(crate) struct Watch {
    answers: Streaming<v1::WatchJobResponse>,
    last: u64,
}

impl Watch {
    pub(crate) async fn next(&mut self) -> Option<Event> {
        let event = loop {
            match soon("an answer", self.answers.message()).await.unwrap()?.response.unwrap() {
                Response::Event(event) => break event,
                Response::Progress(_) | Response::Timings(_) | Response::Alive(_) => {}
            }
        };
        assert_eq!(event.sequence, self.last + 1, "a gap before {event:?}");
        assert!(event.time.is_some() && !event.job_id.is_empty());
        self.last = event.sequence;
        Some(event.event.unwrap())
    }

    /// All events until the stream ends.
    pub(crate) async fn rest(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// Waits for the next word about ranks, passing over events.
    pub(crate) async fn next_progress(&mut self) -> Vec<v1::RankProgress> {
        loop {
            let answer = soon("an answer", self.answers.message()).await.unwrap().expect("the watch ended");
            match answer.response.unwrap() {
                Response::Event(event) => self.last = event.sequence,
                Response::Progress(progress) => return progress.ranks,
                Response::Timings(_) | Response::Alive(_) => {}
            }
        }
    }

    /// Waits for the next word about what steps take, passing over the rest.
    pub(crate) async fn next_timings(&mut self) -> Vec<v1::RankTiming> {
        loop {
            let answer = soon("an answer", self.answers.message()).await.unwrap().expect("the watch ended");
            if let Response::Timings(timings) = answer.response.unwrap() {
                return timings.ranks;
            }
        }
    }

    /// Passes over events until the job is in a state.
    pub(crate) async fn until(&mut self, state: JobState) {
        while let Some(event) = self.next().await {
            if matches!(event, Event::StateChange(change) if change.to() == state) {
                return;
            }
        }
        panic!("the job ended before it was {state:?}");
    }

    /// Passes over events until a line of the log holds a text; returns the line.
    pub(crate) async fn until_log(&mut self, text: &str) -> String {
        while let Some(event) = self.next().await {
            match event {
                Event::Log(line) if line.message.contains(text) => return line.message,
                _ => {}
            }
        }
        panic!("no line said {text:?}");
    }
}

pub(crate) fn states(events: &[Event]) -> Vec<JobState> {
    let state = |event: &Event| match event {
        Event::StateChange(change) => Some(change.to()),
        _ => None,
    };
    events.iter().filter_map(state).collect()
}

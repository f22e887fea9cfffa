//! What a stream asks of the API's services, in its caller's name.

use std::sync::Arc;
use std::time::Duration;

use prost_reflect::{DynamicMessage, ReflectMessage as _, Value};
use ringtune_proto::v1::JobState;
use tonic::{Code, Status, Streaming};
use uuid::Uuid;

use super::history::Said;
use crate::caller::Caller;
use crate::codec::{DynamicCodec, Sent};
use crate::{Gateway, calls, unary};

/// How long jobs may take to be looked up.
const PATIENCE: Duration = Duration::from_secs(10);

/// A watch's answers.
pub(super) type Answers = Streaming<DynamicMessage>;

/// Calls in one caller's name.
pub(super) struct Watches {
    gateway: Arc<Gateway>,
    caller: Caller,
}

/// A job as it is.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: Uuid,
    pub(super) ended: bool,
    pub(super) json: String,
}

/// What a watch of all jobs says.
#[derive(Debug)]
pub(super) enum News {
    /// A job as it is.
    Job(Job),
    /// Something happened to one.
    Changed(Uuid),
    /// One was deleted.
    Deleted(Uuid),
    /// Only that the watch is alive.
    Nothing,
}

impl Watches {
    pub(super) fn new(gateway: &Arc<Gateway>, caller: &Caller) -> Self {
        Self { gateway: gateway.clone(), caller: caller.clone() }
    }

    fn message(&self, name: &str) -> Result<prost_reflect::MessageDescriptor, Status> {
        let found = self.gateway.pool.get_message_by_name(&format!("ringtune.v1.{name}"));
        found.ok_or_else(|| Status::internal(format!("the API has no {name}")))
    }

    fn request(&self, name: &str, fields: &[(&str, Value)]) -> Result<tonic::Request<Sent>, Status> {
        let mut message = DynamicMessage::new(self.message(name)?);
        for (field, value) in fields {
            message
                .try_set_field_by_name(field, value.clone())
                .map_err(|error| Status::internal(error.to_string()))?;
        }
        self.caller.call(Ok(message))
    }

    /// A watch of these jobs; of all, where none are named.
    pub(super) async fn jobs(&self, ids: &[Uuid]) -> Result<Answers, Status> {
        let ids = ids.iter().map(|id| Value::String(id.to_string())).collect();
        let request = self.request("WatchJobsRequest", &[("job_ids", Value::List(ids))])?;
        let (path, codec) =
            (calls::path("/ringtune.v1.JobService/WatchJobs")?, self.message("WatchJobsResponse")?);
        let mut client = self.gateway.options.calls.client().await?;
        Ok(client.server_streaming(request, path, DynamicCodec(codec)).await?.into_inner())
    }

    /// A watch of one job.
    pub(super) async fn job(&self, id: &str, after: u64) -> Result<Answers, Status> {
        let fields = [("job_id", Value::String(id.to_owned())), ("after_sequence", Value::U64(after))];
        let request = self.request("WatchJobRequest", &fields)?;
        let (path, codec) =
            (calls::path("/ringtune.v1.JobService/WatchJob")?, self.message("WatchJobResponse")?);
        let mut client = self.gateway.options.calls.client().await?;
        Ok(client.server_streaming(request, path, DynamicCodec(codec)).await?.into_inner())
    }

    async fn one(
        &self,
        path: &str,
        request: tonic::Request<Sent>,
        answer: &str,
    ) -> Result<DynamicMessage, Status> {
        let (path, codec) = (calls::path(path)?, self.message(answer)?);
        let mut client = self.gateway.options.calls.client().await?;
        Ok(client.unary(request, path, DynamicCodec(codec)).await?.into_inner())
    }

    /// The cluster as JSON.
    pub(super) async fn cluster(&self) -> Result<String, Status> {
        let request = self.request("GetClusterRequest", &[])?;
        json(&self.one("/ringtune.v1.ClusterService/GetCluster", request, "GetClusterResponse").await?)
    }

    /// Jobs as they are now, without their specs. Those that are there no more are left out.
    pub(super) async fn look_up(&self, ids: &[Uuid]) -> Result<Vec<Job>, Status> {
        let late = |_| Err(Status::deadline_exceeded("the jobs could not be looked up in time"));
        match tokio::time::timeout(PATIENCE, self.all(ids)).await.unwrap_or_else(late) {
            // One of them was deleted.
            Err(status) if status.code() == Code::NotFound => {
                let mut found = Vec::new();
                for id in ids {
                    match tokio::time::timeout(PATIENCE, self.all(&[*id])).await.unwrap_or_else(late) {
                        Ok(jobs) => found.extend(jobs),
                        Err(status) if status.code() == Code::NotFound => {}
                        Err(status) => return Err(status),
                    }
                }
                Ok(found)
            }
            looked => looked,
        }
    }

    async fn all(&self, ids: &[Uuid]) -> Result<Vec<Job>, Status> {
        let mut found = Vec::new();
        if ids.is_empty() {
            return Ok(found);
        }
        let mut watch = self.jobs(ids).await?;
        while found.len() < ids.len() {
            // A watch of jobs says first how each of them is.
            match watch.message().await?.map(|message| news(&message)).transpose()? {
                Some(News::Job(job)) => found.push(job),
                Some(_) => {}
                None => break,
            }
        }
        Ok(found)
    }
}

fn json(message: &DynamicMessage) -> Result<String, Status> {
    String::from_utf8(unary::json(message)?).map_err(|_| Status::internal("JSON is no text"))
}

/// What an answer of several kinds is: the name of its only field, and the message there.
fn only(answer: &DynamicMessage) -> Option<(String, DynamicMessage)> {
    let field = answer.descriptor().fields().find(|field| answer.has_field(field))?;
    let message = answer.get_field(&field).as_message().cloned()?;
    Some((field.name().to_owned(), message))
}

fn text(message: &DynamicMessage, field: &str) -> String {
    message.get_field_by_name(field).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn uuid(message: &DynamicMessage) -> Result<Uuid, Status> {
    text(message, "job_id").parse().map_err(|_| Status::internal("a job's id is no UUID"))
}

/// What a watch of all jobs said.
pub(super) fn news(answer: &DynamicMessage) -> Result<News, Status> {
    match only(answer) {
        Some((name, job)) if name == "job" => {
            let state = job.get_field_by_name("state").and_then(|state| state.as_enum_number()).unwrap_or(0);
            let state = JobState::try_from(state).unwrap_or_default();
            let ended = matches!(state, JobState::Succeeded | JobState::Failed | JobState::Cancelled);
            Ok(News::Job(Job { id: uuid(&job)?, ended, json: json(&job)? }))
        }
        Some((name, event)) if name == "event" => Ok(News::Changed(uuid(&event)?)),
        Some((name, job)) if name == "deleted" => Ok(News::Deleted(uuid(&job)?)),
        _ => Ok(News::Nothing),
    }
}

/// What a watch of one job said; none: only that it is alive. What is no event is how things are, under its own name.
pub(super) fn said(answer: &DynamicMessage) -> Result<Option<Said>, Status> {
    let Some((name, message)) = only(answer) else { return Ok(None) };
    let said = match name.as_str() {
        "alive" => return Ok(None),
        "event" => {
            let sequence =
                message.get_field_by_name("sequence").and_then(|value| value.as_u64()).unwrap_or(0);
            Said::Event { sequence, is_step: message.has_field_by_name("step"), json: json(&message)? }
        }
        // It names the ranks of which there is news, and no others.
        "progress" => Said::Ranks(ranks(&message)?),
        _ => Said::State { name, json: json(&message)? },
    };
    Ok(Some(said))
}

/// The ranks of a RingProgress, each as JSON.
fn ranks(progress: &DynamicMessage) -> Result<Vec<(i32, String)>, Status> {
    let ranks = progress.get_field_by_name("ranks");
    let ranks = ranks.as_ref().and_then(|ranks| ranks.as_list()).unwrap_or_default();
    let each = ranks.iter().filter_map(Value::as_message).map(|rank| {
        let number = rank.get_field_by_name("rank").and_then(|number| number.as_i32()).unwrap_or(0);
        Ok((number, json(rank)?))
    });
    each.collect()
}

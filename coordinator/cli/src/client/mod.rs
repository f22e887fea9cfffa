//! A thin client of the coordinator: typed calls that are repeated while it cannot be reached.

mod access;
mod download;
mod history;
mod link;
mod lists;
mod outage;
mod retry;
mod sweeps;
mod upload;
mod url;
mod watch;
mod watch_many;

use std::{future::Future, time::Duration};

use ringtune_proto::v1::{
    self, artifact_service_client::ArtifactServiceClient, cluster_service_client::ClusterServiceClient,
    job_service_client::JobServiceClient,
};
use ringtune_security::Connector;
use ringtune_shared::trace::{TRACEPARENT, TraceContext};
use ringtune_shared::version::VERSION;
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt as _;
use uuid::Uuid;

pub use access::Which;
pub use download::SavedArtifact;
pub use link::{Bearer, probe};
use link::{Link, connect_error, misunderstanding, problem_of};
pub use lists::named;
use retry::{Retries, is_late, is_transient};
pub use upload::{Content, FileContent};
pub use url::{CoordinatorUrl, InvalidUrl};
pub use watch::{Watch, WatchNews};
pub use watch_many::{ManyNews, WatchMany};

/// How long one unary call may take: longer than the coordinator's own limit, so that its answer comes first.
const CALL_TIMEOUT: Duration = Duration::from_secs(35);
/// Things asked for in one page.
const PAGE_SIZE: i32 = 500;

/// A call that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing answered.
    #[error(
        "cannot reach the coordinator at {url}: {problem}\n  is it running? {}--coordinator URL or RINGTUNE_COORDINATOR \
         names another",
        how_to_start(url)
    )]
    Unreachable {
        /// Who was called.
        url: String,
        /// What the transport said.
        problem: String,
    },
    /// Something answered, but one side does not take the other for what it should be.
    #[error("cannot talk to the coordinator at {url}: {problem}")]
    NotTrusted {
        /// Who was called.
        url: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// It was reached, but did not answer in time: what was asked for may have been done.
    #[error("cannot {doing}: the coordinator at {url} was reached, but gave no answer in time ({problem})")]
    NoAnswer {
        /// For example "submit the job".
        doing: &'static str,
        /// Who was called.
        url: String,
        /// Whose time limit it was.
        problem: String,
    },
    /// The coordinator said no.
    #[error("cannot {doing}: {}{}", describe(status), where_to_look(status, url))]
    Refused {
        /// For example "submit the job".
        doing: &'static str,
        /// Who was called.
        url: String,
        /// Its answer, with its details.
        status: Box<Status>,
    },
    /// The coordinator's answer makes no sense.
    #[error("cannot {doing}: the coordinator at {url} answered with {problem}")]
    Nonsense {
        /// For example "submit the job".
        doing: &'static str,
        /// Who was called.
        url: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// A file of this machine could not be read or written.
    #[error("{doing} {}: {source}", path.display())]
    File {
        /// For example "cannot write".
        doing: &'static str,
        /// The file or folder.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl ClientError {
    /// The gRPC code that tells the kinds of failure apart; none for a file.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Unreachable { .. } | Self::NotTrusted { .. } => Some(Code::Unavailable),
            Self::NoAnswer { .. } => Some(Code::DeadlineExceeded),
            Self::Refused { status, .. } => Some(status.code()),
            Self::Nonsense { .. } => Some(Code::Internal),
            Self::File { .. } => None,
        }
    }

    /// Whether there was no connection, so that another call fails in the same way.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::NotTrusted { .. })
    }
}

/// A connection to one coordinator. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    url: String,
    link: Link,
    /// What makes jobs is part of it.
    trace: Option<TraceContext>,
}

impl Client {
    /// A client that connects with its first call, where neither side has to show who it is.
    pub fn new(url: &CoordinatorUrl) -> Self {
        Self::with(url, Connector::plain(), Bearer::none())
    }

    /// As [`Self::new`], with the connector's trust and a bearer token.
    pub fn with(url: &CoordinatorUrl, connector: Connector, bearer: Bearer) -> Self {
        Self { url: url.to_string(), link: link::open(url, connector, bearer), trace: None }
    }

    /// Who is called.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Makes jobs as a part of this span.
    #[must_use]
    pub fn within(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
    }

    /// Creates a job; safe to repeat with the same `request_id`.
    pub async fn create_job(
        &self,
        spec: v1::JobSpec,
        queue: v1::QueueSpec,
        request_id: &str,
    ) -> Result<v1::Job, ClientError> {
        let doing = "submit the job";
        let request = v1::CreateJobRequest {
            spec: Some(spec),
            request_id: request_id.to_owned(),
            queue: Some(queue),
            ..Default::default()
        };
        let answer = self
            .call(doing, || {
                let (mut jobs, request) = (self.jobs(), self.traced(request.clone()));
                // The spec and the job in it make a large future.
                Box::pin(async move { jobs.create_job(request).await })
            })
            .await?;
        self.present(doing, answer.job)
    }

    /// Has steps of a job computed again; safe to repeat with the same `request_id`.
    pub async fn verify_job(&self, wanted: v1::VerifyJobRequest) -> Result<v1::Job, ClientError> {
        let doing = "verify the job";
        let answer = self
            .call(doing, || {
                let (mut jobs, request) = (self.jobs(), self.traced(wanted.clone()));
                async move { jobs.verify_job(request).await }
            })
            .await?;
        self.present(doing, answer.job)
    }

    /// Reads one job.
    pub async fn get_job(&self, job: Uuid) -> Result<v1::Job, ClientError> {
        let answer = self.get_status(job).await?;
        self.present("read the job", answer.job)
    }

    /// A job as it is, and what the steps of its ranks take.
    pub async fn get_status(&self, job: Uuid) -> Result<v1::GetJobResponse, ClientError> {
        let request = v1::GetJobRequest { job_id: job.to_string(), ..Default::default() };
        self.ask("read the job", request, async |request| self.jobs().get_job(request).await).await
    }

    /// Asks a job to stop.
    pub async fn cancel_job(&self, job: Uuid, reason: &str) -> Result<v1::Job, ClientError> {
        let doing = "cancel the job";
        let request = v1::CancelJobRequest { job_id: job.to_string(), reason: reason.to_owned() };
        let answer = self.ask(doing, request, async |request| self.jobs().cancel_job(request).await).await?;
        self.present(doing, answer.job)
    }

    /// Has a job hold no worker until it is resumed.
    pub async fn pause_job(&self, job: Uuid) -> Result<v1::Job, ClientError> {
        let request = v1::PauseJobRequest { job_id: job.to_string() };
        let doing = "pause the job";
        let answer = self.ask(doing, request, async |request| self.jobs().pause_job(request).await).await?;
        self.present(doing, answer.job)
    }

    /// Orders something of a job; returns the job, and the order's number.
    pub async fn order_job(&self, job: Uuid, order: v1::Order) -> Result<(v1::Job, i64), ClientError> {
        let request = v1::OrderJobRequest { job_id: job.to_string(), order: Some(order) };
        let doing = "give the order";
        let answer = self.ask(doing, request, async |request| self.jobs().order_job(request).await).await?;
        Ok((self.present(doing, answer.job)?, answer.number))
    }

    /// Has a paused job go on.
    pub async fn resume_job(&self, job: Uuid) -> Result<v1::Job, ClientError> {
        let request = v1::ResumeJobRequest { job_id: job.to_string() };
        let doing = "resume the job";
        let answer = self.ask(doing, request, async |request| self.jobs().resume_job(request).await).await?;
        self.present(doing, answer.job)
    }

    /// Deletes an ended job, with its history and artifacts.
    pub async fn delete_job(&self, job: Uuid) -> Result<(), ClientError> {
        let mut tries = 0;
        let answer = self
            .call("delete the job", || {
                tries += 1;
                let request = unary(v1::DeleteJobRequest { job_id: job.to_string() });
                let mut jobs = self.jobs();
                async move { jobs.delete_job(request).await }
            })
            .await;
        match answer {
            // A call before this one deleted it, and its answer was lost.
            Err(error) if tries > 1 && error.code() == Some(Code::NotFound) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Drains a worker, or lets it take jobs again.
    pub async fn drain_worker(&self, worker: Uuid, draining: bool) -> Result<v1::Worker, ClientError> {
        let doing = if draining { "drain the worker" } else { "undrain the worker" };
        let worker_id = worker.to_string();
        let answer = if draining {
            let request = v1::DrainWorkerRequest { worker_id };
            self.ask(doing, request, async |request| self.cluster().drain_worker(request).await).await?.worker
        } else {
            let request = v1::UndrainWorkerRequest { worker_id };
            self.ask(doing, request, async |request| self.cluster().undrain_worker(request).await)
                .await?
                .worker
        };
        answer.ok_or_else(|| self.nonsense(doing, "an answer without a worker"))
    }

    /// A request that makes a job.
    fn traced<T>(&self, message: T) -> Request<T> {
        let mut request = unary(message);
        if let Some(trace) = self.trace.and_then(|trace| trace.to_string().parse().ok()) {
            request.metadata_mut().insert(TRACEPARENT, trace);
        }
        request
    }

    fn jobs(&self) -> JobServiceClient<Link> {
        JobServiceClient::new(self.link.clone())
    }

    fn cluster(&self) -> ClusterServiceClient<Link> {
        ClusterServiceClient::new(self.link.clone())
    }

    fn artifacts(&self) -> ArtifactServiceClient<Link> {
        ArtifactServiceClient::new(self.link.clone())
    }

    /// As [`Self::call`], with the same request each time.
    async fn ask<Wanted: Clone, T>(
        &self,
        doing: &'static str,
        wanted: Wanted,
        call: impl AsyncFn(Request<Wanted>) -> Result<Response<T>, Status>,
    ) -> Result<T, ClientError> {
        // What is in some answers makes a large future.
        self.call(doing, || Box::pin(call(unary(wanted.clone())))).await
    }

    /// Calls until there is an answer, a refusal, or patience is at its end.
    async fn call<T, Answer>(
        &self,
        doing: &'static str,
        mut attempt: impl FnMut() -> Answer,
    ) -> Result<T, ClientError>
    where
        Answer: Future<Output = Result<Response<T>, Status>>,
    {
        let mut retries = Retries::new();
        loop {
            match attempt().await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => {
                    retries.after(status, doing).await.map_err(|status| self.failure(doing, *status))?;
                }
            }
        }
    }

    fn failure(&self, doing: &'static str, status: Status) -> ClientError {
        if let Some(error) = misunderstanding(&status) {
            ClientError::NotTrusted { url: self.url.clone(), problem: problem_of(error, &self.url) }
        } else if is_late(&status) {
            let problem = match status.code() {
                Code::DeadlineExceeded => status.message().to_owned(),
                _ => format!("nothing came for {} s", CALL_TIMEOUT.as_secs()),
            };
            ClientError::NoAnswer { doing, url: self.url.clone(), problem }
        } else if is_transient(&status) && status.get_details_retry_info().is_none() {
            ClientError::Unreachable { url: self.url.clone(), problem: transport_problem(&status) }
        } else {
            ClientError::Refused { doing, url: self.url.clone(), status: Box::new(status) }
        }
    }

    fn nonsense(&self, doing: &'static str, problem: impl Into<String>) -> ClientError {
        ClientError::Nonsense { doing, url: self.url.clone(), problem: problem.into() }
    }

    fn present<T>(&self, doing: &'static str, asked: Option<T>) -> Result<T, ClientError> {
        asked.ok_or_else(|| self.nonsense(doing, "an answer without what was asked for"))
    }
}

fn unary<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

/// The innermost cause is the one that people understand ("connection refused").
fn transport_problem(status: &Status) -> String {
    use std::{
        error::Error as _,
        io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof},
    };
    if let Some(error) = connect_error(status) {
        return error.to_string();
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = status.source();
    let mut text = status.message().to_owned();
    while let Some(inner) = cause {
        let kind = inner.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        text = match kind {
            // What libraries say of it is about their own protocols.
            Some(UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe) => {
                return CLOSED.to_owned();
            }
            _ => inner.to_string(),
        };
        cause = inner.source();
    }
    if text.starts_with("h2 protocol error") || text.starts_with("http2 error") {
        CLOSED.to_owned()
    } else {
        text
    }
}

/// Of a connection that ended in the middle of something.
const CLOSED: &str = "the connection was closed before there was an answer";

/// Only the coordinator of this machine can be started here.
fn how_to_start(url: &str) -> &'static str {
    match url.parse::<CoordinatorUrl>() {
        Ok(url) if url.is_loopback() => "`ringtune up` starts one here; ",
        _ => "does a firewall let you through? ",
    }
}

/// A refusal with the fields that it names, one a line.
fn describe(status: &Status) -> String {
    let mut text = status.message().to_owned();
    if text.is_empty() {
        text = format!("the coordinator answered {:?}", status.code());
    }
    if status.code() == Code::Unimplemented {
        text.push_str(&format!(
            "\n  the coordinator is older than this command, which is of Ringtune {VERSION}: upgrade the coordinator"
        ));
    }
    if let Some(bad_request) = status.get_details_bad_request() {
        for violation in bad_request.field_violations {
            let line = format!("{}: {}", violation.field, violation.description);
            // The coordinator's message may have them for clients that show nothing else.
            if !status.message().contains(&line) {
                text.push_str(&format!("\n  {line}"));
            }
        }
    }
    text
}

/// Of a job or worker that is not there: who was asked, as there may be several coordinators, and what shows those that are.
fn where_to_look(status: &Status, url: &str) -> String {
    let command = match status.message() {
        _ if status.code() != Code::NotFound => return String::new(),
        text if text.starts_with("there is no job ") => "list",
        text if text.starts_with("there is no worker ") => "workers",
        _ => return String::new(),
    };
    format!(" at {url}; `ringtune {command}` shows those that there are")
}

#[cfg(test)]
mod tests {
    use tonic_types::{BadRequest, ErrorDetails};

    use super::*;

    #[test]
    fn of_what_is_not_there_it_is_said_who_was_asked() {
        let url = "http://127.0.0.1:7070";
        for (code, message, said) in [
            (Code::NotFound, "there is no job 8f", "`ringtune list`"),
            (Code::NotFound, "there is no worker 8f", "`ringtune workers`"),
        ] {
            let (status, url) = (Box::new(Status::new(code, message)), url.to_owned());
            let text = ClientError::Refused { doing: "read it", url, status }.to_string();
            assert!(
                text.starts_with(&format!("cannot read it: {message} at http://127.0.0.1:7070; ")),
                "{text}"
            );
            assert!(text.contains(said), "{text}");
        }
        for (code, message) in
            [(Code::NotFound, "job 8f has no artifact \"x\""), (Code::Internal, "there is no job 8f")]
        {
            assert_eq!(where_to_look(&Status::new(code, message), url), "");
        }
    }

    #[test]
    fn nobody_is_told_of_a_librarys_own_troubles_or_to_start_what_is_elsewhere() {
        use std::io::{Error, ErrorKind};
        let tls = "peer closed connection without sending TLS close_notify: https://docs.rs/rustls";
        let closed = Status::from_error(Box::new(Error::new(ErrorKind::UnexpectedEof, tls)));
        assert_eq!(transport_problem(&closed), CLOSED);
        assert_eq!(transport_problem(&Status::unknown("h2 protocol error: http2 error")), CLOSED);
        assert_eq!(transport_problem(&Status::unavailable("shutting down")), "shutting down");
        let away = |url: &str| {
            ClientError::Unreachable { url: url.to_owned(), problem: "refused".to_owned() }.to_string()
        };
        assert!(away("http://127.0.0.1:7070").contains("`ringtune up` starts one here"));
        let far = away("https://head-node:7070");
        assert!(!far.contains("ringtune up") && far.contains("--coordinator URL"), "{far}");
    }

    #[test]
    fn a_refusal_names_each_bad_field() {
        let details = ErrorDetails::with_bad_request(vec![
            tonic_types::FieldViolation::new("train.num_vectors", "0 is not allowed"),
            tonic_types::FieldViolation::new("name", "is missing"),
        ]);
        let _: &Option<&BadRequest> = &details.bad_request();
        let status = Status::with_error_details(Code::InvalidArgument, "2 fields are wrong", details.clone());
        let text = describe(&status);
        assert_eq!(text, "2 fields are wrong\n  train.num_vectors: 0 is not allowed\n  name: is missing");
        // Once, where the message has them.
        let message = "train.num_vectors: 0 is not allowed\nname: is missing";
        let status = Status::with_error_details(Code::InvalidArgument, message, details);
        assert_eq!(describe(&status), message);
    }
}

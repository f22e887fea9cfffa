//! WorkerService: one stream up and one down for each worker.

use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use ringtune_proto::convert::FieldError;
use ringtune_proto::v1::{self, worker_service_server::WorkerService};
use ringtune_security::Peer;
use ringtune_shared::version::METRICS;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Request, Response, Status, Streaming};
use tracing::debug;

use super::access::{call_of, check_worker};
use super::allowance::Allowance;
use super::status::{FailedRequest, bad_field, shutting_down, too_much};
use super::trust::{Revocation, TrustNews};
use super::{Api, inbound, outbound};
use crate::core::{Down, Sender};
use crate::metrics::Metrics;
use crate::scrapes::Answering;
use crate::service::{Handle, Out};

/// Messages that may wait for a worker to read them; one more ends its session.
const WAITING: usize = 1024;
/// Bytes of all that a worker counts.
const LONGEST_METRICS: usize = 1 << 20;
/// A stream without a hello is dropped after so long.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Workers(pub(super) Arc<Api>);

type DownStream = std::pin::Pin<Box<dyn Stream<Item = Result<v1::SessionResponse, Status>> + Send>>;

#[tonic::async_trait]
impl WorkerService for Workers {
    type SessionStream = DownStream;

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let revocation = Revocation::of(self.0.pki.as_ref(), request.extensions().get::<Peer>())?;
        let call = call_of(&request);
        let mut up = request.into_inner();
        let first = tokio::time::timeout(HELLO_LIMIT, up.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no hello came"))??;
        let Some(v1::SessionRequest { message: Some(v1::session_request::Message::Hello(hello)) }) = first
        else {
            return Err(bad_field(&FieldError::new("hello", "must be the first message")));
        };
        let hello = inbound::hello(hello).map_err(FailedRequest::from)?;
        let (out, told) = mpsc::channel(WAITING);
        call.about(hello.worker);
        check_worker(&call, hello.worker).map_err(|denied| self.0.deny(denied))?;
        let (worker, host) = (hello.worker, hello.host_name.clone());
        let tells = hello.dialect.features.iter().any(|feature| feature == METRICS);
        let sender = self.0.handle.hello(hello, out).await.map_err(FailedRequest::from)?;
        let (questions, answering) = match tells {
            true => Some(self.0.scrapes.open(worker, &host)).unzip(),
            false => (None, None),
        };

        // Whichever direction ends first ends the other one.
        let over = CancellationToken::new();
        let (fail, failed) = oneshot::channel();
        let (handle, shutdown) = (self.0.handle.clone(), self.0.shutdown.clone());
        let metrics = self.0.metrics.clone();
        let over_too = over.clone();
        let reader =
            Reader { handle, sender, metrics, answering, revocation, over: over_too, shutdown, fail };
        tokio::spawn(reader.run(up));
        let writer = Writer {
            told,
            questions,
            failed: Some(failed),
            welcome: self.0.welcome.clone(),
            welcomed: false,
            news: self.0.pki.clone().map(TrustNews::new),
            shutdown: self.0.shutdown.clone(),
            _over: over.drop_guard(),
        };
        Ok(Response::new(writer.into_stream()))
    }
}

/// Passes on what the worker says until one side has enough.
struct Reader {
    handle: Handle,
    sender: Sender,
    metrics: Metrics,
    /// Who takes what it counts.
    answering: Option<Answering>,
    revocation: Option<Revocation>,
    over: CancellationToken,
    shutdown: CancellationToken,
    fail: oneshot::Sender<Status>,
}

impl Reader {
    async fn run(mut self, up: Streaming<v1::SessionRequest>) {
        let mut revocation = self.revocation.take();
        let failure = tokio::select! {
            failure = self.read(up) => failure,
            () = self.over.cancelled() => None,
            () = Revocation::comes(revocation.as_mut()) => None,
        };
        if let Some(status) = failure {
            // Nobody to tell when the other direction is gone as well.
            let _ = self.fail.send(status);
        }
        // Its connection was closed, or will be: whichever was noticed first, it is not one that comes back.
        if revocation.is_some_and(|revocation| revocation.is_revoked()) {
            return self.handle.evict(self.sender.worker, Some(self.sender.session)).await;
        }
        // That this coordinator ends is no news of the worker: its jobs' histories are not to say so.
        if !self.shutdown.is_cancelled() {
            self.handle.session_ended(self.sender).await;
        }
    }

    /// Returns what the worker did wrong; none where it only went.
    async fn read(&self, mut up: Streaming<v1::SessionRequest>) -> Option<Status> {
        let sender = self.sender;
        let allowance = Allowance::new();
        while let Ok(Some(message)) = up.message().await {
            if let Err(flood) = allowance.count(&message) {
                return Some(too_much(&flood));
            }
            let message = match message.message {
                Some(v1::session_request::Message::Metrics(said)) => {
                    if said.text.len() > LONGEST_METRICS {
                        let problem =
                            format!("{} bytes; allowed: at most {LONGEST_METRICS}", said.text.len());
                        return Some(bad_field(&FieldError::new("metrics.text", problem)));
                    }
                    if let Some(answering) = &self.answering {
                        answering.answer(said.number, said.text);
                    }
                    continue;
                }
                _ => message,
            };
            let heard = match inbound::words(sender, message) {
                Ok(heard) => heard,
                Err(error) => return Some(bad_field(&error)),
            };
            if let Some(unknown) = heard.unknown {
                debug!(worker = %sender.worker, what = unknown.name(), "skipped what this version does not know");
                self.metrics.unknown.with_label_values(&[unknown.name()]).inc();
            }
            if let Some(input) = heard.input {
                self.handle.said(sender, input).await.ok()?;
            }
        }
        None
    }
}

/// The stream down. Dropped with the connection, which stops the reader.
struct Writer {
    told: mpsc::Receiver<Out>,
    /// To a worker that can say what it counts.
    questions: Option<mpsc::Receiver<u64>>,
    failed: Option<oneshot::Receiver<Status>>,
    welcome: v1::Welcome,
    /// The first message is on its way.
    welcomed: bool,
    news: Option<TrustNews>,
    shutdown: CancellationToken,
    _over: DropGuard,
}

impl Writer {
    fn into_stream(self) -> DownStream {
        Box::pin(futures::stream::unfold(Some(self), |writer| async {
            let mut writer = writer?;
            match writer.next().await {
                Some(Ok(message)) => Some((Ok(message), Some(writer))),
                // After a status nothing more is read from the stream.
                Some(Err(status)) => Some((Err(status), None)),
                None => None,
            }
        }))
    }

    async fn next(&mut self) -> Option<Result<v1::SessionResponse, Status>> {
        let failed = async {
            match self.failed.as_mut() {
                Some(failed) => failed.await.ok(),
                None => std::future::pending().await,
            }
        };
        let question = async {
            match self.questions.as_mut() {
                Some(questions) => questions.recv().await,
                None => std::future::pending().await,
            }
        };
        let told = tokio::select! {
            // What the loop decided goes out before the stream ends.
            biased;
            trust = TrustNews::next(self.news.as_mut()) => return Some(Ok(trust)),
            out = self.told.recv() => out,
            Some(number) = question, if self.welcomed => {
                let message = v1::session_response::Message::AskMetrics(v1::AskMetrics { number });
                return Some(Ok(v1::SessionResponse { message: Some(message) }));
            }
            status = failed => return status.map(Err),
            () = self.shutdown.cancelled() => return Some(Err(shutting_down())),
        };
        match told {
            Some(Out::Message(message)) => {
                if let Down::Welcome(_) = &message {
                    self.welcomed = true;
                    if let Some(news) = &mut self.news {
                        news.begin();
                    }
                }
                Some(Ok(outbound::down(message, &self.welcome)))
            }
            Some(Out::End(reason)) => Some(Err(Status::aborted(reason))),
            // The loop has let the session go, perhaps for what the reader found: the worker is to be told of that.
            None => self.failed.as_mut()?.try_recv().ok().map(Err),
        }
    }
}

//! Between one worker and its coordinator: passes every call on as it is, and writes down what the two say in sessions.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::{Context, Poll},
};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{Response, StatusCode},
};
use bytes::{Buf as _, Bytes};
use http_body::Frame;
use prost::Message as _;
use ringtune_proto::v1::{
    self, session_request::Message as Up, session_response::Message as Down, upload_request::Part,
};
use ringtune_recordings::{Happened, Nothing, Recording};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tonic::{
    service::Routes,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tower::ServiceExt as _;

const SESSION: &str = "/ringtune.v1.WorkerService/Session";
const UPLOAD: &str = "/ringtune.v1.ArtifactService/Upload";
/// Prefix of a gRPC message: compression flag and length.
const PREFIX_BYTES: usize = 5;

/// A running recorder; it ends when it is dropped.
#[derive(Debug)]
pub struct Recorder {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    channel: Channel,
    recording: Mutex<Recording>,
    /// Counts the cuts: every session that is open ends at a new one.
    cuts: watch::Sender<u64>,
    /// The worker's host name.
    host: OnceLock<String>,
    /// Its name in the recording.
    node: String,
    /// A path of this machine, which is /node in the recording.
    folder: String,
}

/// Kinds of recorded messages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    SessionUp,
    SessionDown,
    Upload,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Recorder {
    /// Before the coordinator at HOST:PORT. In the recording the worker is called `node`, and what is in `folder` is in
    /// /node.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn start(coordinator: &str, node: &str, folder: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            channel: Endpoint::from_shared(format!("http://{coordinator}"))?.connect_lazy(),
            recording: Mutex::default(),
            cuts: watch::Sender::new(0),
            host: OnceLock::new(),
            node: node.to_owned(),
            folder: folder.to_owned(),
        });
        let router = Router::new().fallback(pass_on).with_state(Arc::clone(&shared));
        let server = Server::builder().add_routes(Routes::from(router));
        let serving = tokio::spawn(async move {
            // Whoever waits for the worker sees that nothing comes.
            let _ = server.serve_with_incoming(TcpIncoming::from(listener)).await;
        });
        Ok(Self { address, shared, serving })
    }

    /// HOST:PORT that the worker dials.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Breaks the session.
    pub fn cut(&self) {
        self.shared.add(Happened::Broke(Nothing {}));
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// The test is about to cancel the job.
    pub fn job_is_cancelled(&self) {
        self.shared.add(Happened::Cancelled(Nothing {}));
    }

    /// The recording so far.
    pub fn recording(&self) -> Recording {
        self.shared.recording.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn pass_on(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let tapped = match request.uri().path() {
        SESSION => {
            shared.add(Happened::Opened(Nothing {}));
            (Some(Kind::SessionUp), Some(Kind::SessionDown))
        }
        UPLOAD => (Some(Kind::Upload), None),
        _ => (None, None),
    };
    let up = request.map(|body| tonic::body::Body::new(Tap::on(body, tapped.0, &shared)));
    match shared.channel.clone().oneshot(up).await {
        Ok(answer) => answer.map(|body| Body::new(Tap::on(Body::new(body), tapped.1, &shared))),
        Err(_) => {
            // As when nobody listens there.
            let mut answer = Response::new(Body::empty());
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            answer
        }
    }
}

/// A body that is written down while it passes.
struct Tap {
    inner: Body,
    kind: Option<Kind>,
    /// An incomplete message.
    rest: Vec<u8>,
    shared: Arc<Shared>,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Tap {
    fn on(inner: Body, kind: Option<Kind>, shared: &Arc<Shared>) -> Self {
        let mut cuts = shared.cuts.subscribe();
        let cut = async move {
            let open = matches!(kind, Some(Kind::SessionUp | Kind::SessionDown));
            if !open || cuts.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        Self { inner, kind, rest: Vec::new(), shared: Arc::clone(shared), cut: Box::pin(cut) }
    }

    /// Takes the whole messages out of the bytes that came.
    fn note(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(kind) = self.kind else { return Ok(()) };
        self.rest.extend_from_slice(bytes);
        while let Some(length) = self.rest.get(1..PREFIX_BYTES) {
            let end = PREFIX_BYTES + usize::try_from(u32::from_be_bytes(length.try_into()?))?;
            let Some(message) = self.rest.get(PREFIX_BYTES..end) else { break };
            self.shared.note(kind, message)?;
            self.rest.drain(..end);
        }
        Ok(())
    }
}

impl http_body::Body for Tap {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new("cut"))));
        }
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
            && let Err(error) = self.note(data.chunk())
        {
            return Poll::Ready(Some(Err(axum::Error::new(error))));
        }
        polled
    }
}

impl Shared {
    fn add(&self, happened: Happened) {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner).add(happened);
    }

    fn note(&self, kind: Kind, message: &[u8]) -> Result<()> {
        let happened = match kind {
            Kind::SessionUp => {
                let mut request = v1::SessionRequest::decode(message).context("what a worker says")?;
                self.make_nameless_up(&mut request);
                Happened::Up(request)
            }
            Kind::SessionDown => {
                let mut response = v1::SessionResponse::decode(message).context("what a coordinator says")?;
                self.make_nameless_down(&mut response);
                Happened::Down(response)
            }
            Kind::Upload => match v1::UploadRequest::decode(message).context("an upload")?.part {
                Some(Part::Header(header)) if !header.job_id.is_empty() => Happened::Uploaded(header),
                _ => return Ok(()),
            },
        };
        self.add(happened);
        Ok(())
    }

    /// Takes out what describes the machine on which the recording is made.
    fn make_nameless_up(&self, request: &mut v1::SessionRequest) {
        match &mut request.message {
            Some(Up::Hello(hello)) => {
                let host = std::mem::replace(&mut hello.host_name, self.node.clone());
                self.host.get_or_init(|| host);
                hello.address = format!("{}:7080", self.node);
                if let Some(capabilities) = &mut hello.capabilities {
                    "a processor".clone_into(&mut capabilities.cpu_model);
                    (capabilities.cores, capabilities.memory_bytes) = (4, 16 << 30);
                }
            }
            Some(Up::RankLog(log)) => {
                if let Some(line) = &mut log.line {
                    line.message = line.message.replace(&self.folder, "/node");
                }
            }
            Some(Up::RankReport(report)) => report.reason = report.reason.replace(&self.folder, "/node"),
            _ => (),
        }
    }

    fn make_nameless_down(&self, response: &mut v1::SessionResponse) {
        match &mut response.message {
            Some(Down::Assignment(v1::Assignment { ring: Some(ring), .. })) => {
                for (rank, member) in ring.members.iter_mut().enumerate() {
                    member.address = format!("rank-{rank}:7080");
                }
            }
            Some(Down::StopRank(stop)) => {
                let host = self.host.get().map_or("a node", String::as_str);
                stop.reason = stop.reason.replace(&format!(" on {host}"), &format!(" on {}", self.node));
            }
            _ => (),
        }
    }
}

//! ProbeService: says who is here, takes and sends bytes as fast as they go, dials the caller back.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ringtune_proto::v1::{
    self,
    probe_service_server::{ProbeService, ProbeServiceServer},
};
use ringtune_security::Peer;
use ringtune_shared::ids::WorkerId;
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::spawn_blocking,
    time::{Instant, timeout, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{LONGEST_MILLISECONDS, Meter, USUAL_MILLISECONDS, noise};
use crate::{advertise::Advertised, cloud::Zone, node::Interface, ring::Rings};

/// A caller's message, and what is around it.
const MOST_MESSAGE_BYTES: usize = (1 << 20) + 1024;
/// Beyond the time that a measurement lasts: a caller that neither sends nor takes is left.
const SLACK: Duration = Duration::from_secs(2);
/// For a connection back to the caller.
const DIAL_LIMIT: Duration = Duration::from_secs(3);
/// Messages on their way to the connection.
const WAITING: usize = 2;

/// Facts of this worker.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) worker: WorkerId,
    pub(crate) host_name: String,
    /// Its address for neighbours.
    pub(crate) advertised: Advertised,
    pub(crate) capabilities: v1::Capabilities,
    /// Where its cloud has the machine.
    pub(crate) zone: Zone,
}

/// The handler.
#[derive(Clone, Debug)]
pub(crate) struct ProbeServer {
    about: Arc<About>,
    rings: Rings,
    turn: Arc<Semaphore>,
}

impl ProbeServer {
    /// The gRPC service of a worker with these places in rings.
    pub(crate) fn service(about: About, rings: Rings) -> ProbeServiceServer<Self> {
        let server = Self { about: Arc::new(about), rings, turn: Arc::new(Semaphore::new(1)) };
        ProbeServiceServer::new(server).max_decoding_message_size(MOST_MESSAGE_BYTES)
    }

    /// The one measurement at a time, as long as the permit lives; none beside a ring, which is said first: it lasts longer
    /// than whatever measurement is just ending.
    fn turn_without_ring(&self) -> Result<OwnedSemaphorePermit, Status> {
        self.is_free()?;
        self.turn()
    }

    /// The one call at a time that uses the network, as long as the permit lives.
    fn turn(&self) -> Result<OwnedSemaphorePermit, Status> {
        let taken = |_| Status::resource_exhausted("another measurement of this worker is under way");
        Arc::clone(&self.turn).try_acquire_owned().map_err(taken)
    }

    /// Training comes first.
    fn is_free(&self) -> Result<(), Status> {
        match self.rings.has_places() {
            false => Ok(()),
            true => Err(Status::failed_precondition(
                "this worker has a place in a ring, which a measurement would slow down: measure when its job has ended",
            )),
        }
    }
}

fn peer<T>(request: &Request<T>) -> Result<IpAddr, Status> {
    let peer = request.extensions().get::<Peer>();
    peer.map(|peer| peer.address.ip().to_canonical())
        .ok_or_else(|| Status::internal("nobody knows who makes this call"))
}

#[tonic::async_trait]
impl ProbeService for ProbeServer {
    type PullStream = ReceiverStream<Result<v1::PullResponse, Status>>;

    async fn identify(
        &self,
        request: Request<v1::IdentifyRequest>,
    ) -> Result<Response<v1::IdentifyResponse>, Status> {
        let caller = peer(&request)?;
        let interface = spawn_blocking(move || Interface::towards(Path::new("/"), caller)).await;
        let About { worker, host_name, advertised, capabilities, zone } = &*self.about;
        let address = advertised.address().await.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(v1::IdentifyResponse {
            worker_id: worker.to_string(),
            host_name: host_name.clone(),
            address,
            capabilities: Some(capabilities.clone()),
            time: Some(SystemTime::now().into()),
            caller_ip: caller.to_string(),
            mtu: interface.ok().flatten().and_then(|interface| interface.mtu),
            busy: self.rings.has_places(),
            zone: zone.name(),
        }))
    }

    async fn push(
        &self,
        request: Request<Streaming<v1::PushRequest>>,
    ) -> Result<Response<v1::PushResponse>, Status> {
        let _turn = self.turn_without_ring()?;
        let end = Instant::now() + Duration::from_millis(LONGEST_MILLISECONDS.into()) + SLACK;
        let (mut messages, mut meter) = (request.into_inner(), Meter::default());
        loop {
            self.is_free()?;
            match timeout_at(end, messages.message()).await {
                Ok(message) => match message? {
                    Some(v1::PushRequest { chunk }) => meter.add(Instant::now(), chunk.len()),
                    None => break,
                },
                Err(_) => break,
            }
        }
        let rate = meter.rate();
        let time = rate.time.try_into().map_err(|_| Status::internal("a time that is none"))?;
        Ok(Response::new(v1::PushResponse { bytes: rate.bytes, time: Some(time) }))
    }

    async fn pull(&self, request: Request<v1::PullRequest>) -> Result<Response<Self::PullStream>, Status> {
        let milliseconds = match request.into_inner().milliseconds {
            0 => USUAL_MILLISECONDS,
            some @ 1..=LONGEST_MILLISECONDS => some,
            more => {
                return Err(Status::invalid_argument(format!(
                    "milliseconds: got {more}; allowed: 0 to {LONGEST_MILLISECONDS}"
                )));
            }
        };
        let turn = self.turn_without_ring()?;
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(send(self.clone(), sender, Duration::from_millis(milliseconds.into()), turn));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn dial_back(
        &self,
        request: Request<v1::DialBackRequest>,
    ) -> Result<Response<v1::DialBackResponse>, Status> {
        let caller = peer(&request)?;
        let given = request.into_inner().port;
        let port = u16::try_from(given).ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| {
            Status::invalid_argument(format!("port: got {given}; allowed: 1 to {}", u16::MAX))
        })?;
        let _turn = self.turn()?;
        let address = SocketAddr::new(caller, port);
        let error = match timeout(DIAL_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(_)) => String::new(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", DIAL_LIMIT.as_secs()),
        };
        Ok(Response::new(v1::DialBackResponse { error, address: address.to_string() }))
    }
}

/// Sends until the time is over, nobody takes it any more, or a ring needs the network.
async fn send(
    server: ProbeServer,
    to: mpsc::Sender<Result<v1::PullResponse, Status>>,
    time: Duration,
    turn: OwnedSemaphorePermit,
) {
    let (noise, begun) = (noise(), Instant::now());
    let end = begun + time + SLACK;
    while begun.elapsed() < time {
        if let Err(refusal) = server.is_free() {
            // The caller may measure again as soon as it is told.
            drop(turn);
            let _ = timeout_at(end, to.send(Err(refusal))).await;
            return;
        }
        let chunk = v1::PullResponse { chunk: noise.clone() };
        if !matches!(timeout_at(end, to.send(Ok(chunk))).await, Ok(Ok(()))) {
            return;
        }
    }
}

//! What of a worker a ring needs: its places and its port.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use ringtune_security::{
    Authority, Clients, Credentials, Csr, Holder, Leaf, Limits, Listener, Protection, Protocols, Refusals,
    Role, Trust,
};
use ringtune_shared::{ids::WorkerId, ring::Member};
use ringtune_worker::{
    http::Metrics,
    ring::{MOST_FRAME_BYTES, RingOptions, RingServer, RingThread, Rings, WINDOW_BYTES},
};
use tokio::net::TcpListener;
use tonic::transport::Server;

use crate::Outcome;

/// How ranks reach each other; by default over TCP.
#[derive(Default)]
pub(crate) struct Reach {
    /// Over TLS, with the certificate authority of this folder.
    pub(crate) pki: Option<PathBuf>,
    /// Through Unix sockets in this folder, and memory that neighbours share.
    pub(crate) sockets: Option<PathBuf>,
    /// Through the sockets alone.
    pub(crate) without_memory: bool,
    /// To the next rank, where it is not through a socket; 0: as many as are worth while.
    pub(crate) connections: usize,
}

/// One worker's places and port.
pub(crate) struct Worker {
    pub(crate) rings: Rings,
    pub(crate) member: Member,
    _thread: RingThread,
}

impl Worker {
    /// Listens on a free port, and on a socket where there is to be one.
    pub(crate) async fn start(reach: &Reach) -> Outcome<Self> {
        let worker = WorkerId::new();
        let trust = reach.pki.as_deref().map(|folder| certified(folder, worker)).transpose()?;
        let local_socket = reach.sockets.as_ref().map(|folder| folder.join(format!("{worker}.sock")));
        let shared_memory = !reach.without_memory;
        let protection = match trust.clone() {
            None => Protection::Plain,
            Some(trust) => Protection::Tls { trust, clients: Clients::Optional, protocols: Protocols::Http2 },
        };
        let thread = RingThread::start()?;
        let runtime = Some(thread.handle().clone());
        let connections = reach.connections;
        let ring = RingOptions {
            trust,
            runtime,
            local_socket,
            shared_memory,
            connections,
            ..RingOptions::default()
        };
        let rings = Rings::new(ring, Arc::new(Metrics::new()?));
        let tcp = thread.adopt(TcpListener::bind("127.0.0.1:0").await?)?;
        let address = tcp.local_addr()?.to_string();
        // Nobody says here when a call begins.
        let hour = Duration::from_secs(3600);
        let limits = Limits { first_call: hour, idle: hour, ..Limits::default() }.for_loopback();
        let listener = {
            let _there = thread.handle().enter();
            let listener = Listener::start(tcp, protection, limits, Refusals::default())?;
            rings.open_locally(&listener);
            listener
        };
        let server = Server::builder()
            .max_frame_size(MOST_FRAME_BYTES)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .add_service(RingServer::service(rings.clone()))
            .serve_with_incoming(listener);
        thread.handle().spawn(server);
        Ok(Self { rings, member: Member { worker, address }, _thread: thread })
    }
}

fn certified(folder: &Path, worker: WorkerId) -> Outcome<Trust> {
    let authority = Authority::open_or_make(folder, SystemTime::now())?;
    let (key, csr) = Csr::make()?;
    let holder = Holder::Member { role: Role::Worker, name: worker.to_string() };
    let leaf = Leaf { holder, valid_for: Duration::from_secs(3600) };
    let issued = authority.issue(csr.der(), &leaf, SystemTime::now())?;
    Ok(Trust::of(Credentials::new(key, &issued.chain_pem(), authority.roots().clone())?)?)
}

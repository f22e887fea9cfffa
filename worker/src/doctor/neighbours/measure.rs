//! What is measured on the way to one worker. Nothing is judged here.

use std::{
    future::Future,
    net::{IpAddr, TcpListener},
    path::Path,
    time::{Duration, SystemTime},
};

use ringtune_proto::v1::{self, probe_service_client::ProbeServiceClient};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use super::{Here, Neighbour};
use crate::{
    advertise::advertised_address,
    doctor::cluster::{Sample, sample},
    error_chain::error_chain,
    node::Interface,
    probe::{Meter, Rate, USUAL_MILLISECONDS, noise},
    ring::{MOST_FRAME_BYTES, WINDOW_BYTES},
};

/// For a name, a connection, an answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Round trips; the first says nothing, because it opens the way.
const ROUND_TRIPS: usize = 20;
/// For a measurement, beside what it lasts: another one may be under way there.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between tries, while another measurement is under way.
const PAUSE: Duration = Duration::from_millis(300);

/// Why nothing was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Silent {
    /// The name leads nowhere.
    NoAddress(String),
    /// There is no connection.
    NoConnection(String),
    /// It answers, and has nothing to measure with.
    Older,
    /// It answers otherwise.
    Refused(String),
}

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) address: IpAddr,
    pub(super) there: v1::IdentifyResponse,
    /// In ascending order; at least one.
    pub(super) round_trips: Vec<Duration>,
    pub(super) clock: Option<Sample>,
    /// The interface on this side.
    pub(super) interface: Option<Interface>,
    /// From here, and to here.
    pub(super) rates: [Result<Rate, String>; 2],
    pub(super) back: Back,
}

/// Whether this machine's gRPC port is reached from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Back {
    /// As this machine would tell its neighbours.
    pub(super) advertised: Result<(String, Option<IpAddr>), String>,
    pub(super) outcome: Reached,
}

/// How the way back went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    Yes(String),
    No {
        dialled: String,
        error: String,
    },
    /// Nobody was asked: only this machine itself reaches the port.
    LoopbackOnly,
    /// It could not be tried.
    Unknown(String),
}

/// One way, in numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Link {
    pub(super) round_trip: Duration,
    /// Bytes a second in the slower direction, if both were measured.
    pub(super) bytes_per_second: Option<f64>,
}

impl Measured {
    /// Half of the round trips took less.
    pub(super) fn median(&self) -> Duration {
        self.round_trips.get(self.round_trips.len() / 2).copied().unwrap_or_default()
    }

    pub(super) fn link(&self) -> Link {
        let [from, to] =
            self.rates.each_ref().map(|rate| rate.as_ref().ok().and_then(|rate| rate.per_second()));
        let slower = from.zip(to).map(|(from, to)| from.min(to));
        Link { round_trip: self.median(), bytes_per_second: slower }
    }
}

type Client = ProbeServiceClient<Channel>;

/// All of it, one after the other.
pub(super) async fn measure(neighbour: &Neighbour, here: &Here<'_>) -> Result<Measured, Silent> {
    let address = address(neighbour).await.map_err(Silent::NoAddress)?;
    let client = connect(neighbour, here).await.map_err(Silent::NoConnection)?;
    let (there, round_trips, clock) = round_trips(client.clone()).await?;
    let interface = spawn_blocking(move || Interface::towards(Path::new("/"), address)).await.ok().flatten();
    let rates = match there.busy {
        true => {
            let busy = "not measured: the worker there has a place in a ring, which comes first".to_owned();
            [Err(busy.clone()), Err(busy)]
        }
        false => [in_turn(|| push(client.clone())).await, in_turn(|| pull(client.clone())).await],
    };
    let is_here = there.caller_ip.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let back = back(client, here, is_here).await;
    Ok(Measured { address, there, round_trips, clock, interface, rates, back })
}

async fn address(neighbour: &Neighbour) -> Result<IpAddr, String> {
    let host = neighbour.host.trim_matches(['[', ']']);
    let found = timeout(LIMIT, tokio::net::lookup_host((host, neighbour.port))).await;
    let mut found = found
        .map_err(|_| format!("no answer within {} s", LIMIT.as_secs()))?
        .map_err(|error| error.to_string())?;
    found.next().map(|address| address.ip()).ok_or_else(|| "it has no address".to_owned())
}

/// With a ring's flow control, so that the bandwidth is what a ring gets.
async fn connect(neighbour: &Neighbour, here: &Here<'_>) -> Result<Client, String> {
    let (url, connector) = here.way(neighbour);
    let endpoint = Endpoint::from_shared(url)
        .map_err(|error| error_chain(&error))?
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(MOST_FRAME_BYTES);
    let channel = endpoint.connect_with_connector(connector.within(LIMIT)).await;
    Ok(Client::new(channel.map_err(|error| error_chain(&error))?).max_decoding_message_size(1 << 20))
}

async fn answer<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Status> {
    let late = || Status::deadline_exceeded(format!("no answer within {} s", LIMIT.as_secs()));
    Ok(timeout(LIMIT, call).await.map_err(|_| late())??.into_inner())
}

async fn round_trips(
    mut client: Client,
) -> Result<(v1::IdentifyResponse, Vec<Duration>, Option<Sample>), Silent> {
    let silent = |status: Status| match status.code() {
        Code::Unimplemented => Silent::Older,
        code => Silent::Refused(format!("{code}: {}", status.message())),
    };
    let mut there = answer(client.identify(v1::IdentifyRequest {})).await.map_err(silent)?;
    let (mut all, mut best) = (Vec::new(), None::<Sample>);
    for _ in 0..ROUND_TRIPS {
        let (sent, began) = (SystemTime::now(), Instant::now());
        there = answer(client.identify(v1::IdentifyRequest {})).await.map_err(silent)?;
        let took = began.elapsed();
        all.push(took);
        if best.is_none_or(|best| took < best.round_trip) {
            best = there
                .time
                .and_then(|time| time.try_into().ok())
                .map(|time| sample(sent, took, time))
                .or(best);
        }
    }
    all.sort();
    Ok((there, all, best))
}

/// Tries again while somebody else measures that worker.
async fn in_turn<F>(mut attempt: impl FnMut() -> F) -> Result<Rate, String>
where
    F: Future<Output = Result<Rate, Status>>,
{
    let until = Instant::now() + PATIENCE;
    loop {
        let limit = LIMIT + Duration::from_millis(USUAL_MILLISECONDS.into());
        match timeout(limit, attempt()).await {
            Err(_) => return Err(format!("no end within {} s", limit.as_secs())),
            Ok(Ok(rate)) if rate.per_second().is_some() => return Ok(rate),
            Ok(Ok(_)) => return Err("too little came to say".to_owned()),
            Ok(Err(status)) if status.code() == Code::ResourceExhausted && Instant::now() < until => {
                sleep(PAUSE).await;
            }
            Ok(Err(status)) => return Err(status.message().to_owned()),
        }
    }
}

async fn push(mut client: Client) -> Result<Rate, Status> {
    let (noise, end) = (noise(), Instant::now() + Duration::from_millis(USUAL_MILLISECONDS.into()));
    // Asked for the next one only when the connection has taken the one before.
    let messages =
        std::iter::from_fn(move || (Instant::now() < end).then(|| v1::PushRequest { chunk: noise.clone() }));
    let answer = client.push(tokio_stream::iter(messages)).await?.into_inner();
    let time = answer.time.unwrap_or_default().try_into();
    Ok(Rate { bytes: answer.bytes, time: time.map_err(|_| Status::internal("a time that is none"))? })
}

async fn pull(mut client: Client) -> Result<Rate, Status> {
    let request = v1::PullRequest { milliseconds: USUAL_MILLISECONDS };
    let (mut messages, mut meter) = (client.pull(request).await?.into_inner(), Meter::default());
    while let Some(message) = messages.message().await? {
        meter.add(Instant::now(), message.chunk.len());
    }
    Ok(meter.rate())
}

/// Has this machine's gRPC port dialled from there. Where no worker runs here, this process listens for the moment.
async fn back(mut client: Client, here: &Here<'_>, is_here: bool) -> Back {
    let (settings, listen) = (here.settings.clone(), here.settings.grpc.listen);
    let found = spawn_blocking(move || {
        use std::net::ToSocketAddrs as _;
        let advertised = advertised_address(&settings, listen).map_err(|error| error.to_string())?;
        let address = advertised.to_socket_addrs().ok().and_then(|mut all| all.next());
        Ok((advertised, address.map(|address| address.ip())))
    });
    let advertised = match timeout(LIMIT, found).await {
        Ok(Ok(found)) => found,
        Ok(Err(_)) | Err(_) => Err("no answer from the name server".to_owned()),
    };
    if listen.ip().is_loopback() && !is_here {
        return Back { advertised, outcome: Reached::LoopbackOnly };
    }
    // Taken: by a worker, which answers as well. The system accepts connections by itself.
    let listener = TcpListener::bind(listen).ok();
    let port = listener.as_ref().and_then(|it| it.local_addr().ok()).map_or(listen.port(), |it| it.port());
    let outcome = match answer(client.dial_back(v1::DialBackRequest { port: port.into() })).await {
        Ok(v1::DialBackResponse { error, address }) if error.is_empty() => Reached::Yes(address),
        Ok(v1::DialBackResponse { error, address: dialled }) => Reached::No { dialled, error },
        Err(status) => Reached::Unknown(status.message().to_owned()),
    };
    drop(listener);
    Back { advertised, outcome }
}

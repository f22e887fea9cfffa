//! One connection after the other to the coordinator's WorkerService: dial, hello, welcome, then messages both
//! ways until it breaks; and again, with growing waits, for ever. Before a certificate of its connection ends, a session
//! is opened over another one, and the old one goes when that stands.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use backon::BackoffBuilder as _;
use ringtune_proto::v1::{
    self, session_response::Message as Down, worker_service_client::WorkerServiceClient,
};
use ringtune_security::{ConnectError, Connector, Validity};
use ringtune_shared::{
    ids::WorkerId,
    version::{
        self, Dialect, Misfit, ProtocolRange, RE_FORM, Side, TIMINGS, WORKER_FEATURES, WORKER_PROTOCOLS,
    },
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming, transport::Endpoint};
use tracing::{debug, error, info, warn};

use crate::{
    advertise::Advertised,
    coordinator::connector,
    error_chain::{cause_of, error_chain},
    http::Metrics,
    membership::{ADVICE, Following},
    reconnect,
};

/// A session that stood this long was a good one: the next wait is short again.
const GOOD_SESSION: Duration = Duration::from_secs(10);
/// Between tries at a coordinator that this worker's version does not fit.
const WAIT_AFTER_MISMATCH: Duration = Duration::from_secs(30);
/// For the connection, and again for the welcome.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest sleep without a look at the clock, by which a connection's certificates end.
const LONGEST_LOOK: Duration = Duration::from_secs(600);
/// Messages on their way up, and down.
const QUEUED_MESSAGES: usize = 256;

/// The coordinator to dial, and the hello's contents.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// `http://HOST:PORT`, or with https in a secured cluster.
    pub url: String,
    /// In a secured cluster: who believes what the coordinator says about whom to trust.
    pub following: Option<Following>,
    /// This worker.
    pub worker: WorkerId,
    /// Number of the daemon's start.
    pub incarnation: u64,
    /// For people.
    pub host_name: String,
    /// Where neighbours reach this worker's RingService.
    pub advertised: Advertised,
    /// This node's capabilities.
    pub capabilities: v1::Capabilities,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its metrics, for a coordinator that asks.
    pub metrics: Arc<Metrics>,
}

/// Events of the link for the session's loop.
pub(super) enum LinkEvent {
    /// Welcome. Messages go up through `up`; heartbeats are due this often.
    /// `re_forms`: the coordinator gives running jobs other rings; `timings`: it wants to know what each rank's steps take.
    Up { up: mpsc::Sender<v1::SessionRequest>, heartbeat: Duration, re_forms: bool, timings: bool },
    /// The coordinator said something.
    Message(Box<v1::SessionResponse>),
    /// The connection is gone, or there is none; and why.
    Down(String),
}

/// Why a session ended, and when to try again.
enum Ended {
    /// Try again after the usual wait.
    Broken(String),
    /// The versions do not fit, or another start of this worker has taken over: little hope.
    Refused(String),
    /// The certificate of one of the two is not taken by the other: no hope without somebody's help.
    Disowned(String),
}

/// Keeps a session going until `end`, or until the one that stands has ended once `last` is cancelled. `held` is
/// what the next hello shows.
pub(super) async fn keep(
    options: LinkOptions,
    held: watch::Receiver<Vec<v1::HeldRank>>,
    events: mpsc::Sender<LinkEvent>,
    last: CancellationToken,
    end: CancellationToken,
) {
    let mut waits = reconnect::waits().build();
    loop {
        let started = tokio::time::Instant::now();
        let ended = tokio::select! {
            ended = one_session(&options, &held, &events) => ended,
            () = end.cancelled() => return,
        };
        let (Ended::Broken(why) | Ended::Refused(why) | Ended::Disowned(why)) = &ended;
        if events.send(LinkEvent::Down(why.clone())).await.is_err() || last.is_cancelled() {
            return;
        }
        if started.elapsed() >= GOOD_SESSION {
            waits = reconnect::waits().build();
        }
        let wait = match ended {
            Ended::Broken(reason) => {
                let wait = waits.next().unwrap_or(reconnect::LONGEST);
                warn!(
                    coordinator = options.url,
                    reason,
                    "no session; next try in {:.1} s",
                    wait.as_secs_f64()
                );
                wait
            }
            Ended::Refused(reason) => {
                error!(coordinator = options.url, reason, version = version::VERSION, "refused");
                WAIT_AFTER_MISMATCH
            }
            Ended::Disowned(reason) => {
                let wait = WAIT_AFTER_MISMATCH.as_secs();
                error!(coordinator = options.url, reason, "refused; next try in {wait} s. {ADVICE}");
                WAIT_AFTER_MISMATCH
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => (),
            () = end.cancelled() => return,
        }
    }
}

/// A session that stands.
struct Opened {
    up: mpsc::Sender<v1::SessionRequest>,
    welcome: v1::Welcome,
    down: Streaming<v1::SessionResponse>,
    /// When the certificates of its connection are good.
    valid: Option<Validity>,
}

async fn one_session(
    options: &LinkOptions,
    held: &watch::Receiver<Vec<v1::HeldRank>>,
    events: &mpsc::Sender<LinkEvent>,
) -> Ended {
    let mut opened = match open(options, held).await {
        Ok(opened) => opened,
        Err(ended) => return ended,
    };
    loop {
        let Opened { up, welcome, mut down, valid } = opened;
        // The session's loop ends it by letting go of its end.
        let answers = up.downgrade();
        if let Err(ended) = announce(options, events, up, welcome).await {
            return ended;
        }
        opened = loop {
            tokio::select! {
                ended = hear(options, events, &mut down, &answers) => return ended,
                () = time_to_reopen(valid) => {}
            }
            let mut next = std::pin::pin!(open(options, held));
            // The coordinator lets the present session go as it welcomes the next one, and says again what may have been on
            // its way. Which of the two is heard first is chance.
            let next = tokio::select! {
                next = &mut next => next,
                ended = hear(options, events, &mut down, &answers) => match next.await {
                    Ok(next) => break next,
                    Err(_) => return ended,
                },
            };
            match next {
                Ok(next) => break next,
                Err(Ended::Broken(reason) | Ended::Refused(reason) | Ended::Disowned(reason)) => {
                    warn!(coordinator = options.url, reason, "the session is not opened anew yet");
                }
            }
        };
    }
}

/// Waits until the certificates of a session's connection end soon. Never, once they have ended: the other side closes it.
async fn time_to_reopen(valid: Option<Validity>) {
    let Some(valid) = valid else { return std::future::pending().await };
    let at = valid.reconnect_at(SystemTime::now());
    loop {
        let now = SystemTime::now();
        match at.duration_since(now) {
            _ if valid.is_over(now) => return std::future::pending().await,
            Ok(left) if !left.is_zero() => tokio::time::sleep(left.min(LONGEST_LOOK)).await,
            _ => return,
        }
    }
}

async fn announce(
    options: &LinkOptions,
    events: &mpsc::Sender<LinkEvent>,
    up: mpsc::Sender<v1::SessionRequest>,
    welcome: v1::Welcome,
) -> Result<(), Ended> {
    info!(
        coordinator = options.url,
        version = welcome.coordinator_version,
        protocol = welcome.protocol,
        features = ?welcome.features,
        worker = %options.worker,
        incarnation = options.incarnation,
        "session opened"
    );
    let heartbeat = Duration::from_secs_f64(welcome.heartbeat_seconds.clamp(0.05, 60.0));
    let [re_forms, timings] =
        [RE_FORM, TIMINGS].map(|name| welcome.features.iter().any(|feature| feature == name));
    let ending = |_| Ended::Broken("this worker is ending".to_owned());
    events.send(LinkEvent::Up { up, heartbeat, re_forms, timings }).await.map_err(ending)
}

/// Passes on what the coordinator says, until the session ends. Nothing is lost when this is dropped.
async fn hear(
    options: &LinkOptions,
    events: &mpsc::Sender<LinkEvent>,
    down: &mut Streaming<v1::SessionResponse>,
    answers: &mpsc::WeakSender<v1::SessionRequest>,
) -> Ended {
    loop {
        let Ok(room) = events.reserve().await else {
            return Ended::Broken("this worker is ending".to_owned());
        };
        match down.message().await {
            Ok(Some(v1::SessionResponse { message: Some(Down::Trust(trust)) })) => follow(options, &trust),
            Ok(Some(v1::SessionResponse { message: Some(Down::AskMetrics(asked)) })) => {
                tell_metrics(options, asked.number, answers).await;
            }
            Ok(Some(message)) => {
                debug!(?message, "from the coordinator");
                room.send(LinkEvent::Message(Box::new(message)));
            }
            Ok(None) => return Ended::Broken("the coordinator closed the session".to_owned()),
            Err(status) => return ended(&status),
        }
    }
}

/// Says what this worker counts, one answer after the other. Where messages wait already, whoever asked is not answered.
async fn tell_metrics(options: &LinkOptions, number: u64, answers: &mpsc::WeakSender<v1::SessionRequest>) {
    let metrics = Arc::clone(&options.metrics);
    // Some are read from files.
    match tokio::task::spawn_blocking(move || metrics.render()).await {
        Ok(Ok(text)) => {
            let message = v1::session_request::Message::Metrics(v1::Metrics { number, text });
            if let Some(up) = answers.upgrade() {
                let _ = up.try_send(v1::SessionRequest { message: Some(message) });
            }
        }
        Ok(Err(error)) => {
            warn!(%error, "the coordinator asks what this worker counts, and it cannot be shown")
        }
        Err(_) => {}
    }
}

/// Believes what the coordinator says about whom to trust. One that this worker does not ask who it is is not heard.
fn follow(options: &LinkOptions, said: &v1::Trust) {
    let Some(following) = &options.following else { return };
    debug!(
        revoked = said.revoked_serials.len() + said.revoked_members.len(),
        "whom to trust, from the coordinator"
    );
    if let Err(error) = following.follow(said) {
        error!(%error, "what the coordinator says about whom to trust makes no sense");
    }
}

async fn open(options: &LinkOptions, held: &watch::Receiver<Vec<v1::HeldRank>>) -> Result<Opened, Ended> {
    let broken = |reason: String| Ended::Broken(reason);
    // 1. A connection that notices a dead peer by itself.
    let connector: Connector = connector(options.following.as_ref().map(Following::trust));
    let channel = Endpoint::from_shared(options.url.clone())
        .map_err(|error| broken(error_chain(&error)))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true)
        .connect_with_connector(connector.clone())
        .await
        .map_err(|error| no_connection(&error))?;
    // 2. Hello goes first. The coordinator's name leads somewhere, so that there is a route now.
    let address = options.advertised.address().await.map_err(|error| broken(error_chain(&error)))?;
    let (up, outgoing) = mpsc::channel(QUEUED_MESSAGES);
    let hello = v1::Hello {
        worker_id: options.worker.to_string(),
        incarnation: options.incarnation,
        host_name: options.host_name.clone(),
        address,
        capabilities: Some(options.capabilities.clone()),
        held: held.borrow().clone(),
        protocol_max: WORKER_PROTOCOLS.max,
        protocol_min: WORKER_PROTOCOLS.min,
        features: WORKER_FEATURES.map(str::to_owned).to_vec(),
        labels: options.labels.clone(),
    };
    let hello = v1::SessionRequest { message: Some(v1::session_request::Message::Hello(hello)) };
    up.send(hello).await.map_err(|_| broken("the stream closed before hello".to_owned()))?;
    // 3. Welcome comes first, and in time.
    let opening = async {
        let mut down = WorkerServiceClient::new(channel)
            .session(ReceiverStream::new(outgoing))
            .await
            .map_err(|status| ended(&status))?
            .into_inner();
        let first = down.message().await.map_err(|status| ended(&status))?;
        match first.and_then(|first| first.message) {
            Some(Down::Welcome(welcome)) => Ok((welcome, down)),
            _ => Err(broken("the coordinator did not begin with a welcome".to_owned())),
        }
    };
    let (welcome, down) = tokio::time::timeout(CONNECT_TIMEOUT, opening)
        .await
        .map_err(|_| broken(format!("no welcome within {} s", CONNECT_TIMEOUT.as_secs())))??;
    check_welcome(&welcome).map_err(|misfit| Ended::Refused(misfit.to_string()))?;
    Ok(Opened { up, welcome, down, valid: connector.valid() })
}

/// Checks that the coordinator chose a protocol that this worker speaks. Earlier releases choose none.
fn check_welcome(welcome: &v1::Welcome) -> Result<(), Misfit> {
    if WORKER_PROTOCOLS.contains(welcome.protocol) {
        return Ok(());
    }
    let protocols = ProtocolRange { min: welcome.protocol, max: welcome.protocol };
    let coordinator = Side { version: welcome.coordinator_version.clone(), protocols };
    Err(Misfit { worker: Dialect::ours().side(), coordinator })
}

fn no_connection(error: &tonic::transport::Error) -> Ended {
    let reason = error_chain(error);
    match cause_of::<ConnectError>(error) {
        Some(ConnectError::Refused { .. } | ConnectError::UnknownAuthority { .. }) => Ended::Disowned(reason),
        _ => Ended::Broken(reason),
    }
}

fn ended(status: &Status) -> Ended {
    let reason = format!("{}: {}", status.code(), status.message());
    match status.code() {
        Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::Unimplemented
        | Code::PermissionDenied
        | Code::AlreadyExists => Ended::Refused(reason),
        Code::Unauthenticated => Ended::Disowned(reason),
        _ => Ended::Broken(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_welcome_in_another_protocol_is_refused_with_what_to_install() {
        let welcome = |version: &str, protocol| v1::Welcome {
            coordinator_version: version.to_owned(),
            protocol,
            ..v1::Welcome::default()
        };
        assert_eq!(check_welcome(&welcome("97.0.0", WORKER_PROTOCOLS.max)), Ok(()));
        let newer = check_welcome(&welcome("97.0.0", 97)).expect_err("not ours").to_string();
        let ours = version::VERSION;
        assert!(newer.contains("the coordinator is Ringtune 97.0.0 and speaks protocol 97"), "{newer}");
        assert!(newer.contains("install Ringtune 97.0.0 on the worker"), "{newer}");
        let older = check_welcome(&welcome("0.1.0", 0)).expect_err("it does not choose").to_string();
        assert!(older.contains(&format!("install Ringtune {ours} on the coordinator")), "{older}");
    }
}

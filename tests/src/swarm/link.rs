//! One fake worker: dial, hello, welcome, then words both ways until the session ends; and again, for ever.

use std::collections::BTreeMap;
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use ringtune_proto::v1::{
    self, session_request::Message as Up, session_response::Message as Down,
    worker_service_client::WorkerServiceClient,
};
use ringtune_shared::{
    ids::WorkerId,
    version::{self, WORKER_PROTOCOLS},
};
use tokio::{
    sync::{mpsc, watch},
    time::MissedTickBehavior,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Endpoint};

use super::{
    PACED, Shared,
    presence::Life,
    ranks::{Ranks, Said},
};

/// As a real worker's: for the connection, and again for the welcome.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// As a real worker's: messages on their way up.
const QUEUED_MESSAGES: usize = 256;
/// As a real worker's: the longest wait after the first failure, and after any.
const WAITS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Who a worker is.
#[derive(Debug)]
pub(super) struct Identity {
    worker_id: String,
    host_name: String,
    address: String,
}

impl Identity {
    /// Of the worker with that number. No two have one address; nobody ever dials it.
    pub(super) fn of(number: usize) -> Self {
        Self {
            worker_id: WorkerId::new().to_string(),
            host_name: format!("node-{number:04}"),
            address: format!("10.77.{}.{}:7072", number / 250, 1 + number % 250),
        }
    }

    fn hello(&self, held: Vec<v1::HeldRank>) -> v1::Hello {
        v1::Hello {
            worker_id: self.worker_id.clone(),
            incarnation: 1,
            host_name: self.host_name.clone(),
            address: self.address.clone(),
            capabilities: Some(v1::Capabilities {
                version: version::VERSION.to_owned(),
                libtorch_version: "none".to_owned(),
                cpu_model: "fake".to_owned(),
                cores: 8,
                numa_nodes: 1,
                memory_bytes: 32 << 30,
                numerics_class: "fake".to_owned(),
                threads: 8,
                ..v1::Capabilities::default()
            }),
            held,
            protocol_min: WORKER_PROTOCOLS.min,
            protocol_max: WORKER_PROTOCOLS.max,
            features: Vec::new(),
            labels: BTreeMap::new(),
        }
    }
}

/// A session that stands.
struct Session {
    up: mpsc::Sender<v1::SessionRequest>,
    down: Streaming<v1::SessionResponse>,
    heartbeat: Duration,
    /// The coordinator bears so much silence.
    silence: Duration,
    /// When the worker last spoke.
    spoke: Instant,
}

/// Keeps one worker's session going until its task is ended.
pub(super) async fn keep(identity: Identity, shared: Arc<Shared>) {
    let mut ranks = Ranks::default();
    let mut coordinator = shared.presence.subscribe();
    let mut failures = 0u32;
    loop {
        let life = *coordinator.borrow_and_update();
        match open(&identity, &ranks, &shared).await {
            Ok(mut session) => {
                failures = 0;
                shared.ledger.session_opened();
                shared.presence.arrive(life);
                let reason = serve(&mut session, &mut ranks, &shared, &mut coordinator).await;
                if shared.presence.leave(life) {
                    shared.ledger.ended_with_coordinator();
                } else {
                    shared.ledger.session_ended(reason, session.spoke.elapsed(), session.silence);
                }
            }
            Err(reason) => shared.ledger.attempt_failed(reason),
        }
        tokio::time::sleep(wait(failures)).await;
        failures = failures.saturating_add(1);
    }
}

/// Doubles with every failure, and differs between workers by up to a half.
fn wait(failures: u32) -> Duration {
    let bound = WAITS.0.saturating_mul(1 << failures.min(10)).min(WAITS.1);
    let fraction = f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
    bound - (bound / 2).mul_f64(fraction)
}

/// Dials, says hello with what the worker holds, and waits for the welcome.
async fn open(identity: &Identity, ranks: &Ranks, shared: &Shared) -> Result<Session, String> {
    let channel = Endpoint::from_shared(shared.url.clone())
        .map_err(|error| error.to_string())?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(5))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true)
        .connect()
        .await
        .map_err(|_| "no connection".to_owned())?;
    let (up, outgoing) = mpsc::channel(QUEUED_MESSAGES);
    let hello = identity.hello(ranks.held_for_hello());
    let spoke = Instant::now();
    up.send(v1::SessionRequest { message: Some(Up::Hello(hello)) })
        .await
        .map_err(|_| "no stream".to_owned())?;
    let opening = async {
        let session = WorkerServiceClient::new(channel).session(ReceiverStream::new(outgoing)).await;
        let mut down = session.map_err(reason)?.into_inner();
        let first = down.message().await.map_err(reason)?;
        match first.and_then(|first| first.message) {
            Some(Down::Welcome(welcome)) => Ok((welcome, down)),
            other => Err(format!("{other:?} instead of a welcome")),
        }
    };
    let (welcome, down) = tokio::time::timeout(CONNECT_TIMEOUT, opening)
        .await
        .map_err(|_| "no welcome in time".to_owned())??;
    Ok(Session {
        up,
        down,
        heartbeat: Duration::from_secs_f64(welcome.heartbeat_seconds.clamp(0.05, 60.0)),
        silence: Duration::from_secs_f64(welcome.session_timeout_seconds.clamp(0.05, 600.0)),
        spoke,
    })
}

fn reason(status: tonic::Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// Talks until the session ends; returns why it did.
async fn serve(
    session: &mut Session,
    ranks: &mut Ranks,
    shared: &Shared,
    coordinator: &mut watch::Receiver<Life>,
) -> String {
    // 1. What the coordinator may have missed.
    let missed = ranks.missed();
    let steps = missed.iter().filter(|message| matches!(message, Up::RankStep(_))).count();
    shared.ledger.steps_sent_again.fetch_add(steps as u64, Ordering::Relaxed);
    if let Err(ended) = session.say_all(missed).await {
        return ended;
    }
    // 2. Words both ways.
    let mut heartbeats = tokio::time::interval(session.heartbeat);
    heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let next_step = ranks.next_step().filter(|_| !shared.holding.load(Ordering::Acquire));
        let step_due = async {
            match next_step {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        let mut beat = false;
        let mut said = Said::default();
        tokio::select! {
            heard = session.down.message() => match heard {
                Ok(Some(message)) => said = hear(message, ranks, shared),
                Ok(None) => return "the coordinator closed the session".to_owned(),
                Err(status) => return reason(status),
            },
            _ = heartbeats.tick() => beat = true,
            () = step_due => (),
            // A killed coordinator may leave a connection behind that nobody ever closes.
            _ = coordinator.changed() => return "the coordinator was killed".to_owned(),
        }
        let steps = ranks.step(Instant::now(), shared.holding.load(Ordering::Acquire));
        for (job_id, step) in &steps.made {
            shared.ledger.step_made(job_id, *step);
        }
        shared.ledger.finished_jobs.fetch_add(u64::from(said.finished), Ordering::Relaxed);
        let mut messages = said.messages;
        messages.extend(steps.messages);
        if beat || said.heartbeat {
            shared.ledger.heartbeats.fetch_add(1, Ordering::Relaxed);
            messages.push(Up::Heartbeat(v1::Heartbeat { held: ranks.held() }));
        }
        if let Err(ended) = session.say_all(messages).await {
            return ended;
        }
    }
}

fn hear(message: v1::SessionResponse, ranks: &mut Ranks, shared: &Shared) -> Said {
    match message.message {
        Some(Down::Assignment(assignment)) => {
            shared.ledger.assignments.fetch_add(1, Ordering::Relaxed);
            let paced = assignment.spec.as_ref().is_some_and(|spec| spec.name == PACED);
            ranks.assigned(assignment, if paced { shared.step_time } else { Duration::ZERO })
        }
        Some(Down::StartRank(start)) => ranks.start(start, Instant::now()),
        Some(Down::StopRank(stop)) => ranks.stop(stop),
        Some(Down::StepsStored(stored)) => {
            let count = ranks.stored(&stored);
            shared.ledger.steps_acknowledged.fetch_add(count, Ordering::Relaxed);
            Said::default()
        }
        Some(
            Down::Welcome(_)
            | Down::EnterRing(_)
            | Down::Trust(_)
            | Down::LookAtLinks(_)
            | Down::AskMetrics(_),
        )
        | None => Said::default(),
    }
}

impl Session {
    async fn say_all(&mut self, messages: Vec<Up>) -> Result<(), String> {
        for message in messages {
            let request = v1::SessionRequest { message: Some(message) };
            if self.up.send(request).await.is_err() {
                // The stream down knows why.
                return Err(match self.down.message().await {
                    Err(status) => reason(status),
                    Ok(_) => "the coordinator closed the session".to_owned(),
                });
            }
            self.spoke = Instant::now();
        }
        Ok(())
    }
}

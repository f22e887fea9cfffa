//! One caller that makes calls as fast as it can.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::{
    self, access_service_client::AccessServiceClient, cluster_service_client::ClusterServiceClient,
    create_token_request::Kind,
};
use ringtune_security::{Connector, Credentials, Server, Trust};
use ringtune_tests::{Bystander, Launch, Sandbox};
use tokio::task::JoinSet;
use tonic::{
    Code, Request,
    transport::{Channel, Endpoint},
};

use crate::Memory;

/// Calls a second; ten times as many at once, and five times as many may wait.
const RATE: u64 = 40;
/// Calls under way at a time, on so many connections: more than may wait.
const AT_ONCE: usize = 300;
const CONNECTIONS: usize = 2;
/// Answered calls that end the flood: the burst and all that waited.
const ANSWERED: u64 = 17 * RATE;
/// Whoever waits for turns behind the flood waits longer.
const MOST_TIME: Duration = Duration::from_secs(4);

/// A call with an access token.
fn with(token: &str) -> Result<Request<v1::GetClusterRequest>> {
    let mut request = Request::new(v1::GetClusterRequest {});
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse()?);
    Ok(request)
}

/// What became of a flood's calls.
#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    refused: AtomicU64,
}

/// Calls again and again until enough was answered.
async fn call(channel: Channel, token: String, counts: Arc<Counts>) -> Result<()> {
    let mut client = ClusterServiceClient::new(channel);
    while counts.answered.load(Ordering::Relaxed) < ANSWERED {
        match client.get_cluster(with(&token)?).await {
            Ok(_) => counts.answered.fetch_add(1, Ordering::Relaxed),
            Err(status) if status.code() == Code::ResourceExhausted => {
                ensure!(status.message().contains("observer flood"), "{status}");
                counts.refused.fetch_add(1, Ordering::Relaxed)
            }
            Err(status) => return Err(status).context("a call of the flood"),
        };
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stderr)]
async fn a_caller_without_end_is_slowed_and_then_refused_and_nobody_else_notices() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let launch = Launch::coordinator().over_tls();
    let launch = launch.variable("RINGTUNE__LIMITS__CALLS_PER_SECOND", &RATE.to_string());
    let bystander = Bystander::start(&sandbox, launch, 8).await?;
    let door = bystander.cluster.coordinator.door();
    let before = bystander.step().await?;
    let memory = Memory::of(bystander.process(None)?);
    // 1. Somebody with a token, which is good.
    let request = v1::CreateTokenRequest {
        kind: Kind::Access.into(),
        role: v1::Role::Observer.into(),
        name: "flood".to_owned(),
        ..Default::default()
    };
    let made = AccessServiceClient::new(door.channel()?).create_token(request).await?.into_inner();
    let admin = Credentials::load(&sandbox.path("coordinator/admin"))?.context("an admin's credentials")?;
    let connector = Connector::to(Trust::of_roots(admin.roots().clone())?, Server::Coordinator);
    let channels = (0..CONNECTIONS).map(|_| {
        anyhow::Ok(Endpoint::from_shared(door.url())?.connect_with_connector_lazy(connector.clone()))
    });
    let channels = channels.collect::<Result<Vec<Channel>>>()?;
    // From its first call on it counts as who it is.
    ClusterServiceClient::new(channels[0].clone()).get_cluster(with(&made.secret)?).await?;
    let counts = Arc::new(Counts::default());
    // 2. It makes calls as fast as it can.
    let (begun, mut flood) = (Instant::now(), JoinSet::new());
    for channel in channels {
        for _ in 0..AT_ONCE / CONNECTIONS {
            flood.spawn(call(channel.clone(), made.secret.clone(), counts.clone()));
        }
    }
    // 3. Meanwhile others are answered.
    let mut slowest = Duration::ZERO;
    let mut others = ClusterServiceClient::new(door.channel()?);
    let mut during = 0_u64;
    while counts.answered.load(Ordering::Relaxed) < ANSWERED {
        let asked = Instant::now();
        others.get_cluster(v1::GetClusterRequest {}).await.context("a call of somebody else")?;
        slowest = slowest.max(asked.elapsed());
        during += u64::from(counts.refused.load(Ordering::Relaxed) > 0);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    while let Some(one) = flood.join_next().await {
        one??;
    }
    // 4. No more of its calls were answered than are allowed in that time.
    let took = begun.elapsed();
    let (answered, refused) =
        (counts.answered.load(Ordering::Relaxed), counts.refused.load(Ordering::Relaxed));
    eprintln!(
        "{answered} answered and {refused} refused in {took:?}; the slowest call of others {slowest:?}"
    );
    let allowed = 10 * RATE + (RATE as f64 * took.as_secs_f64()).ceil() as u64;
    ensure!(answered <= allowed, "{answered} answered in {took:?}");
    ensure!(refused > 0 && during > 0, "{refused} refused, others asked {during} times meanwhile");
    ensure!(slowest < MOST_TIME, "others waited {slowest:?}");
    memory.is_bounded("calls without end")?;
    ensure!(bystander.step().await? > before, "the job makes no steps");
    bystander.unharmed().await
}

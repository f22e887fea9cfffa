//! The checks of the network: how this worker's connections are protected, as whom it is known, and the way to the
//! coordinator.

use std::time::{Duration, SystemTime};

use ringtune_proto::v1::{
    self, access_service_client::AccessServiceClient, cluster_service_client::ClusterServiceClient,
};
use ringtune_security::{Credentials, Role, Trust};
use ringtune_shared::{
    daemon::settings::Protection,
    version::{Dialect, ProtocolRange},
};
use tokio::task::spawn_blocking;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use super::checks::{Check, Verdict};
use crate::{
    coordinator::{CoordinatorAddress, connector},
    error_chain::error_chain,
    membership::text_of,
    settings::Settings,
    state_folder::CREDENTIALS,
    status_text::status_text,
};

/// For a connection, and again for an answer.
const LIMIT: Duration = Duration::from_secs(5);
/// What to do without a certificate.
const JOIN: &str = "run `ringtune token create --role worker` where the coordinator runs, and start the worker once with \
    --join TOKEN; if it has joined, name its --state-dir here";

/// As whom a worker is known.
#[derive(Debug)]
pub(super) enum Standing {
    /// Nobody is asked.
    Plain,
    /// By this certificate.
    Certified(Box<Credentials>, Trust),
    /// There is none.
    Nobody,
    /// What is there cannot be used.
    Useless(String),
}

impl Standing {
    /// Whom the worker believes.
    pub(super) fn trust(&self) -> Option<&Trust> {
        match self {
            Self::Certified(_, trust) => Some(trust),
            Self::Plain | Self::Nobody | Self::Useless(_) => None,
        }
    }
}

/// Reads what a worker with these settings has.
pub(super) async fn standing(settings: &Settings) -> Standing {
    if settings.protection() != Ok(Protection::Tls) {
        return Standing::Plain;
    }
    let (paths, folder) = (settings.brought_credentials(), settings.storage.state_dir.join(CREDENTIALS));
    let read = spawn_blocking(move || match paths {
        Some(paths) => Credentials::read(&paths).map(Some),
        None => Credentials::load(&folder),
    });
    let useless = |error: &dyn std::error::Error| Standing::Useless(error.to_string());
    match read.await {
        Ok(Ok(Some(credentials))) => match Trust::of(credentials.clone()) {
            Ok(trust) => Standing::Certified(Box::new(credentials), trust),
            Err(error) => useless(&error),
        },
        Ok(Ok(None)) => Standing::Nobody,
        Ok(Err(error)) => useless(&error),
        Err(error) => useless(&error),
    }
}

/// How the connections are protected, and by which certificate.
pub(super) fn of_security(settings: &Settings, standing: &Standing) -> Vec<Check> {
    let (grpc, http) = (settings.grpc.listen, settings.http.listen);
    let is_local = grpc.ip().is_loopback() && http.ip().is_loopback();
    let connections = match settings.protection() {
        Err(error) => Check::new("connections", error.to_string()).unless(
            false,
            Verdict::Bad,
            "a worker with these settings does not start",
        ),
        Ok(Protection::Tls) => Check::new("connections", "TLS: all of them, and each side shows who it is"),
        Ok(Protection::Plain) if is_local => {
            Check::new("connections", "plain, and only this machine reaches the worker")
        }
        Ok(Protection::Plain) => Check::new("connections", "plain (--insecure)").unless(
            false,
            Verdict::Warn,
            "nothing is encrypted, and whoever reaches these ports may do everything: on any other than a test network \
             go without --insecure",
        ),
    };
    let bad = |found: String| Check::new("certificate", found).unless(false, Verdict::Bad, JOIN);
    let certificate = match standing {
        Standing::Plain => None,
        Standing::Nobody => Some(bad("there is none".to_owned())),
        Standing::Useless(reason) => Some(bad(reason.clone())),
        Standing::Certified(credentials, _) => Some(of_certificate(credentials, SystemTime::now())),
    };
    std::iter::once(connections).chain(certificate).collect()
}

fn of_certificate(credentials: &Credentials, now: SystemTime) -> Check {
    let who = credentials.identity().map_or_else(ToString::to_string, ToString::to_string);
    let until = credentials.validity().until;
    let cluster = credentials.cluster().map_or(String::new(), |cluster| format!(" of cluster {cluster}"));
    let found = format!("{who}{cluster}, until {}", text_of(until));
    let is_worker = credentials.identity().is_ok_and(|identity| identity.role == Role::Worker);
    let check = Check::new("certificate", found);
    if until <= now {
        return check.unless(false, Verdict::Bad, &format!("it has ended: {JOIN}"));
    }
    if !is_worker {
        return check.unless(false, Verdict::Bad, "it is none of a worker");
    }
    check.unless(
        now < credentials.renew_at() || until.duration_since(now).is_ok_and(|left| left > LATE),
        Verdict::Warn,
        "it ends soon: a worker that runs gets the next one by itself, if it reaches the coordinator",
    )
}

/// With less left, a certificate that was due for renewal is worth a look.
const LATE: Duration = Duration::from_secs(24 * 3600);

/// The way to the coordinator.
pub(super) async fn dial(address: &CoordinatorAddress, trust: Option<&Trust>) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(address.to_string()).map_err(|error| error_chain(&error))?;
    let endpoint = endpoint.connect_timeout(LIMIT);
    match tokio::time::timeout(LIMIT * 2, endpoint.connect_with_connector(connector(trust))).await {
        Ok(channel) => channel.map_err(|error| error_chain(&error)),
        Err(_) => Err("no answer".to_owned()),
    }
}

/// That the coordinator answers, that its version fits, and as whom it knows this worker.
pub(super) async fn of_coordinator(
    address: &CoordinatorAddress,
    trust: Option<&Trust>,
    dialled: Result<Channel, String>,
) -> Check {
    let asked = async {
        let channel = dialled?;
        match trust.filter(|_| address.secure) {
            None => cluster(channel).await,
            Some(_) => known_as(channel).await,
        }
    };
    let answer = tokio::time::timeout(LIMIT * 2, asked).await.unwrap_or_else(|_| Err("no answer".to_owned()));
    match answer {
        Ok((found, misfit)) => {
            let advice = misfit.clone().unwrap_or_default();
            let found = format!("{address}, {found}");
            Check::new("coordinator", found).unless(misfit.is_none(), Verdict::Bad, &advice)
        }
        Err(reason) => {
            let advice = match (address.secure, trust) {
                (true, None) => JOIN,
                _ => "is it running, does it listen on that address, does a firewall let it through?",
            };
            Check::new("coordinator", format!("{address}: {reason}")).unless(false, Verdict::Bad, advice)
        }
    }
}

/// What is there, and why it does not fit.
type Found = (String, Option<String>);

fn refused(status: &Status) -> String {
    status_text(status)
}

async fn cluster(channel: Channel) -> Result<Found, String> {
    let asked = ClusterServiceClient::new(channel).get_cluster(v1::GetClusterRequest {}).await;
    let cluster = asked.map_err(|status| refused(&status))?.into_inner();
    let found = format!(
        "version {}, workers: {} idle, {} busy, {} lost",
        cluster.version, cluster.workers_idle, cluster.workers_busy, cluster.workers_lost
    );
    let coordinator = Dialect {
        version: cluster.version,
        protocols: ProtocolRange { min: cluster.protocol_min, max: cluster.protocol_max },
        features: Vec::new(),
    };
    Ok((found, Dialect::agree(&Dialect::ours(), &coordinator).err().map(|misfit| misfit.to_string())))
}

/// A worker may not look at the cluster, but it may ask who it is.
async fn known_as(channel: Channel) -> Result<Found, String> {
    match AccessServiceClient::new(channel).who_am_i(v1::WhoAmIRequest {}).await {
        Ok(answer) => {
            let v1::WhoAmIResponse { name, cluster, .. } = answer.into_inner();
            Ok((format!("over TLS; it knows this side as {name} of cluster {cluster}"), None))
        }
        Err(status) if status.code() == Code::Unauthenticated => Err(format!("{}. {JOIN}", refused(&status))),
        Err(status) => Err(refused(&status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::testing::Cluster;

    fn verdicts(checks: &[Check]) -> Vec<(&'static str, Verdict)> {
        checks.iter().map(|check| (check.name, check.verdict)).collect()
    }

    #[tokio::test]
    async fn a_coordinator_that_is_not_there_is_a_failure() {
        let address = CoordinatorAddress::parse("http://127.0.0.1:1").unwrap();
        let check = of_coordinator(&address, None, dial(&address, None).await).await;
        assert_eq!((check.name, check.verdict), ("coordinator", Verdict::Bad));
    }

    #[tokio::test]
    async fn what_protects_the_worker_is_said() {
        use Verdict::{Bad, Good, Warn};
        let state = tempfile::tempdir().unwrap();
        let mut settings = Settings::default();
        settings.storage.state_dir = state.path().to_owned();
        let look = async |settings: &Settings| verdicts(&of_security(settings, &standing(settings).await));
        assert_eq!(look(&settings).await, [("connections", Good)]);
        settings.grpc.listen.set_ip([0, 0, 0, 0].into());
        assert_eq!(look(&settings).await, [("connections", Good), ("certificate", Bad)]);
        settings.security.insecure = true;
        assert_eq!(look(&settings).await, [("connections", Warn)]);
        settings.coordinator.url = "https://10.0.0.1".to_owned();
        assert_eq!(look(&settings).await, [("connections", Bad)]);
        settings.security.insecure = false;
        let worker = Cluster::new().worker();
        worker.credentials.store(&state.path().join(CREDENTIALS)).unwrap();
        let (found, standing) = (look(&settings).await, standing(&settings).await);
        assert_eq!(found[0], ("connections", Good));
        assert_eq!(found[1].0, "certificate");
        assert_ne!(found[1].1, Bad);
        let said = &of_security(&settings, &standing)[1].found;
        assert!(said.contains(&worker.id.to_string()) && said.contains("until 20"), "{said}");
    }

    #[test]
    fn a_certificate_is_good_until_its_end_comes_near() {
        let cluster = Cluster::new();
        let credentials = cluster.give(
            ringtune_security::Holder::Member { role: Role::Worker, name: uuid::Uuid::nil().to_string() },
            30 * LATE,
        );
        let at = |days: u32| of_certificate(&credentials, SystemTime::now() + LATE * days).verdict;
        assert_eq!((at(0), at(25), at(31)), (Verdict::Good, Verdict::Good, Verdict::Bad));
        let soon = credentials.validity().until - LATE / 2;
        assert_eq!(of_certificate(&credentials, soon).verdict, Verdict::Warn);
        let person = of_certificate(&cluster.person(Role::Admin), SystemTime::now());
        assert_eq!(person.verdict, Verdict::Bad);
    }
}

//! The way to the coordinator that a command line means.

use std::time::{Duration, SystemTime};

use ringtune_security::{ConnectError, Connector, Server};

use crate::{
    client::{Bearer, Client, ClientError, CoordinatorUrl, probe},
    common_arguments::CoordinatorArguments,
    credentials::{AccessError, Choice, Environment, Found, Given, choose, is_due, keep, renew},
    error::Error,
    output::remark,
};

/// How long to wait for a server without TLS: it answers at once, others perhaps never.
const PATIENCE: Duration = Duration::from_secs(1);

/// A coordinator, and as whom it is called.
pub(super) struct Reached {
    pub(super) client: Client,
    pub(super) url: CoordinatorUrl,
    /// None: without TLS, where nobody is asked.
    pub(super) found: Option<Found>,
}

/// A client of the coordinator that is meant.
pub(super) async fn client_of(arguments: &CoordinatorArguments) -> Result<Client, Error> {
    Ok(reach(arguments).await?.client)
}

/// As above, with how it is reached. Gets the next certificate if it is time, and while the command runs; warns where
/// nothing is encrypted.
pub(super) async fn reach(arguments: &CoordinatorArguments) -> Result<Reached, Error> {
    let reached = Box::pin(begin(arguments)).await?;
    if let Some(found) = &reached.found
        && is_due(found, SystemTime::now())
    {
        match Box::pin(renew(&reached.client, found)).await {
            Ok(_) => {}
            // The command itself says so in a moment.
            Err(AccessError::Client(error)) if error.is_away() => {}
            Err(error) => remark(&format!("warning: your certificate ends soon: {error}")),
        }
    }
    if let Some(found) = &reached.found {
        tokio::spawn(keep(reached.client.clone(), found.clone()));
    }
    Ok(reached)
}

/// As above, without a renewal.
pub(super) async fn begin(arguments: &CoordinatorArguments) -> Result<Reached, Error> {
    let named = arguments.coordinator.clone();
    let given =
        Given { credentials: arguments.credentials(), ca: arguments.ca(), environment: Environment::read() };
    let asked = named.clone();
    let chosen = match blocking(move || choose(asked.as_ref(), &given)).await {
        // Before people look for credentials: are any wanted?
        Err(Error::Access(AccessError::None { url })) if speaks_in_the_clear(named.as_ref()).await => {
            return Err(Error::Usage(format!(
                "{url} does not speak TLS: it encrypts nothing and asks nobody who they are; write {}",
                url.replacen("https://", "http://", 1)
            )));
        }
        chosen => chosen?,
    };
    match chosen {
        Choice::Open(url) => Ok(open(url)),
        Choice::Secure(url, found) => Ok(secure(url, *found)),
        Choice::Here(url, found) => {
            let connector = Connector::to(found.trust.clone(), Server::Coordinator);
            match Box::pin(probe(&url, connector)).await {
                Err(ConnectError::NoTls { .. }) => Ok(open(CoordinatorUrl::on_this_machine())),
                // What else is wrong is said by the first call.
                _ => Ok(secure(url, *found)),
            }
        }
    }
}

/// Whether something answers there without TLS. Nothing is said that anybody may not read.
async fn speaks_in_the_clear(url: Option<&CoordinatorUrl>) -> bool {
    let Some(url) = url.filter(|url| url.is_secure()) else { return false };
    let client = Client::new(&url.in_the_clear());
    let answer = tokio::time::timeout(PATIENCE, client.who_am_i()).await;
    matches!(answer, Ok(Ok(_) | Err(ClientError::Refused { .. })))
}

fn open(url: CoordinatorUrl) -> Reached {
    if !url.is_loopback() {
        remark(&format!(
            "warning: nothing is encrypted on the way to {url}, and whoever reaches it may do everything"
        ));
    }
    Reached { client: Client::new(&url), url, found: None }
}

fn secure(url: CoordinatorUrl, found: Found) -> Reached {
    let connector = Connector::to(found.trust.clone(), Server::Coordinator);
    let bearer = found.token.as_ref().map_or_else(Bearer::none, Bearer::token);
    Reached { client: Client::with(&url, connector, bearer), url, found: Some(found) }
}

/// Reads or writes files beside the runtime.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AccessError> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(|error| Error::Output(std::io::Error::other(error)))??)
}

//! What a cloud says of the machine that it lent: its type, and that it is about to take it away. Then the worker leaves, as
//! after a SIGTERM.
//!
//! `aws` and `azure` know the metadata services, and read what these say; here is who asks them, and what follows.

mod aws;
mod azure;
mod service;

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use service::Service;
pub use service::Trouble;

/// Between two questions; both clouds ask for no more.
const PAUSE: Duration = Duration::from_secs(5);
/// Where both clouds have it, for the machine alone.
pub(crate) const METADATA: &str = "http://169.254.169.254";

/// Whose machine it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CloudProvider {
    /// Nobody's who would say something.
    #[default]
    None,
    /// Amazon EC2.
    Aws,
    /// Microsoft Azure.
    Azure,
}

/// The machine is about to be taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Notice {
    /// For people.
    reason: String,
    /// By which it is acknowledged, where a cloud waits for that.
    event: Option<String>,
}

/// What kind of machine it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    /// As the cloud calls it, such as `m7i.4xlarge`.
    pub(crate) kind: String,
    /// Where it is: an availability zone; empty: the cloud does not say.
    pub(crate) zone: String,
    /// Its processors are lent for a while, and then held back.
    pub(crate) is_burstable: bool,
}

/// A cloud's metadata service.
#[derive(Clone, Debug)]
pub(crate) struct Cloud {
    provider: CloudProvider,
    service: Service,
}

/// The zone of this machine, for which its cloud is asked once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Zone(Arc<OnceLock<String>>);

impl Zone {
    /// Has it asked for, beside everything else.
    pub(crate) fn of(cloud: Option<Cloud>) -> Self {
        let zone = Self::default();
        if let Some(cloud) = cloud {
            let known = zone.clone();
            tokio::spawn(async move {
                // A service that says nothing is warned of by whoever waits for its notices.
                if let Ok(machine) = cloud.machine().await {
                    let _ = known.0.set(machine.zone);
                }
            });
        }
        zone
    }

    /// Empty: no cloud says.
    pub(crate) fn name(&self) -> String {
        self.0.get().cloned().unwrap_or_default()
    }
}

impl Cloud {
    /// That of a provider, at `http://HOST[:PORT]`; none of nobody's machine.
    ///
    /// # Errors
    /// HTTP cannot be spoken.
    pub(crate) fn of(provider: CloudProvider, endpoint: &str) -> Result<Option<Self>, Trouble> {
        match provider {
            CloudProvider::None => Ok(None),
            _ => Ok(Some(Self { provider, service: Service::at(endpoint)? })),
        }
    }

    /// What kind of machine it is.
    ///
    /// # Errors
    /// The service does not answer, or makes no sense.
    pub(crate) async fn machine(&self) -> Result<Machine, Trouble> {
        match self.provider {
            CloudProvider::Aws => aws::machine(&self.service).await,
            CloudProvider::Azure | CloudProvider::None => azure::machine(&self.service).await,
        }
    }

    async fn notice(&self) -> Result<Option<Notice>, Trouble> {
        match self.provider {
            CloudProvider::Aws => aws::notice(&self.service, SystemTime::now()).await,
            CloudProvider::Azure | CloudProvider::None => azure::notice(&self.service).await,
        }
    }

    /// Asks until the machine is about to be taken away; then cancels `leave`, and acknowledges it once the worker has `left`. Ends
    /// then, or when the worker has left for another reason.
    pub(crate) async fn watch(self, leave: CancellationToken, left: CancellationToken) {
        info!(provider = ?self.provider, "the cloud is asked whether it takes this machine away");
        let mut silent = false;
        let notice = loop {
            let asked = tokio::select! {
                asked = self.notice() => asked,
                () = left.cancelled() => return,
            };
            match asked {
                Ok(Some(ref notice)) => break notice.clone(),
                Ok(None) if silent => info!("the metadata service answers again"),
                Ok(None) => {}
                Err(ref error) if !silent => {
                    warn!(%error, "the metadata service says nothing; it is asked again")
                }
                Err(_) => {}
            }
            silent = asked.is_err();
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = left.cancelled() => return,
            }
        };
        warn!(reason = notice.reason, "this machine is taken away: leaving");
        leave.cancel();
        left.cancelled().await;
        if let Some(event) = &notice.event
            && let Err(error) = azure::acknowledge(&self.service, event).await
        {
            warn!(%error, "the cloud is not told that this machine may go");
        }
    }
}

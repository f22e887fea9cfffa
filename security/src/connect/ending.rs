//! Ends an outgoing connection when the server's certificate expires or is revoked.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::watch;

use crate::certificate::Facts;
use crate::times;
use crate::trust::State;

/// This side's trust, as it changes. None: it verifies without one.
pub(super) type Following = Option<watch::Receiver<Arc<State>>>;

/// Fails a connection when it is time. Polled by the one task that reads and writes it, as HTTP/2 has it.
pub(super) struct Ending {
    over: Pin<Box<dyn Future<Output = String> + Send>>,
    why: Option<String>,
}

impl fmt::Debug for Ending {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Ending").field("why", &self.why).finish_non_exhaustive()
    }
}

impl Ending {
    /// Of a connection to a server with this certificate.
    pub(super) fn of(address: &str, facts: Facts, trust: Following) -> Self {
        let address = address.to_owned();
        let over = async move {
            let until = facts.validity.until;
            let what = tokio::select! {
                () = facts.validity.over() => format!("ended at {}", times::text(until)),
                () = revoked(&facts, trust) => "was revoked".to_owned(),
            };
            format!("the connection to {address} was closed: its certificate {} {what}", facts.serial)
        };
        Self { over: Box::pin(over), why: None }
    }

    /// Fails once the certificate is over; until then the caller's waker is registered for that.
    pub(super) fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.why.is_none()
            && let Poll::Ready(why) = self.over.as_mut().poll(context)
        {
            self.why = Some(why);
        }
        match &self.why {
            None => Ok(()),
            Some(why) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, why.clone())),
        }
    }
}

/// Waits until it is among those who are revoked.
async fn revoked(facts: &Facts, trust: Following) {
    let is_revoked = |state: &Arc<State>| {
        let named = facts.identity.as_ref().is_ok_and(|identity| state.revoked.has(identity));
        named || state.revoked.has_serial(&facts.serial)
    };
    if let Some(mut trust) = trust
        && trust.wait_for(is_revoked).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

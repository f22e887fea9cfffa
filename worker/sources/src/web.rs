//! HTTP and TLS.

use std::{future::Future, sync::Once, time::Duration};

use reqwest::{Client, redirect::Policy};

use tokio::time::timeout;

use crate::{Error, Patience, ProgressSender, tries::Tries};

/// A name that leads nowhere takes two tries of the system to be told from one that is slow.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// TLS is rustls with ring, for every client of this process.
pub(crate) fn use_ring() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Somebody else's choice, made before, is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

/// A client that follows no redirect by itself: who may see a token is decided for each.
pub(crate) fn client() -> Result<Client, Error> {
    use_ring();
    Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(Policy::none())
        .user_agent(concat!("ringtune/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| unreachable("HTTP", error))
}

/// A request that failed; without its whole URL, which may be signed.
pub(crate) fn unreachable(what: impl Into<String>, error: reqwest::Error) -> Error {
    let (what, host) = (what.into(), error.url().map(|url| url.origin().ascii_serialization()));
    let is_not_reached = error.is_connect();
    let error = error.without_url();
    let mut problem = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(deeper) = cause {
        problem = format!("{problem}: {deeper}");
        cause = deeper.source();
    }
    match host.filter(|_| is_not_reached) {
        Some(host) => Error::NotReached { what, problem: format!("{host} cannot be reached: {problem}") },
        None => Error::Unreachable { what, problem },
    }
}

/// Repeats a request as long as trying again may help and patience lasts, and says so.
pub(crate) async fn with_retries<T, F>(
    patience: &Patience,
    what: &str,
    progress: &ProgressSender,
    request: impl Fn() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut tries = Tries::new(patience);
    loop {
        let stalled = |_| Error::Unreachable {
            what: what.to_owned(),
            problem: format!("no answer for {:.0} seconds", patience.stall.as_secs_f64()),
        };
        let asking = timeout(patience.stall, request());
        match tries.while_silent(asking, what, progress).await.map_err(stalled).flatten() {
            Err(error) => tries.wait_after(error, progress).await?,
            Ok(answer) => return Ok(answer),
        }
    }
}

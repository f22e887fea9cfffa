//! HTTP and TLS.

use std::{future::Future, sync::Once, time::Duration};

use reqwest::{Client, redirect::Policy};

use tokio::time::timeout;

use crate::{Error, Patience};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

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

/// A request that failed; without its URL, which may be signed.
pub(crate) fn unreachable(what: impl Into<String>, error: reqwest::Error) -> Error {
    let error = error.without_url();
    let mut problem = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(deeper) = cause {
        problem = format!("{problem}: {deeper}");
        cause = deeper.source();
    }
    Error::Unreachable { what: what.into(), problem }
}

/// Repeats a request as long as trying again may help and patience lasts.
pub(crate) async fn with_retries<T, F>(
    patience: &Patience,
    what: &str,
    request: impl Fn() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut waits = patience.waits();
    loop {
        let stalled = |_| Error::Unreachable {
            what: what.to_owned(),
            problem: format!("no answer for {:.0} seconds", patience.stall.as_secs_f64()),
        };
        let answer = timeout(patience.stall, request()).await.map_err(stalled).flatten();
        match answer {
            Err(error) if error.is_transient() => {
                let Some(wait) = waits.next() else { return Err(error) };
                tracing::info!(what, %error, "trying again");
                tokio::time::sleep(wait).await;
            }
            answer => return answer,
        }
    }
}

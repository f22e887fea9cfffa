//! What browsers need of the coordinator's HTTP port: the page's files, and the API without gRPC.
//!
//! - [`page`]: `/` and `/assets/…`, which are in the program.
//! - `unary`: `POST /api/SERVICE/METHOD`, each call of the API that has one answer, as the Connect protocol's JSON.
//! - `events`: `GET /api/events`, what happens as server-sent events.
//! - `files`: `GET /api/files/…`, also all of a job as one archive, and `GET /api/contents/…`.
//! - `session`: who looks, login and logout.
//! - [`guard`]: what a web site elsewhere could make a browser send is refused.
//!
//! **Invariant:** it names the coordinator nowhere and decides about no caller. Everything that it answers it asks of
//! the API's own services, through the same layers as every other call, in the name of whoever asks. So the page can do
//! what its caller may do, and there is no second set of rules.

pub mod answer;
mod caller;
mod calls;
mod codec;
mod cookie;
mod events;
mod files;
pub mod guard;
pub mod page;
mod session;
mod unary;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use prost_reflect::{DescriptorError, DescriptorPool};
use ringtune_security::Role;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::calls::Calls;

/// Streams of events that may be open at a time.
const STREAMS: usize = 256;
/// Archives that may be under way at a time.
const ARCHIVES: usize = 16;

/// Everything that is served here: method and path, with `{…}` for a part that may be anything.
pub const ROUTES: [(&str, &str); 10] = [
    ("GET", "/"),
    ("GET", "/assets/{name}"),
    ("GET", "/api/session"),
    ("POST", "/login"),
    ("POST", "/logout"),
    ("POST", "/api/{service}/{method}"),
    ("GET", "/api/events"),
    ("GET", "/api/files/{job}"),
    ("GET", "/api/files/{job}/{name}"),
    ("GET", "/api/contents/{sha256}"),
];

/// What the gateway is made from.
pub struct Options {
    /// The API's services, with all their layers.
    pub calls: Calls,
    /// Whether callers are asked who they are. Then the port speaks TLS.
    pub secured: bool,
    /// The coordinator's version.
    pub version: &'static str,
    /// What a role may call: "JobService/CancelJob"; none: where nobody is asked who they are. `certified`: the caller
    /// has a certificate.
    pub methods: fn(role: Option<Role>, certified: bool) -> Vec<String>,
    /// Ends all streams when cancelled.
    pub shutdown: CancellationToken,
}

/// The API's description cannot be read: a mistake in this program.
#[derive(Debug, thiserror::Error)]
#[error("the API's own description cannot be read: {0}")]
pub struct Error(#[from] DescriptorError);

/// What the handlers share.
struct Gateway {
    options: Options,
    pool: DescriptorPool,
    streams: Arc<Semaphore>,
    archives: Arc<Semaphore>,
}

/// All that is served here. Who may have it is decided around it, and by the API's services.
///
/// # Errors
/// See [`Error`].
pub fn router(options: Options) -> Result<Router, Error> {
    let pool = DescriptorPool::decode(ringtune_proto::FILE_DESCRIPTOR_SET)?;
    let pages = page::Pages::embedded();
    let [streams, archives] = [STREAMS, ARCHIVES].map(|places| Arc::new(Semaphore::new(places)));
    let gateway = Arc::new(Gateway { options, pool, streams, archives });
    let api = Router::new()
        .route("/api/session", get(session::session))
        .route("/login", post(session::login))
        .route("/logout", post(session::logout))
        .route("/api/{service}/{method}", post(unary::call))
        .route("/api/events", get(events::events))
        .route("/api/files/{job}", get(files::archive))
        .route("/api/files/{job}/{name}", get(files::file))
        .route("/api/contents/{sha256}", get(files::content))
        .with_state(gateway);
    let pages = Router::new()
        .route("/", get(page::index))
        .route("/assets/{name}", get(page::asset))
        .with_state(Arc::new(pages));
    Ok(api.merge(pages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_are_read_and_routes_do_not_clash() {
        let nothing = tower::service_fn(|_| async { Ok(http::Response::new(tonic::body::Body::empty())) });
        let options = Options {
            calls: Calls::new(nothing),
            secured: false,
            version: "0",
            methods: |_, _| Vec::new(),
            shutdown: CancellationToken::new(),
        };
        assert!(router(options).is_ok());
    }
}

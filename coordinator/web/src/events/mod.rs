//! `GET /api/events`: what happens, as server-sent events.
//!
//! A stream watches all jobs that its caller may see, the cluster and, if asked to, one job. It reads of those watches
//! only while its browser takes what it is sent; what it has to remember meanwhile is in `jobs`, `history` and
//! `waiting`, which are bounded.
//!
//! Invariant: of jobs it remembers ids, and a hash of what was told of those that wait, never the jobs.

mod history;
mod jobs;
mod stream;
mod text;
mod waiting;
mod watches;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use ringtune_security::Closing;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use self::stream::Stream;
use self::watches::Watches;
use crate::caller::Caller;
use crate::{Gateway, STREAMS};

pub(crate) async fn events(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    RawQuery(query): RawQuery,
    closing: Option<Extension<Closing>>,
    headers: HeaderMap,
) -> Response {
    let closing = closing.map(|Extension(closing)| closing).unwrap_or_default();
    match open(&gateway, &caller, query, &headers, closing).await {
        Ok(stream) => {
            let mut response = Response::new(Body::from_stream(stream.messages()));
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
            response
        }
        Err(status) => caller.failed(&status),
    }
}

async fn open(
    gateway: &Arc<Gateway>,
    caller: &Caller,
    query: Option<String>,
    headers: &HeaderMap,
    closing: Closing,
) -> Result<Stream, Status> {
    let asked = text::asked(query.as_deref().unwrap_or_default(), headers)?;
    let place = gateway.streams.clone().try_acquire_owned().map_err(|_| {
        let text = format!("{STREAMS} pages are open, which is the limit; close some, or try again later");
        let details = ErrorDetails::with_retry_info(Some(std::time::Duration::from_secs(5)));
        Status::with_error_details(Code::Unavailable, text, details)
    })?;
    let watches = Watches::new(gateway, caller);
    // Who may not watch is told so before the stream begins.
    let jobs = watches.jobs(&[]).await?;
    Ok(Stream::new(watches, jobs, asked, closing, gateway.options.shutdown.clone(), place))
}

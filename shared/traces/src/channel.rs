//! The way to the collector.

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

use http::uri::PathAndQuery;
use ringtune_security::{Connector, Roots};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::error::Error;
use crate::wire::{EXPORT, ExportRequest, ExportResponse};

/// Timeout of a connection.
const CONNECT: Duration = Duration::from_secs(3);

/// Makes no connection before the first spans.
pub(crate) fn open(endpoint: &str, ca: &Path) -> Result<Channel, Error> {
    let connector = match ca.as_os_str().is_empty() {
        true => Connector::plain(),
        false => {
            let unusable = |problem: String| Error::Ca { path: ca.to_owned(), problem };
            let text = std::fs::read_to_string(ca).map_err(|error| unusable(error.to_string()))?;
            let roots = Roots::from_pem(&text).map_err(|error| unusable(error.to_string()))?;
            Connector::outside(&roots).map_err(|error| unusable(error.to_string()))?
        }
    };
    let target =
        Endpoint::from_shared(endpoint.to_owned()).map_err(|_| Error::Endpoint(endpoint.to_owned()))?;
    Ok(target.connect_with_connector_lazy(connector.within(CONNECT)))
}

/// Hands spans over; how many the collector did not want, and why.
pub(crate) async fn send(channel: Channel, request: ExportRequest) -> Result<(u64, String), String> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| causes(&error))?;
    let path = PathAndQuery::from_static(EXPORT);
    let codec = ProstCodec::<ExportRequest, ExportResponse>::default();
    let answer = client.unary(Request::new(request), path, codec).await.map_err(|status| said(&status))?;
    let partial = answer.into_inner().partial_success.unwrap_or_default();
    Ok((u64::try_from(partial.rejected_spans).unwrap_or(0), partial.error_message))
}

/// A status's message and its sources.
fn said(status: &Status) -> String {
    match status.source() {
        Some(source) => causes(source),
        None => format!("{}: {}", status.code(), status.message()),
    }
}

/// An error and its causes, each once.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}

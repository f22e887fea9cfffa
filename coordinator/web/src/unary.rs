//! `POST /api/SERVICE/METHOD`: each call of the API that has one answer, as the Connect protocol's unary form, in JSON or binary.
//!
//! The request's body is read while the call is under way, so that whoever may not make it is told so before that.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, MethodDescriptor, SerializeOptions,
};
use tonic::{Code, Status};

use crate::answer::{JSON, PROTO, is_type};
use crate::caller::Caller;
use crate::codec::DynamicCodec;
use crate::{Gateway, calls};

/// Bytes of a request.
const LARGEST_REQUEST: usize = 1 << 20;
/// For programs, which have a key and keep its certificate: over gRPC alone.
const NOT_HERE: [&str; 2] =
    ["/ringtune.v1.AccessService/Join", "/ringtune.v1.AccessService/RenewCertificate"];

pub(crate) async fn call(State(gateway): State<Arc<Gateway>>, caller: Caller, request: Request) -> Response {
    // The gRPC method's own path.
    let path = request.uri().path().strip_prefix("/api").unwrap_or_default().to_owned();
    match answer(&gateway, &caller, &path, request).await {
        Ok((bytes, kind)) => {
            let mut answer = Response::new(Body::from(bytes));
            answer.headers_mut().insert(CONTENT_TYPE, kind);
            answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            answer
        }
        Err(status) => caller.failed(&status),
    }
}

async fn answer(
    gateway: &Gateway,
    caller: &Caller,
    path: &str,
    request: Request,
) -> Result<(Vec<u8>, HeaderValue), Status> {
    let is_binary = is_binary(request.headers());
    let found = method(&gateway.pool, path)?;
    // Of a method that is not there the services say so themselves, to those who may know.
    let types = found.map(|method| (method.input(), method.output()));
    let empty = || gateway.pool.get_message_by_name("google.protobuf.Timestamp");
    let (input, output) = types
        .or_else(|| empty().map(|any| (any.clone(), any)))
        .ok_or_else(|| Status::unimplemented("there is no such method here"))?;
    let unread = calls::Unread::default();
    let ((parts, body), wrong) = (request.into_parts(), unread.clone());
    let messages = futures::stream::once(async move {
        let message = read(input, &parts.headers, body).await;
        message.inspect_err(|status| wrong.set(status))
    });
    let mut call = caller.call(messages)?;
    call.extensions_mut().insert(unread);
    let mut client = gateway.options.calls.client().await?;
    match client.client_streaming(call, calls::path(path)?, DynamicCodec(output)).await {
        // tonic says no more than that.
        Err(status) if status.code() == Code::Unimplemented && status.message().is_empty() => {
            Err(Status::unimplemented("there is no such method here"))
        }
        Err(status) => Err(status),
        Ok(message) if is_binary => Ok((message.get_ref().encode_to_vec(), HeaderValue::from_static(PROTO))),
        Ok(message) => Ok((json(message.get_ref())?, JSON)),
    }
}

/// Whether a message comes as its bytes, and not as JSON.
fn is_binary(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).is_some_and(|kind| is_type(kind, PROTO))
}

/// The method of a path, if the API has it.
fn method(pool: &DescriptorPool, path: &str) -> Result<Option<MethodDescriptor>, Status> {
    let Some((service, name)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return Ok(None);
    };
    let found = pool
        .get_service_by_name(service)
        .and_then(|service| service.methods().find(|method| method.name() == name));
    let streams =
        found.as_ref().is_some_and(|method| method.is_client_streaming() || method.is_server_streaming());
    if streams || NOT_HERE.contains(&path) {
        let instead = "GET /api/events, /api/files and /api/contents have what browsers need of it";
        return Err(Status::unimplemented(format!("{service}/{name} is for gRPC alone; {instead}")));
    }
    Ok(found)
}

/// A request's message.
async fn read(kind: MessageDescriptor, headers: &HeaderMap, body: Body) -> Result<DynamicMessage, Status> {
    if let Some(coding) = headers.get(CONTENT_ENCODING).filter(|coding| *coding != "identity") {
        return Err(Status::unimplemented(format!("content-encoding: got {coding:?}; allowed: identity")));
    }
    let bytes = axum::body::to_bytes(body, LARGEST_REQUEST).await.map_err(|error| {
        let allowed = format!("allowed: {LARGEST_REQUEST} bytes within the call's time");
        Status::invalid_argument(format!("the request's body could not be read ({error}); {allowed}"))
    })?;
    if is_binary(headers) {
        let wrong =
            |error| Status::invalid_argument(format!("the request's message cannot be read: {error}"));
        return DynamicMessage::decode(kind, bytes).map_err(wrong);
    }
    from_json(kind, &bytes)
}

/// A message from proto3 JSON.
pub(crate) fn from_json(kind: MessageDescriptor, json: &[u8]) -> Result<DynamicMessage, Status> {
    let name = kind.name().to_owned();
    let wrong = |error: serde_json::Error| {
        Status::invalid_argument(format!("{error}; allowed: a JSON object with the fields of {name}"))
    };
    let mut reader = serde_json::Deserializer::from_slice(json);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message = DynamicMessage::deserialize_with_options(kind, &mut reader, &options).map_err(wrong)?;
    reader.end().map_err(wrong)?;
    Ok(message)
}

/// A message as proto3 JSON.
pub(crate) fn json(message: &DynamicMessage) -> Result<Vec<u8>, Status> {
    let mut bytes = Vec::new();
    let mut writer = serde_json::Serializer::new(&mut bytes);
    message
        .serialize_with_options(&mut writer, &SerializeOptions::new())
        .map_err(|error| Status::internal(format!("the answer cannot be written as JSON: {error}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> DescriptorPool {
        DescriptorPool::decode(ringtune_proto::FILE_DESCRIPTOR_SET).unwrap()
    }

    #[test]
    fn methods_are_those_of_the_api_with_one_answer() {
        let pool = pool();
        let found = method(&pool, "/ringtune.v1.JobService/GetJob").unwrap().unwrap();
        assert_eq!(found.input().name(), "GetJobRequest");
        for nothing in ["/ringtune.v1.JobService/Nothing", "/JobService/GetJob", "/x/y", "x", ""] {
            assert_eq!(method(&pool, nothing).unwrap(), None, "{nothing}");
        }
        for not_here in
            ["JobService/WatchJob", "ArtifactService/Upload", "WorkerService/Session", "AccessService/Join"]
        {
            let status = method(&pool, &format!("/ringtune.v1.{not_here}")).unwrap_err();
            assert_eq!(status.code(), Code::Unimplemented, "{not_here}");
        }
    }

    #[test]
    fn messages_are_read_and_written_as_proto3_json() {
        let kind = pool().get_message_by_name("ringtune.v1.Job").unwrap();
        let text = r#"{"jobId":"j","state":"JOB_STATE_RUNNING","createTime":"2026-11-22T23:42:11Z","step":"9007199254740993","loss":0.25,"queue":{"labels":{"a":"b"}}}"#;
        let message = from_json(kind.clone(), text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(json(&message).unwrap()).unwrap(), text);
        assert_eq!(from_json(kind.clone(), b"{}").unwrap(), DynamicMessage::new(kind.clone()));
        let deep = "[".repeat(100_000);
        for wrong in [
            "",
            "{",
            "[]",
            "{} {}",
            "nul",
            "{\"nothing\":1}",
            "{\"step\":\"x\"}",
            "{\"state\":\"NO\"}",
            &deep,
        ] {
            let status = from_json(kind.clone(), wrong.as_bytes()).unwrap_err();
            assert!(status.message().contains("allowed: a JSON object with the fields of Job"), "{status:?}");
        }
    }
}

//! Answers: errors as the Connect protocol has them, and what every answer says to browsers.

use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use prost::Message as _;
use serde::Serialize;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// The content type of messages.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Messages as programs of the Connect protocol send them where they have a choice.
pub(crate) const PROTO: &str = "application/proto";

/// Whether a content type is this one, whatever its parameters.
pub(crate) fn is_type(given: &str, wanted: &str) -> bool {
    given.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(wanted)
}

/// What every answer of this port says to browsers.
const FOR_BROWSERS: [(&str, &str); 4] = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-frame-options", "DENY"),
];

/// Puts in what every answer says to browsers.
pub fn for_browsers(headers: &mut HeaderMap) {
    for (name, value) in FOR_BROWSERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}

/// An error, as the Connect protocol writes it.
#[derive(Serialize)]
struct Error<'a> {
    code: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<Detail>,
}

#[derive(Serialize)]
struct Detail {
    #[serde(rename = "type")]
    kind: String,
    /// Base64 without padding, as the protocol has it.
    value: String,
}

/// An error status as an answer.
pub fn error(status: &Status) -> Response {
    with_status(http_status(status.code()), status)
}

/// As above, with an HTTP status that says more than the code.
pub(crate) fn with_status(http: StatusCode, status: &Status) -> Response {
    let mut response = Response::new(Body::from(error_json(status)));
    *response.status_mut() = http;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    let wait = status.get_details_retry_info().and_then(|retry| retry.retry_delay);
    if let Some(wait) = wait {
        response.headers_mut().insert(RETRY_AFTER, wait.as_secs().max(1).into());
    }
    response
}

/// An error status as JSON.
pub(crate) fn error_json(status: &Status) -> String {
    let details = tonic_types::pb::Status::decode(status.details()).unwrap_or_default().details;
    let details = details
        .into_iter()
        .map(|any| Detail {
            kind: any.type_url.rsplit('/').next().unwrap_or_default().to_owned(),
            value: STANDARD_NO_PAD.encode(any.value),
        })
        .collect();
    let error = Error { code: name(status.code()), message: status.message(), details };
    serde_json::to_string(&error).unwrap_or_else(|_| "{}".to_owned())
}

fn name(code: Code) -> &'static str {
    match code {
        Code::Cancelled => "canceled",
        Code::InvalidArgument => "invalid_argument",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => "failed_precondition",
        Code::Aborted => "aborted",
        Code::OutOfRange => "out_of_range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::DataLoss => "data_loss",
        Code::Unauthenticated => "unauthenticated",
        Code::Ok | Code::Unknown => "unknown",
    }
}

/// The Connect protocol's statuses of HTTP.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// An answer that is refused before a call is made of it: the HTTP status says which error it is.
pub fn refused(http: StatusCode, text: &str) -> Response {
    let code = match http {
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        StatusCode::MISDIRECTED_REQUEST => Code::FailedPrecondition,
        _ => Code::InvalidArgument,
    };
    with_status(http, &Status::new(code, text))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn an_error_keeps_its_code_text_and_details() {
        let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(5)));
        let status = Status::with_error_details(Code::ResourceExhausted, "too \"many\"\n", details);
        let answer = error(&status);
        assert_eq!(answer.status(), 429);
        assert_eq!(answer.headers()["retry-after"], "5");
        let json = error_json(&status);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["code"], "resource_exhausted");
        assert_eq!(value["message"], "too \"many\"\n");
        assert_eq!(value["details"][0]["type"], "google.rpc.RetryInfo");
        // RetryInfo { retry_delay: 5 s }
        assert_eq!(value["details"][0]["value"], "CgIIBQ");
        assert_eq!(error_json(&Status::not_found("x")), r#"{"code":"not_found","message":"x"}"#);
    }
}

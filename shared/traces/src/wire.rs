//! The messages and fields of OTLP 1 that are sent, by their numbers in
//! opentelemetry/proto/{collector/trace/v1/trace_service,trace/v1/trace,common/v1/common,resource/v1/resource}.proto.
//!
//! Written by hand: the official crate brings a second tracing library along for these eighty lines. Tests read what is sent
//! with it.

use std::time::{SystemTime, UNIX_EPOCH};

use prost::{Message, Oneof};

use crate::span::{Span as Recorded, Value};

/// The method that takes spans.
pub(crate) const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// SpanKind.SPAN_KIND_INTERNAL
const INTERNAL: i32 = 1;
/// Status.StatusCode.STATUS_CODE_ERROR
const ERROR: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(crate) rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub(crate) error_message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(crate) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) spans: Vec<Span>,
}

/// InstrumentationScope
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Scope {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(crate) name: String,
    #[prost(int32, tag = "6")]
    pub(crate) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(crate) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub(crate) end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub(crate) attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub(crate) status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "3")]
    pub(crate) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyValue {
    #[prost(oneof = "AnyValueKind", tags = "1, 2, 3, 4")]
    pub(crate) value: Option<AnyValueKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum AnyValueKind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Flag(bool),
    #[prost(int64, tag = "3")]
    Number(i64),
    #[prost(double, tag = "4")]
    Fraction(f64),
}

/// A pair of an attribute.
pub(crate) fn attribute(key: &str, value: Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => AnyValueKind::Text(text),
        Value::Flag(flag) => AnyValueKind::Flag(flag),
        Value::Number(number) => AnyValueKind::Number(i64::try_from(number).unwrap_or(i64::MAX)),
        Value::Fraction(fraction) => AnyValueKind::Fraction(fraction),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

impl From<Recorded> for Span {
    fn from(span: Recorded) -> Self {
        Self {
            trace_id: span.context.trace.0.to_vec(),
            span_id: span.context.span.0.to_vec(),
            parent_span_id: span.parent.map(|parent| parent.0.to_vec()).unwrap_or_default(),
            name: span.name.to_owned(),
            kind: INTERNAL,
            start_time_unix_nano: nanoseconds(span.start),
            // A clock may be set back meanwhile.
            end_time_unix_nano: nanoseconds(span.end.max(span.start)),
            attributes: span.attributes.into_iter().map(|(key, value)| attribute(key, value)).collect(),
            status: span.failed.then_some(Status { code: ERROR }),
        }
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

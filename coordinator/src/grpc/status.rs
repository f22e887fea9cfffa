//! The one place where errors become gRPC statuses, with google.rpc details.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use ringtune_proto::convert::FieldError;
use ringtune_shared::job::SpecError;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use super::allowance::Flood;
use crate::access::{self, Denied, Reason};
use crate::core::Refusal;
use crate::{contents, quotas, service, store};

/// The domain of our ErrorInfo reasons.
const DOMAIN: &str = "ringtune.v1";
/// When a full queue, disk or table is worth another try.
const RETRY: Duration = Duration::from_secs(5);

/// One field of a request is wrong.
pub(super) fn bad_field(error: &FieldError) -> Status {
    bad_request(vec![FieldViolation::new(error.field.clone(), error.problem.clone())])
}

/// Fields of a job spec are wrong; named as in the request, "spec.train.num_vectors".
pub(super) fn bad_spec(error: SpecError) -> Status {
    let named = |violation: ringtune_shared::job::Violation| {
        let field =
            if violation.field.is_empty() { String::new() } else { format!("spec.{}", violation.field) };
        FieldViolation::new(field, violation.problem)
    };
    bad_request(error.violations.into_iter().map(named).collect())
}

/// Fields of a queue's entry are wrong; their names are those of the request already, "queue.labels.team".
pub(super) fn bad_queue(error: SpecError) -> Status {
    let violations = error.violations.into_iter();
    bad_request(violations.map(|one| FieldViolation::new(one.field, one.problem)).collect())
}

/// INVALID_ARGUMENT with every violation, in the details and in words.
pub(super) fn bad_request(violations: Vec<FieldViolation>) -> Status {
    let words: Vec<String> = violations
        .iter()
        .map(|violation| format!("{}: {}", violation.field, violation.description))
        .collect();
    let details = ErrorDetails::with_bad_request(violations);
    Status::with_error_details(Code::InvalidArgument, words.join("\n"), details)
}

/// The coordinator stops; another try finds its successor.
pub(super) fn shutting_down() -> Status {
    retry_later(Code::Unavailable, "the coordinator is shutting down", Duration::from_secs(1))
}

/// As many calls of this kind are under way as may be.
pub(super) fn too_many(what: &str, limit: usize) -> Status {
    retry_later(Code::ResourceExhausted, &format!("{limit} {what} are under way, which is the limit"), RETRY)
}

/// A worker floods its session.
pub(super) fn too_much(flood: &Flood) -> Status {
    quota("messages of a session", flood.to_string())
}

/// Another try may help.
pub(super) fn retry_later(code: Code, message: &str, delay: Duration) -> Status {
    Status::with_error_details(code, message, ErrorDetails::with_retry_info(Some(delay)))
}

fn missing(kind: &str, name: &str, message: String) -> Status {
    let details = ErrorDetails::with_resource_info(kind, name, "", message.clone());
    Status::with_error_details(Code::NotFound, message, details)
}

/// Something is not as it has to be for this request.
pub(super) fn precondition(kind: &str, subject: String, message: String) -> Status {
    let details = ErrorDetails::with_precondition_failure_violation(kind, subject, message.clone());
    Status::with_error_details(Code::FailedPrecondition, message, details)
}

fn quota(subject: &str, message: String) -> Status {
    quota_after(RETRY, subject, message)
}

fn quota_for(subject: &str, denied: &Denied) -> Status {
    quota_after(denied.retry_after.unwrap_or(RETRY), subject, denied.text.clone())
}

fn quota_after(delay: Duration, subject: &str, message: String) -> Status {
    let mut details = ErrorDetails::with_quota_failure_violation(subject, message.clone());
    details.set_retry_info(Some(delay));
    Status::with_error_details(Code::ResourceExhausted, message, details)
}

impl From<service::Error> for FailedRequest {
    fn from(error: service::Error) -> Self {
        Self(service_status(&error))
    }
}

impl From<contents::Error> for FailedRequest {
    fn from(error: contents::Error) -> Self {
        Self(contents_status(&error))
    }
}

impl From<store::Error> for FailedRequest {
    fn from(error: store::Error) -> Self {
        Self(store_status(&error))
    }
}

impl From<quotas::Error> for FailedRequest {
    fn from(error: quotas::Error) -> Self {
        Self(match &error {
            // Without a time for another try: waiting does not help.
            quotas::Error::Over { over, .. } => {
                let message = error.to_string();
                let details =
                    ErrorDetails::with_quota_failure_violation(over.what.setting(), message.clone());
                Status::with_error_details(Code::ResourceExhausted, message, details)
            }
            quotas::Error::Store(error) => store_status(error),
        })
    }
}

impl From<access::Error> for FailedRequest {
    fn from(error: access::Error) -> Self {
        Self(access_status(&error))
    }
}

impl From<FieldError> for FailedRequest {
    fn from(error: FieldError) -> Self {
        Self(bad_field(&error))
    }
}

impl From<Status> for FailedRequest {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl From<FailedRequest> for Status {
    fn from(failed: FailedRequest) -> Self {
        failed.0
    }
}

/// What `?` turns every component's error into, on its way to a [`Status`].
pub(super) struct FailedRequest(Status);

fn service_status(error: &service::Error) -> Status {
    use service::Error as E;
    let message = error.to_string();
    match error {
        E::Refused(refusal) => refusal_status(refusal),
        E::Store(error) => store_status(error),
        E::NoSuchJob(id) => missing("ringtune.v1.Job", &id.to_string(), message),
        E::NoSuchWorker(id) => missing("ringtune.v1.Worker", &id.to_string(), message),
        E::NoSuchArtifact { name, .. } => missing("ringtune.v1.Artifact", name, message),
        E::AlreadyEnded { job, .. } => precondition("JOB_ENDED", job.to_string(), message),
        E::NotEnded { job, .. } => precondition("JOB_NOT_ENDED", job.to_string(), message),
        E::NoSuchSequence { .. } => {
            let details = ErrorDetails::with_bad_request_violation("after_sequence", message.clone());
            Status::with_error_details(Code::OutOfRange, format!("after_sequence: {message}"), details)
        }
        E::TooSlow { .. } => retry_later(Code::Aborted, &message, Duration::from_secs(1)),
        E::ShuttingDown => shutting_down(),
    }
}

/// The certificate that a call came with is over. Another try over another connection shows whether there is a next one.
pub(super) fn certificate_over(holder: &str, until: SystemTime) -> Status {
    let until = prost_types::Timestamp::from(until);
    Status::unavailable(format!(
        "the certificate of {holder} ended at {until}, and with it this connection: connect again with the next one"
    ))
}

/// The caller may not, or nobody knows who it is.
pub(super) fn denied(denied: &Denied) -> Status {
    let code = match denied.reason {
        Reason::NoIdentity | Reason::Certificate | Reason::Token => Code::Unauthenticated,
        Reason::TooManyTokens => return quota_for("wrong tokens", denied),
        Reason::TooManyCalls => return quota_for("calls a second", denied),
        Reason::Role | Reason::Worker | Reason::Owner => Code::PermissionDenied,
        Reason::Method => Code::Unimplemented,
    };
    let reason = format!("ACCESS_{}", denied.reason.as_str().to_ascii_uppercase());
    let details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new());
    Status::with_error_details(code, denied.text.clone(), details)
}

fn access_status(error: &access::Error) -> Status {
    use access::Error as E;
    let message = error.to_string();
    match error {
        E::Denied(why) => denied(why),
        E::Store(error) => store_status(error),
        E::Field { field, problem } => bad_field(&FieldError::new(*field, problem.clone())),
        E::TooMany { what, .. } => {
            let details = ErrorDetails::with_quota_failure_violation(*what, message.clone());
            Status::with_error_details(Code::ResourceExhausted, message, details)
        }
        E::NothingAuthenticated => precondition("NOT_SECURED", "security".to_owned(), message),
        E::FromElsewhere => precondition("NO_AUTHORITY", "security.certificate".to_owned(), message),
        E::InUse { .. } | E::Roots(_) => precondition("AUTHORITY", "roots".to_owned(), message),
        E::Pki(_) | E::Unpredictable(_) | E::Interrupted => {
            tracing::error!(%error, "a certificate or token could not be made or changed");
            Status::internal(message)
        }
    }
}

fn refusal_status(refusal: &Refusal) -> Status {
    let message = refusal.to_string();
    match refusal {
        Refusal::QueueFull { .. } => quota("queued jobs", message),
        Refusal::TooManyWorkers { .. } => quota("workers", message),
        Refusal::TooManyArtifacts { .. } => quota("artifacts of a job", message),
        Refusal::NotActive(job) => precondition("JOB_NOT_ACTIVE", job.to_string(), message),
        Refusal::RequestReused { job, .. } => {
            let details =
                ErrorDetails::with_resource_info("ringtune.v1.Job", job.to_string(), "", message.clone());
            Status::with_error_details(Code::AlreadyExists, message, details)
        }
        Refusal::Misfit(_) => precondition("PROTOCOL", "hello.protocol_max".to_owned(), message),
        Refusal::OtherEpoch { job, .. } => precondition("EPOCH", job.to_string(), message),
        Refusal::OlderIncarnation { .. } => {
            precondition("INCARNATION", "hello.incarnation".to_owned(), message)
        }
        // It may be gone soon: the worker asks again by itself.
        Refusal::AddressTaken { .. } => retry_later(Code::Unavailable, &message, RETRY),
        Refusal::NoSuchWorker(id) => missing("ringtune.v1.Worker", &id.to_string(), message),
        Refusal::StaleSession => Status::aborted(message),
    }
}

fn store_status(error: &store::Error) -> Status {
    let message = format!("the coordinator's store failed: {error}");
    match error {
        store::Error::Full => quota("disk of the coordinator", message),
        store::Error::Database(_) => retry_later(Code::Unavailable, &message, RETRY),
        store::Error::Corrupt(_) | store::Error::Damaged { .. } | store::Error::Newer { .. } => {
            Status::data_loss(message)
        }
    }
}

fn contents_status(error: &contents::Error) -> Status {
    use contents::Error as E;
    let message = error.to_string();
    match error {
        E::NotFound(hash) => missing("ringtune.v1.Artifact", &hash.uri(), message),
        E::Offset { committed, .. } => {
            let metadata = HashMap::from([("committed_size".to_owned(), committed.to_string())]);
            let mut details = ErrorDetails::with_error_info("UPLOAD_OFFSET", DOMAIN, metadata);
            details.add_precondition_failure_violation("UPLOAD_OFFSET", "header.offset", message.clone());
            Status::with_error_details(Code::FailedPrecondition, message, details)
        }
        E::TooLong { .. } => bad_field(&FieldError::new("chunk", message)),
        E::HashMismatch { .. } => bad_field(&FieldError::new("header.sha256", message)),
        E::Size { .. } => bad_field(&FieldError::new("header.size", message)),
        E::TooLarge { .. } => {
            let details = ErrorDetails::with_quota_failure_violation("size of an upload", message.clone());
            Status::with_error_details(Code::ResourceExhausted, message, details)
        }
        E::Range { .. } => Status::out_of_range(message),
        E::Busy(_) => retry_later(Code::Aborted, &message, Duration::from_secs(1)),
        E::TooManyUploads { .. } => quota("uploads under way", message),
        E::Quota { .. } => quota("storage.content_bytes", message),
        E::TooLittleFree { .. } => quota("storage.free_bytes", message),
        // The path is the coordinator's own affair; that the disk is full is the caller's too.
        E::DiskFull(_) => quota("disk of the coordinator", "the coordinator's disk is full".to_owned()),
        E::Io { .. } => {
            tracing::error!(%error, "file error");
            Status::internal("the coordinator cannot read or write its files; its log says more")
        }
    }
}

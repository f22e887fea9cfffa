//! The one place where errors become gRPC statuses, with google.rpc details.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use ringtune_proto::convert::FieldError;
use ringtune_shared::condition::{Condition, DOMAIN};
use ringtune_shared::job::SpecError;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use super::allowance::Flood;
use crate::access::{self, Denied, Reason};
use crate::core::Refusal;
use crate::{contents, quotas, references, service, store};

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

/// A job file is wrong; its fields are named as they are there.
pub(super) fn bad_job_file(error: SpecError) -> Status {
    let named = |violation: ringtune_shared::job::Violation| {
        let field = if violation.field.is_empty() { "job_file".to_owned() } else { violation.field };
        let line = violation.line.map(|line| format!("line {line}: ")).unwrap_or_default();
        FieldViolation::new(field, format!("{line}{}", violation.problem))
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
    passing(Condition::Busy, what, format!("{limit} {what} are under way, which is the limit"))
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

/// A failed precondition of a request.
pub(super) fn precondition(kind: &str, subject: String, message: String) -> Status {
    let details = ErrorDetails::with_precondition_failure_violation(kind, subject, message.clone());
    Status::with_error_details(Code::FailedPrecondition, message, details)
}

/// A condition of `subject` that passes by itself: clients wait and try again.
fn passing(condition: Condition, subject: &str, message: String) -> Status {
    passing_after(None, condition, subject, message)
}

fn passing_after(delay: Option<Duration>, condition: Condition, subject: &str, message: String) -> Status {
    let mut details = ErrorDetails::with_quota_failure_violation(subject, message.clone());
    details.set_error_info(condition.as_str(), DOMAIN, HashMap::new());
    details.set_retry_info(Some(delay.unwrap_or(RETRY)));
    Status::with_error_details(Code::ResourceExhausted, message, details)
}

/// The passing condition that a status names, if any.
pub(super) fn condition_of(status: &Status) -> Option<Condition> {
    let info = status.get_details_error_info()?;
    Condition::of(&info.domain, &info.reason)
}

/// A temporary failure of the coordinator itself.
fn failing(condition: Condition, code: Code, message: String) -> Status {
    let mut details = ErrorDetails::with_retry_info(Some(RETRY));
    details.set_error_info(condition.as_str(), DOMAIN, HashMap::new());
    Status::with_error_details(code, message, details)
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
                let mut details =
                    ErrorDetails::with_quota_failure_violation(over.what.setting(), message.clone());
                details.set_error_info(Condition::OverQuota.as_str(), DOMAIN, HashMap::new());
                Status::with_error_details(Code::ResourceExhausted, message, details)
            }
            quotas::Error::Store(error) => store_status(error),
        })
    }
}

impl From<references::Error> for FailedRequest {
    fn from(error: references::Error) -> Self {
        match error {
            references::Error::Contents(error) => error.into(),
            references::Error::Service(error) => error.into(),
            references::Error::Store(error) => error.into(),
            references::Error::Quotas(error) => error.into(),
            error @ references::Error::Interrupted(_) => Self(Status::internal(error.to_string())),
        }
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

/// The [`Status`] of any component's error, for `?` in handlers.
pub(super) struct FailedRequest(Status);

fn service_status(error: &service::Error) -> Status {
    use service::Error as E;
    let message = error.to_string();
    match error {
        E::Refused(refusal) => refusal_status(refusal),
        E::Store(error) => store_status(error),
        E::NoSuchJob(id) => missing("ringtune.v1.Job", &id.to_string(), message),
        E::NoSuchSweep(id) => missing("ringtune.v1.Sweep", &id.to_string(), message),
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
        Reason::TooManyCalls => {
            return passing_after(denied.retry_after, Condition::Busy, "calls a second", denied.text.clone());
        }
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
        Refusal::OwnerQueueFull { .. } => quota("queued jobs of an owner", message),
        Refusal::TooManyRanks { .. } => bad_field(&FieldError::new("spec.cluster.min_world_size", message)),
        Refusal::TooManyWorkers { .. } => quota("workers", message),
        Refusal::TooManyArtifacts { .. } => quota("artifacts of a job", message),
        Refusal::NotActive(job) => precondition("JOB_NOT_ACTIVE", job.to_string(), message),
        Refusal::WaitsForSweep(job) => precondition("JOB_WAITS_FOR_SWEEP", job.to_string(), message),
        Refusal::EmptySweep => bad_field(&FieldError::new("points", message)),
        Refusal::CannotPause(job) => precondition("WORKERS_TOO_OLD", job.to_string(), message),
        Refusal::TakesNoOrders(job) => precondition("JOB_TAKES_NO_ORDERS", job.to_string(), message),
        Refusal::CannotOrder(job) => precondition("WORKERS_TOO_OLD", job.to_string(), message),
        Refusal::StepIsOver { .. } => bad_field(&FieldError::new("order.after_step", message)),
        Refusal::TooManyOrders { .. } => quota("orders of a job", message),
        Refusal::NobodyFits { .. } => {
            precondition("NO_SUCH_WORKERS", "spec.cluster.constraints".to_owned(), message)
        }
        Refusal::TooManyNeeds { .. } => quota("different constraints of active jobs", message),
        Refusal::AboutToEnd(job) => precondition("JOB_NOT_ACTIVE", job.to_string(), message),
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
        store::Error::Full => passing(Condition::DiskFull, "disk of the coordinator", message),
        store::Error::Database(_) => failing(Condition::StoreFailing, Code::Unavailable, message),
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
        E::TooManyUploads { .. } => passing(Condition::Busy, "uploads under way", message),
        E::Quota { .. } => passing(Condition::ContentsFull, "storage.content_bytes", message),
        E::TooLittleFree { .. } => passing(Condition::DiskLow, "storage.free_bytes", message),
        // The path is the coordinator's own affair; that the disk is full is the caller's too.
        E::DiskFull(_) => {
            let message = "the coordinator's disk is full".to_owned();
            passing(Condition::DiskFull, "disk of the coordinator", message)
        }
        E::Io { .. } => {
            tracing::error!(%error, "file error");
            let message = "the coordinator cannot read or write its files; its log says more".to_owned();
            match error.may_pass() {
                true => failing(Condition::FilesFailing, Code::Internal, message),
                // What cannot be read now may never be read again.
                false => Status::internal(message),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use ringtune_shared::ids::{ContentHash, JobId};

    use super::*;
    use crate::core::{OverQuota, Scarce};

    #[test]
    fn what_passes_by_itself_says_so_and_what_a_rule_refuses_does_not() {
        let full = || contents::Error::DiskFull("contents".into());
        let io = |action| {
            let source = io::Error::from(io::ErrorKind::Other);
            contents::Error::Io { action, path: "contents".into(), source }
        };
        let over = OverQuota { owner: "ada".to_owned(), what: Scarce::Bytes, used: 1, after: 2, limit: 1 };
        let cases: Vec<(FailedRequest, Option<Condition>)> = vec![
            (full().into(), Some(Condition::DiskFull)),
            (contents::Error::TooLittleFree { given: 1, free: 1, limit: 2 }.into(), Some(Condition::DiskLow)),
            (contents::Error::Quota { given: 1, taken: 1, limit: 1 }.into(), Some(Condition::ContentsFull)),
            (contents::Error::TooManyUploads { limit: 1 }.into(), Some(Condition::Busy)),
            (io("write").into(), Some(Condition::FilesFailing)),
            (io("read").into(), None),
            (store::Error::Full.into(), Some(Condition::DiskFull)),
            (store::Error::Database("locked".to_owned()).into(), Some(Condition::StoreFailing)),
            (quotas::Error::Over { field: "header.size", over }.into(), Some(Condition::OverQuota)),
            (service::Error::from(store::Error::Full).into(), Some(Condition::DiskFull)),
            (too_many("downloads", 4).into(), Some(Condition::Busy)),
            (contents::Error::TooLarge { given: 2, limit: 1 }.into(), None),
            (contents::Error::NotFound(ContentHash::of(b"")).into(), None),
            (service::Error::from(Refusal::TooManyArtifacts { limit: 1 }).into(), None),
            (service::Error::from(Refusal::NotActive(JobId::new())).into(), None),
        ];
        for (failed, expected) in cases {
            let status = Status::from(failed);
            assert_eq!(condition_of(&status), expected, "{status}");
            // What is not over by itself names no time.
            let waits = status.get_details_retry_info().is_some();
            assert!(expected.is_none_or(|one| waits == (one != Condition::OverQuota)), "{status}");
        }
    }
}

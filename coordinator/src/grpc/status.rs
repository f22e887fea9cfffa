//! Every error of the coordinator as a gRPC status with rich details: the one place where this is decided.

use std::time::Duration;

use ringtune_proto::convert::FieldError;
use ringtune_shared::spec::SpecError;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};

use crate::{contents, core::Refusal, store};

/// After how long trying again has a chance.
const SOON: Duration = Duration::from_secs(1);

/// Fields of a request that are not what they should be: INVALID_ARGUMENT with a BadRequest.
pub fn bad_fields(errors: impl IntoIterator<Item = FieldError>) -> Status {
    let violations: Vec<FieldViolation> =
        errors.into_iter().map(|error| FieldViolation::new(error.field, error.problem)).collect();
    let lines: Vec<String> = violations
        .iter()
        .map(|violation| format!("{}: {}", violation.field, violation.description))
        .collect();
    Status::with_error_details(
        Code::InvalidArgument,
        lines.join("; "),
        ErrorDetails::with_bad_request(violations),
    )
}

/// One such field.
pub fn bad_field(error: FieldError) -> Status {
    bad_fields([error])
}

/// A job's spec that cannot be run; fields are named from the spec on, as in "spec.train.num_vectors".
pub fn bad_spec(error: SpecError) -> Status {
    let field = |name: String| if name.is_empty() { "spec".to_owned() } else { format!("spec.{name}") };
    bad_fields(error.violations.into_iter().map(|found| FieldError::new(field(found.field), found.problem)))
}

/// Something that was asked for by name and is not there.
pub fn not_found(kind: &str, name: &str) -> Status {
    Status::with_error_details(
        Code::NotFound,
        format!("there is no {kind} {name}"),
        ErrorDetails::with_resource_info(kind, name, "", "it does not exist, or was deleted"),
    )
}

/// What is in the API but not in this version.
pub fn not_there_yet(method: &str) -> Status {
    Status::unimplemented(format!("{method} is not in this version"))
}

fn try_again(code: Code, message: String) -> Status {
    Status::with_error_details(code, message, ErrorDetails::with_retry_info(Some(SOON)))
}

impl From<Refusal> for StatusOf {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        Self(match refusal {
            Refusal::QueueFull { .. } | Refusal::TooManyWorkers { .. } => {
                try_again(Code::ResourceExhausted, message)
            }
            Refusal::TooManyArtifacts { .. } => Status::resource_exhausted(message),
            Refusal::RequestReused { .. } => Status::already_exists(message),
            Refusal::NotActive(job) => Status::with_error_details(
                Code::FailedPrecondition,
                message,
                ErrorDetails::with_precondition_failure_violation(
                    "STATE",
                    job.to_string(),
                    "the job has ended",
                ),
            ),
            Refusal::OtherProtocol { .. }
            | Refusal::OtherVersion { .. }
            | Refusal::OlderIncarnation { .. } => Status::failed_precondition(message),
            Refusal::StaleSession => Status::aborted(message),
        })
    }
}

impl From<store::Error> for StatusOf {
    fn from(error: store::Error) -> Self {
        let message = error.to_string();
        Self(match error {
            store::Error::Full => Status::resource_exhausted(message),
            store::Error::Database(_) => try_again(Code::Unavailable, message),
            store::Error::Damaged { .. } => Status::data_loss(message),
            store::Error::Newer { .. } => Status::failed_precondition(message),
        })
    }
}

impl From<contents::Error> for StatusOf {
    fn from(error: contents::Error) -> Self {
        use contents::Error;
        let message = error.to_string();
        let field = |name: &str| bad_field(FieldError::new(name, message.clone()));
        Self(match error {
            Error::NotFound(hash) => not_found("artifact", &hash.uri()),
            Error::HashMismatch { .. } => field("header.sha256"),
            Error::Size { .. } | Error::TooLarge { .. } => field("header.size"),
            Error::TooLong { .. } => field("chunk"),
            Error::Range { .. } => Status::with_error_details(
                Code::OutOfRange,
                message.clone(),
                ErrorDetails::with_bad_request_violation("offset", message),
            ),
            // The client asks with a header alone how much is here, and goes on from there.
            Error::Offset { .. } => Status::with_error_details(
                Code::OutOfRange,
                message.clone(),
                ErrorDetails::with_bad_request_violation("header.offset", message),
            ),
            Error::Busy(_) | Error::TooManyUploads { .. } => try_again(Code::Unavailable, message),
            Error::DiskFull(_) => Status::resource_exhausted(message),
            Error::Io { .. } => Status::internal(message),
        })
    }
}

/// A status made from one of the coordinator's errors; `?` needs a type of our own between the two.
#[derive(Debug)]
pub struct StatusOf(pub Status);

/// The status of an error of the coordinator.
pub fn of(error: impl Into<StatusOf>) -> Status {
    error.into().0
}

#[cfg(test)]
mod tests {
    use ringtune_shared::ids::ContentHash;

    use super::*;

    #[test]
    fn every_bad_field_is_named_in_the_details() {
        let status = bad_fields([FieldError::new("job_id", "a"), FieldError::new("page_size", "b")]);
        assert_eq!(status.code(), Code::InvalidArgument);
        let details = status.get_details_bad_request().unwrap();
        let fields: Vec<_> = details.field_violations.iter().map(|found| found.field.as_str()).collect();
        assert_eq!(fields, ["job_id", "page_size"]);
    }

    #[test]
    fn where_a_retry_helps_it_says_so() {
        let busy = of(contents::Error::Busy(ContentHash::of(b"x")));
        assert_eq!(busy.code(), Code::Unavailable);
        assert!(busy.get_details_retry_info().is_some());
        let full = of(contents::Error::DiskFull("/x".into()));
        assert_eq!(full.code(), Code::ResourceExhausted);
        assert!(full.get_details_retry_info().is_none());
    }
}

//! Ids in requests.

use ringtune_proto::convert::parse;
use ringtune_shared::ids::{JobId, SweepId};

use super::status::FailedRequest;

/// Of the field `sweep_id`.
pub(super) fn sweep_id(text: &str) -> Result<SweepId, FailedRequest> {
    Ok(parse("sweep_id", text)?)
}

/// Of the field `job_id`.
pub(super) fn job_id(text: &str) -> Result<JobId, FailedRequest> {
    Ok(parse("job_id", text)?)
}

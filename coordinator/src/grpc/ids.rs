//! Ids in requests.

use ringtune_proto::convert::parse;
use ringtune_shared::ids::JobId;

use super::status::FailedRequest;

/// Of the field `job_id`.
pub(super) fn job_id(text: &str) -> Result<JobId, FailedRequest> {
    Ok(parse("job_id", text)?)
}

//! The first part of an upload.

use ringtune_proto::convert::{FieldError, parse, unsigned};
use ringtune_proto::v1;
use ringtune_shared::checkpoint::is_recovery_name;
use ringtune_shared::files::check_file_name;
use ringtune_shared::ids::{ContentHash, Epoch, JobId};

/// Characters of a media type.
const LONGEST_MEDIA_TYPE: usize = 200;

/// A checked UploadHeader.
pub(super) struct Header {
    pub(super) hash: ContentHash,
    pub(super) size: u64,
    pub(super) offset: u64,
    /// The job to list the file with, and its name there.
    pub(super) place: Option<(JobId, String)>,
    pub(super) media_type: String,
    /// The epoch of the ring that made the file, where a rank did.
    pub(super) epoch: Option<Epoch>,
}

impl Header {
    pub(super) fn read(wire: v1::UploadHeader) -> Result<Self, FieldError> {
        let hash = parse("header.sha256", &wire.sha256)?;
        let size = unsigned("header.size", wire.size)?;
        let offset = unsigned("header.offset", wire.offset)?;
        let place = match (wire.job_id.is_empty(), wire.name.is_empty()) {
            (true, true) => None,
            (false, false) => {
                check_file_name(&wire.name)
                    .map_err(|error| FieldError::new("header.name", error.to_string()))?;
                if is_recovery_name(&wire.name) && wire.epoch.is_none() {
                    let problem =
                        format!("got {:?}; allowed: no name that begins with .recovery-", wire.name);
                    return Err(FieldError::new("header.name", problem));
                }
                Some((parse("header.job_id", &wire.job_id)?, wire.name))
            }
            (true, false) => return Err(FieldError::new("header.job_id", "is missing; name is given")),
            (false, true) => return Err(FieldError::new("header.name", "is missing; job_id is given")),
        };
        if wire.media_type.len() > LONGEST_MEDIA_TYPE {
            let problem = format!("{} bytes; allowed: at most {LONGEST_MEDIA_TYPE}", wire.media_type.len());
            return Err(FieldError::new("header.media_type", problem));
        }
        Ok(Self { hash, size, offset, place, media_type: wire.media_type, epoch: wire.epoch.map(Epoch) })
    }
}

//! The first part of an upload.

use ringtune_proto::convert::{FieldError, parse, unsigned};
use ringtune_proto::v1;
use ringtune_shared::checkpoint::is_recovery_name;
use ringtune_shared::files::{check_file_name, check_saved_name};
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
                // Of recovery points, which ranks alone bring, nobody is shown or given anything.
                let checked = match is_recovery_name(&wire.name) && wire.epoch.is_some() {
                    true => check_file_name(&wire.name),
                    false => check_saved_name(&wire.name),
                };
                checked.map_err(|error| FieldError::new("header.name", error.to_string()))?;
                Some((parse("header.job_id", &wire.job_id)?, wire.name))
            }
            (true, false) => return Err(FieldError::new("header.job_id", "is missing; name is given")),
            (false, true) => return Err(FieldError::new("header.name", "is missing; job_id is given")),
        };
        if wire.media_type.len() > LONGEST_MEDIA_TYPE {
            let problem = format!("{} bytes; allowed: at most {LONGEST_MEDIA_TYPE}", wire.media_type.len());
            return Err(FieldError::new("header.media_type", problem));
        }
        if !wire.media_type.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
            let problem = format!("got {:?}; allowed: printable ASCII, as in image/png", wire.media_type);
            return Err(FieldError::new("header.media_type", problem));
        }
        Ok(Self { hash, size, offset, place, media_type: wire.media_type, epoch: wire.epoch.map(Epoch) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, media_type: &str, epoch: Option<u64>) -> Option<String> {
        let read = Header::read(v1::UploadHeader {
            sha256: "ab".repeat(32),
            job_id: JobId::new().to_string(),
            name: name.to_owned(),
            media_type: media_type.to_owned(),
            epoch,
            ..Default::default()
        });
        read.err().map(|error| error.field)
    }

    #[test]
    fn what_people_will_save_has_a_name_that_harms_nobody() {
        assert_eq!(field("learned_embeds.safetensors", "", None), None);
        assert_eq!(field("a b.png", "text/plain; charset=utf-8", Some(1)), None);
        assert_eq!(field(".recovery-5.safetensors", "", Some(1)), None);
        for name in [".recovery-5.safetensors", ".bashrc", "-rf", "\u{202e}gpj.exe", "a\r\nb", "a/b", ".."] {
            assert_eq!(field(name, "", None).as_deref(), Some("header.name"), "{name:?}");
        }
        assert_eq!(field(".bashrc", "", Some(1)).as_deref(), Some("header.name"), "a rank is no better");
        for media_type in ["a/b\r\nSet-Cookie: x", "ü/x", "a/b\0"] {
            assert_eq!(field("a", media_type, None).as_deref(), Some("header.media_type"), "{media_type:?}");
        }
    }
}

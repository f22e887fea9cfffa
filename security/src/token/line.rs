//! Bytes as one line: a prefix with a version, then base64 for URLs of the bytes and a checksum.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use super::TokenError;

/// How many bytes of the SHA-256 of prefix and bytes stand at the end.
const CHECKSUM: usize = 4;

/// Which sort of token is wanted.
pub(super) struct Kind {
    /// In words.
    pub(super) wanted: &'static str,
    /// Its letters.
    pub(super) prefix: &'static str,
    /// The letters of the other sort.
    pub(super) other: &'static str,
}

fn checksum(prefix: &str, bytes: &[u8]) -> [u8; CHECKSUM] {
    let digest: [u8; 32] = Sha256::new().chain_update(prefix).chain_update(bytes).finalize().into();
    [digest[0], digest[1], digest[2], digest[3]]
}

/// The line.
pub(super) fn write(prefix: &str, bytes: &[u8]) -> String {
    let sum = checksum(prefix, bytes);
    format!("{prefix}1.{}", URL_SAFE_NO_PAD.encode([bytes, &sum].concat()))
}

/// The bytes of a line, N of them.
pub(super) fn read<const N: usize>(kind: &Kind, text: &str) -> Result<Vec<u8>, TokenError> {
    let Kind { wanted, prefix, other } = *kind;
    let text = text.trim();
    if text.is_empty() {
        return Err(TokenError::Empty { wanted, wanted_prefix: prefix });
    }
    let no_token = TokenError::NoToken { wanted, wanted_prefix: prefix };
    let (head, body) = text.split_once('.').ok_or_else(|| no_token.clone())?;
    let version = match (head.strip_prefix(prefix), head.strip_prefix(other)) {
        (Some(version), _) => version,
        (None, Some(_)) => return Err(TokenError::OtherKind { wanted, wanted_prefix: prefix }),
        (None, None) => return Err(no_token),
    };
    match (version, version.parse()) {
        ("1", _) => {}
        // Written in one way only: "01" and "+1" are no numbers here.
        (_, Ok(given)) if version.starts_with(|first| matches!(first, '1'..='9')) => {
            return Err(TokenError::Version { given });
        }
        _ => return Err(no_token),
    }
    let length = (N + CHECKSUM).saturating_mul(8).div_ceil(6);
    let given = body.chars().count();
    if given != length {
        let before = head.len() + 1;
        return Err(TokenError::Length { wanted, given: before + given, length: before + length });
    }
    let mut bytes = URL_SAFE_NO_PAD.decode(body).map_err(|_| TokenError::Mistyped)?;
    let sum = bytes.split_off(N.min(bytes.len()));
    if checksum(prefix, &bytes) != *sum { Err(TokenError::Mistyped) } else { Ok(bytes) }
}

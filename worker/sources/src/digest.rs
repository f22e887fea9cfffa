//! Expected digests of files, and their incremental computation.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// The announced digest of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// SHA-256 of the content: a hub's large files.
    Sha256(String),
    /// SHA-1 of "blob SIZE\0" and the content, as git names it: a hub's small files.
    GitBlob(String),
    /// Nothing that can be computed from the content.
    Nothing,
}

impl Expected {
    /// The digest of a hub's ETag: 64 or 40 hexadecimal digits.
    pub(crate) fn of_hub_etag(etag: &str) -> Self {
        let is_hex = etag.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        match etag.len() {
            64 if is_hex => Self::Sha256(etag.to_owned()),
            40 if is_hex => Self::GitBlob(etag.to_owned()),
            _ => Self::Nothing,
        }
    }

    /// Whether a computed digest is what was expected; else a description of both.
    pub(crate) fn check(&self, computed: &str) -> Result<(), String> {
        let (name, wanted) = match self {
            Self::Sha256(wanted) => ("SHA-256", wanted),
            Self::GitBlob(wanted) => ("git blob hash", wanted),
            Self::Nothing => return Ok(()),
        };
        if wanted == computed {
            return Ok(());
        }
        Err(format!("its content has the {name} {computed}, announced was {wanted}"))
    }
}

/// A digest that is being computed.
pub(crate) enum Running {
    Sha256(Sha256),
    GitBlob(Sha1),
    Nothing,
}

impl Running {
    /// Of a file of `size` bytes.
    pub(crate) fn new(expected: &Expected, size: u64) -> Self {
        match expected {
            Expected::Sha256(_) => Self::Sha256(Sha256::new()),
            Expected::GitBlob(_) => Self::GitBlob(Sha1::new_with_prefix(format!("blob {size}\0"))),
            Expected::Nothing => Self::Nothing,
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(digest) => digest.update(bytes),
            Self::GitBlob(digest) => digest.update(bytes),
            Self::Nothing => (),
        }
    }

    /// In hexadecimal.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Sha256(digest) => hex::encode(digest.finalize()),
            Self::GitBlob(digest) => hex::encode(digest.finalize()),
            Self::Nothing => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(expected: &Expected, content: &[u8]) -> String {
        let mut running = Running::new(expected, content.len() as u64);
        content.chunks(3).for_each(|chunk| running.update(chunk));
        running.finish()
    }

    #[test]
    fn a_hubs_etags_are_what_git_and_git_lfs_compute() {
        // printf 'hello\n' | git hash-object --stdin; printf 'hello\n' | sha256sum
        let git = Expected::of_hub_etag("ce013625030ba8dba906f756967f9e9ca394464a");
        let lfs = Expected::of_hub_etag("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
        for expected in [git, lfs] {
            assert_eq!(expected.check(&of(&expected, b"hello\n")), Ok(()));
            assert!(expected.check(&of(&expected, b"hellO\n")).is_err());
        }
        assert_eq!(Expected::of_hub_etag("\"abc\""), Expected::Nothing);
        assert_eq!(Expected::of_hub_etag(&"G".repeat(64)), Expected::Nothing);
    }
}

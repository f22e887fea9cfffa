//! Names of things: jobs, workers, ring epochs, and contents of files.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A text that is not the id it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not {expected}")]
pub struct IdError {
    /// The given text, cut to 100 characters.
    pub given: String,
    /// The expected form.
    pub expected: &'static str,
}

impl IdError {
    fn new(given: &str, expected: &'static str) -> Self {
        Self { given: given.chars().take(100).collect(), expected }
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $expected:literal, $generate:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id that nothing else has.
            #[expect(clippy::new_without_default, reason = "a default id would suggest a fixed one")]
            pub fn new() -> Self {
                Self(Uuid::$generate())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(formatter)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!(stringify!($name), "({})"), self.0.hyphenated())
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            /// Only the form that `Display` writes is taken, so that one id has one spelling.
            fn from_str(text: &str) -> Result<Self, IdError> {
                let id = Uuid::try_parse(text).map_err(|_| IdError::new(text, $expected))?;
                if id.hyphenated().to_string() == text {
                    Ok(Self(id))
                } else {
                    Err(IdError::new(text, $expected))
                }
            }
        }
    };
}

uuid_id! {
    /// A job. Ids made later sort later (UUID version 7).
    JobId, "a job id: a lower-case UUID with hyphens", now_v7
}

uuid_id! {
    /// A sweep: several jobs of one job file. Ids made later sort later (UUID version 7).
    SweepId, "a sweep id: a lower-case UUID with hyphens", now_v7
}

uuid_id! {
    /// A worker, as kept in its state folder (UUID version 4).
    WorkerId, "a worker id: a lower-case UUID with hyphens", new_v4
}

uuid_id! {
    /// A coordinator's database with its contents, as both say (UUID version 4).
    StoreId, "a store id: a lower-case UUID with hyphens", new_v4
}

/// One membership of a job's ring, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch of a job's first ring.
    pub const FIRST: Epoch = Epoch(1);
}

impl Default for Epoch {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The SHA-256 of a content: what uploads, artifacts and caches are named by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash(pub [u8; 32]);

/// Prefix of a content's URI; its hash in hexadecimal follows.
pub const CONTENT_URI_PREFIX: &str = "artifact://sha256/";

impl ContentHash {
    /// The hash of `bytes`. For long contents feed a [`ContentHasher`] instead.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// `artifact://sha256/HEX`.
    pub fn uri(&self) -> String {
        format!("{CONTENT_URI_PREFIX}{self}")
    }

    /// Reads what [`ContentHash::uri`] writes.
    pub fn from_uri(uri: &str) -> Result<Self, IdError> {
        uri.strip_prefix(CONTENT_URI_PREFIX).and_then(|hash| hash.parse().ok()).ok_or_else(|| {
            IdError::new(uri, "a content URI: artifact://sha256/ and 64 lower-case hex digits")
        })
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ContentHash({self})")
    }
}

impl FromStr for ContentHash {
    type Err = IdError;

    /// Reads 64 lower-case hexadecimal digits; upper-case ones are refused, so that one content has one name.
    fn from_str(text: &str) -> Result<Self, IdError> {
        let refused = || IdError::new(text, "a SHA-256: 64 lower-case hex digits");
        if text.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return Err(refused());
        }
        let mut hash = [0; 32];
        hex::decode_to_slice(text, &mut hash).map_err(|_| refused())?;
        Ok(Self(hash))
    }
}

impl Serialize for ContentHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Hashes a content that comes in pieces.
#[derive(Clone, Default)]
pub struct ContentHasher(Sha256);

impl ContentHasher {
    /// A hasher that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all pieces in order.
    pub fn finish(self) -> ContentHash {
        ContentHash(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_back_and_other_spellings_are_refused() {
        let job = JobId::new();
        assert_eq!(job.to_string().parse::<JobId>(), Ok(job));
        let worker = WorkerId::new();
        assert_eq!(worker.to_string().parse::<WorkerId>(), Ok(worker));
        for wrong in
            ["", "x", &job.to_string().to_uppercase(), &job.0.simple().to_string(), &format!("{{{job}}}")]
        {
            assert!(wrong.parse::<JobId>().is_err(), "{wrong}");
        }
        assert_eq!(serde_json::to_string(&job).unwrap(), format!("\"{job}\""));
        assert_eq!(serde_json::from_str::<JobId>(&format!("\"{job}\"")).unwrap(), job);
    }

    #[test]
    fn later_jobs_sort_later() {
        let jobs: Vec<JobId> = (0..100).map(|_| JobId::new()).collect();
        assert!(jobs.is_sorted());
        let written: Vec<String> = jobs.iter().map(JobId::to_string).collect();
        assert!(written.is_sorted());
    }

    #[test]
    fn a_content_hash_is_the_published_sha256() {
        // FIPS 180-2, appendix B.1.
        let hash = ContentHash::of(b"abc");
        let hexadecimal = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash.to_string(), hexadecimal);
        assert_eq!(hash.uri(), format!("artifact://sha256/{hexadecimal}"));
        assert_eq!(ContentHash::from_uri(&hash.uri()), Ok(hash));
        assert_eq!(hexadecimal.parse(), Ok(hash));
        assert_eq!(
            serde_json::from_str::<ContentHash>(&serde_json::to_string(&hash).unwrap()).unwrap(),
            hash
        );
        let mut hasher = ContentHasher::new();
        hasher.update(b"a");
        hasher.update(b"bc");
        assert_eq!(hasher.finish(), hash);
    }

    #[test]
    fn other_spellings_of_a_content_are_refused() {
        let hash = ContentHash::of(b"abc").to_string();
        for wrong in
            [hash.to_uppercase(), hash[1..].to_owned(), format!("{hash}0"), "é".repeat(32), String::new()]
        {
            assert!(wrong.parse::<ContentHash>().is_err(), "{wrong}");
            assert!(ContentHash::from_uri(&format!("artifact://sha256/{wrong}")).is_err(), "{wrong}");
        }
        assert!(ContentHash::from_uri(&hash).is_err());
        assert!(ContentHash::from_uri(&format!("artifact://md5/{hash}")).is_err());
    }
}

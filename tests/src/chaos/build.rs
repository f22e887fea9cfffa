//! Workers of other builds than this one, as far as they say so: what their hello says is changed on its way.

use prost::Message as _;
use ringtune_proto::v1;
use ringtune_shared::version::{VERSION, WORKER_FEATURES, WORKER_PROTOCOLS};

/// Another build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// Of release 0.2.0: it knows no newer protocol than 2, and its rings do not re-form. It has features that
    /// nobody knows.
    Older,
    /// Of a later release, which knows one protocol more.
    Newer,
}

impl Build {
    /// The version that it says.
    pub fn version(self) -> String {
        let other = match self {
            Self::Older => "0.2.0",
            Self::Newer => "0.9.0",
        };
        // Replaced bytes keep their length.
        format!("{other}{}", VERSION.get(other.len()..).unwrap_or_default())
    }

    /// Replacements in its hello.
    pub fn words(self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let version = |version: String| v1::Capabilities { version, ..Default::default() }.encode_to_vec();
        let tongue = |protocol_max, features: Vec<String>| {
            let protocol_min = WORKER_PROTOCOLS.min;
            v1::Hello { protocol_min, protocol_max, features, ..Default::default() }.encode_to_vec()
        };
        let features = WORKER_FEATURES.map(str::to_owned).to_vec();
        let ours = tongue(WORKER_PROTOCOLS.max, features.clone());
        let theirs = match self {
            Self::Older => tongue(2, WORKER_FEATURES.map(|feature| "x".repeat(feature.len())).to_vec()),
            Self::Newer => tongue(WORKER_PROTOCOLS.max + 1, features),
        };
        vec![(version(VERSION.to_owned()), version(self.version())), (ours, theirs)]
    }
}

#[cfg(test)]
mod tests {
    use ringtune_shared::version::RE_FORM;

    use super::*;

    /// A hello as it goes over the wire, and as it arrives.
    fn arrives(build: Build) -> v1::Hello {
        let hello = v1::Hello {
            worker_id: "a worker".to_owned(),
            incarnation: 7,
            capabilities: Some(v1::Capabilities {
                version: VERSION.to_owned(),
                cores: 2,
                ..Default::default()
            }),
            protocol_min: WORKER_PROTOCOLS.min,
            protocol_max: WORKER_PROTOCOLS.max,
            features: WORKER_FEATURES.map(str::to_owned).to_vec(),
            ..Default::default()
        };
        let mut bytes = hello.encode_to_vec();
        for (from, to) in build.words() {
            assert_eq!(from.len(), to.len());
            let found = bytes.windows(from.len()).position(|window| window == from).expect("the words");
            bytes[found..found + to.len()].copy_from_slice(&to);
        }
        v1::Hello::decode(&*bytes).expect("a hello")
    }

    #[test]
    fn another_builds_hello_says_its_version_its_protocols_and_its_features() {
        let older = arrives(Build::Older);
        assert_eq!((older.protocol_min, older.protocol_max), (2, 2));
        assert!(
            !older.features.contains(&RE_FORM.to_owned()) && older.features.len() == WORKER_FEATURES.len()
        );
        assert!(older.capabilities.expect("capabilities").version.starts_with("0.2.0"));
        let newer = arrives(Build::Newer);
        assert_eq!(
            (newer.protocol_max, newer.features),
            (WORKER_PROTOCOLS.max + 1, WORKER_FEATURES.map(str::to_owned).to_vec())
        );
        assert_eq!(newer.capabilities.expect("capabilities").version, Build::Newer.version());
    }
}

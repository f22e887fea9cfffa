//! Certificates, keys and requests as files and calls bring them.

use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, KeyPair};
use ringtune_fuzzing::{Path, as_it_is};
use ringtune_security::{Authority, Credentials, Csr, Holder, Leaf, PrivateKey, Role, Roots, Trust};

use crate::{FOLDER, MOST_BYTES, der};

fn words() -> Vec<String> {
    let tags = ["CERTIFICATE", "PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "X509 CRL"];
    let lines =
        tags.iter().flat_map(|tag| [format!("-----BEGIN {tag}-----"), format!("-----END {tag}-----")]);
    lines.chain(["-----".to_owned(), "=".to_owned(), "MIIB".to_owned()]).collect()
}

/// Of a CA whose folder is gone.
fn authority() -> Authority {
    let folder = tempfile::tempdir().unwrap();
    Authority::open_or_make(&folder.path().join("pki"), SystemTime::now()).unwrap()
}

fn leaf(role: Role, name: &str) -> Leaf {
    let holder = Holder::Member { role, name: name.to_owned() };
    Leaf { holder, valid_for: Duration::from_secs(3600) }
}

#[test]
fn roots() {
    let (one, two) = (authority(), authority());
    let both = Roots::new([one.roots().ders(), two.roots().ders()].concat()).unwrap();
    Path {
        name: "roots",
        words: words(),
        valid: vec![one.roots().pem().into_bytes(), both.pem().into_bytes()],
        mend: as_it_is,
        most_bytes: MOST_BYTES,
        read: Box::new(|bytes| match Roots::from_pem(&String::from_utf8_lossy(bytes)) {
            Ok(roots) => {
                assert_eq!(Roots::from_pem(&roots.pem()).as_ref(), Ok(&roots));
                assert_eq!(roots.hashes().len(), roots.validities().len());
                // Somebody may well believe them.
                let _ = (roots.cluster(), Trust::of_roots(roots).is_ok());
                true
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        }),
    }
    .fuzz(FOLDER);
}

#[test]
fn credentials() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("credentials");
    let identity = folder.join("identity.pem");
    let ca = authority();
    let worker = "7c0b2f2e-58f3-4d1c-9a55-1f6f6d6f8a11";
    let valid = [(Role::Admin, "anna"), (Role::Worker, worker)].map(|(role, name)| {
        let (key, csr) = Csr::make().unwrap();
        let issued = ca.issue(csr.der(), &leaf(role, name), SystemTime::now()).unwrap();
        let credentials = Credentials::new(key, &issued.chain_pem(), ca.roots().clone()).unwrap();
        credentials.store(&folder).unwrap();
        fs::read(&identity).unwrap()
    });
    Path {
        name: "credentials",
        words: words(),
        valid: valid.to_vec(),
        mend: as_it_is,
        most_bytes: MOST_BYTES,
        read: Box::new(|bytes| {
            fs::write(&identity, bytes).unwrap();
            match Credentials::load(&folder) {
                Ok(credentials) => {
                    let credentials = credentials.unwrap();
                    let _ = (credentials.identity(), credentials.cluster(), credentials.renew_at());
                    assert!(credentials.serial().bytes().all(|byte| byte.is_ascii_hexdigit()));
                    let _ = Trust::of(credentials).is_ok();
                    true
                }
                Err(error) => {
                    // Nothing of a key is in a text that is logged.
                    let error = error.to_string();
                    let lines = String::from_utf8_lossy(bytes).into_owned();
                    let shown = lines.lines().any(|line| line.len() > 40 && error.contains(line));
                    assert!(!error.is_empty() && !shown, "{error}");
                    false
                }
            }
        }),
    }
    .fuzz(FOLDER);
}

static KEY: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::generate().unwrap());

/// What stands in a request is signed with its key again.
fn mend_request(bytes: Vec<u8>) -> Vec<u8> {
    der::sign(&bytes, &KEY)
}

#[test]
fn request() {
    let ca = authority();
    let request = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).unwrap();
        der::signed_part(params.serialize_request(&*KEY).unwrap().der()).unwrap()
    };
    Path {
        name: "request",
        words: ["ringtune://", "localhost", "\u{6}\u{3}U\u{1d}\u{11}", "\u{c}", "0\u{0}"]
            .map(str::to_owned)
            .to_vec(),
        valid: vec![request(&[]), request(&["localhost", "10.0.0.1"])],
        mend: mend_request,
        most_bytes: MOST_BYTES,
        read: Box::new(|bytes| match ca.issue(bytes, &leaf(Role::Submitter, "anna"), SystemTime::now()) {
            Ok(issued) => {
                // Whatever was asked for: who it is for was decided here.
                let identity = issued.identity.clone().unwrap();
                assert_eq!((identity.role, identity.name.as_str()), (Role::Submitter, "anna"));
                let key = PrivateKey::from_pem(&der::key_pem(&KEY)).unwrap();
                let holds = Credentials::new(key, &issued.chain_pem(), ca.roots().clone());
                assert_eq!(holds.unwrap().identity(), Ok(&identity));
                true
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        }),
    }
    .fuzz(FOLDER);
}

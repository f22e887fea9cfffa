use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::UnixTime;
use rustls::server::ParsedCertificate;
use uuid::Uuid;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::*;
use crate::certificate;
use crate::credentials::Csr;
use crate::identity::{IdentityError, Role};
use crate::testing;

const HOUR: Duration = Duration::from_secs(3600);

fn leaf(holder: Holder) -> Leaf {
    Leaf { holder, valid_for: 24 * HOUR }
}

fn issue(authority: &Authority, holder: Holder) -> Result<Issued, IssueError> {
    authority.issue(Csr::make().unwrap().1.der(), &leaf(holder), SystemTime::now())
}

fn san_addresses(certificate: &X509Certificate<'_>) -> usize {
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    let is_address = |name: &&_| matches!(name, x509_parser::extensions::GeneralName::IPAddress(_));
    names.value.general_names.iter().filter(is_address).count()
}

/// Whether somebody with these roots believes a server that sends this chain.
fn believes(roots: &[CertificateDer<'static>], chain: &[CertificateDer<'static>]) -> bool {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().cloned());
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms.all;
    let parsed = ParsedCertificate::try_from(&chain[0]).unwrap();
    verify_server_cert_signed_by_trust_anchor(&parsed, &store, &chain[1..], UnixTime::now(), algorithms)
        .is_ok()
}

#[test]
fn it_is_made_once_and_opened_again() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("pki");
    let made = Authority::open_or_make(&folder, SystemTime::now()).unwrap();
    let opened = Authority::open_or_make(&folder, SystemTime::now()).unwrap();
    assert_eq!((made.cluster(), made.hash()), (opened.cluster(), opened.hash()));
    assert_eq!(made.roots(), opened.roots());
    assert_eq!((made.numbers(), made.roots().cluster()), (vec![1], Some(made.cluster())));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&root::path(&folder, 1))), (0o700, 0o600));
    // What one signs, whoever trusts the other believes.
    let issued = issue(&opened, testing::coordinator()).unwrap();
    assert!(believes(made.roots().ders(), &issued.chain));
    assert!(!believes(testing::authority().roots().ders(), &issued.chain));
}

#[test]
fn a_certificate_holds_what_the_ca_decides() {
    let authority = testing::authority();
    let (id, now) = (Uuid::from_u128(5), SystemTime::now());
    let issued = authority.issue(Csr::make().unwrap().1.der(), &leaf(testing::worker(id)), now).unwrap();
    let identity = issued.identity.clone().unwrap();
    assert_eq!((identity.worker(), identity.cluster), (Some(id), authority.cluster()));
    assert_eq!((identity.serial.as_str(), identity.serial.len()), (issued.serial.as_str(), 32));
    let facts = certificate::facts(&issued.chain[0]).unwrap();
    assert_eq!(facts.identity.unwrap(), identity);
    assert_eq!((facts.validity, facts.serial), (issued.valid, issued.serial));
    assert_eq!(facts.names, [crate::names::worker(id, authority.cluster())]);
    // An hour back, a day on.
    let backdated = now.duration_since(issued.valid.from).unwrap();
    assert!(backdated >= HOUR && backdated < HOUR + Duration::from_secs(2), "{backdated:?}");
    let (_, parsed) = X509Certificate::from_der(&issued.chain[0]).unwrap();
    assert!(!parsed.is_ca());
    let usage = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && usage.server_auth);
    assert_eq!(issued.chain.len(), 2);
}

#[test]
fn people_only_call_and_the_coordinator_only_serves() {
    let authority = testing::authority();
    let usage = |holder| {
        let issued = issue(&authority, holder).unwrap();
        let (_, parsed) = X509Certificate::from_der(&issued.chain[0]).unwrap();
        let usage = parsed.extended_key_usage().unwrap().unwrap().value;
        (usage.client_auth, usage.server_auth)
    };
    for role in [Role::Submitter, Role::Observer, Role::Admin] {
        assert_eq!(usage(testing::person(role, "anna")), (true, false));
    }
    assert_eq!(usage(testing::coordinator()), (false, true));
}

#[test]
fn the_coordinator_is_reached_by_its_own_names_and_those_of_settings() {
    let authority = testing::authority();
    let names = ["ringtune.example", "10.1.2.3", "localhost"].map(str::to_owned).to_vec();
    let issued = issue(&authority, Holder::Coordinator { names }).unwrap();
    let facts = certificate::facts(&issued.chain[0]).unwrap();
    let internal = crate::names::coordinator(authority.cluster());
    assert_eq!(facts.names, [internal.as_str(), "localhost", "ringtune.example"]);
    let (_, parsed) = X509Certificate::from_der(&issued.chain[0]).unwrap();
    assert_eq!(san_addresses(&parsed), 3);
    assert!(issued.identity.is_none() && facts.identity == Err(IdentityError::Absent));
    let stolen = crate::names::worker(Uuid::nil(), authority.cluster());
    for wrong in ["", "a b", "https://a.example", "a:7070", stolen.as_str(), &stolen.to_uppercase()] {
        let holder = Holder::Coordinator { names: vec![wrong.to_owned()] };
        assert!(matches!(issue(&authority, holder), Err(IssueError::Name { .. })), "{wrong}");
    }
    let many = Holder::Coordinator { names: vec!["a.example".to_owned(); 65] };
    assert_eq!(issue(&authority, many).unwrap_err(), IssueError::TooManyNames { given: 65 });
}

#[test]
fn of_a_request_nothing_but_its_key_is_taken() {
    let authority = testing::authority();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["evil.example".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let csr = params.serialize_request(&key).unwrap();
    // A CA's extensions would not even be read.
    let plain =
        CertificateParams::new(vec!["evil.example".to_owned()]).unwrap().serialize_request(&key).unwrap();
    for csr in [csr.der(), plain.der()] {
        let holder = testing::person(Role::Observer, "anna");
        let issued = authority.issue(csr, &leaf(holder), SystemTime::now()).unwrap();
        let facts = certificate::facts(&issued.chain[0]).unwrap();
        assert_eq!(facts.names, Vec::<String>::new());
        assert_eq!(facts.identity.unwrap().role, Role::Observer);
        let (_, parsed) = X509Certificate::from_der(&issued.chain[0]).unwrap();
        assert!(!parsed.is_ca());
        assert!(parsed.public_key().subject_public_key.data.ends_with(key.public_key_raw()));
    }
}

#[test]
fn wrong_requests_are_refused() {
    let authority = testing::authority();
    let ask = |csr: &[u8]| authority.issue(csr, &leaf(testing::worker(Uuid::nil())), SystemTime::now());
    let csr = Csr::make().unwrap().1;
    assert!(ask(csr.der()).is_ok());
    assert_eq!(ask(b"").unwrap_err(), IssueError::Unreadable);
    assert_eq!(ask(&csr.der()[..100]).unwrap_err(), IssueError::Unreadable);
    assert_eq!(ask(&[csr.der(), b"x"].concat()).unwrap_err(), IssueError::Unreadable);
    assert_eq!(ask(&[0; 10_000]).unwrap_err(), IssueError::TooLong { given: 10_000 });
    let mut forged = csr.der().to_vec();
    // The key's last byte stands before the attributes and the signature: another key, the old signature.
    let key = KeyPair::generate().unwrap();
    let at = forged.windows(2).position(|pair| pair == [0x42, 0x00]).unwrap() + 2;
    forged[at..at + 65].copy_from_slice(key.public_key_raw());
    assert_eq!(ask(&forged).unwrap_err(), IssueError::NotSigned);
    for algorithm in [&PKCS_ED25519, &PKCS_ECDSA_P384_SHA384] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let csr = CertificateParams::default().serialize_request(&key).unwrap();
        assert_eq!(ask(csr.der()).unwrap_err(), IssueError::OtherKey);
    }
    let nobody = issue(&authority, testing::person(Role::Worker, "anna"));
    assert!(matches!(nobody, Err(IssueError::Holder(IdentityError::Name { .. }))));
}

#[test]
fn no_certificate_outlives_its_root() {
    let authority = testing::authority();
    let csr = Csr::make().unwrap().1;
    let (years, now) = (Duration::from_secs(365 * 24 * 3600), SystemTime::now());
    for long in [20 * years, Duration::MAX] {
        let leaf = Leaf { holder: testing::coordinator(), valid_for: long };
        let until = authority.issue(csr.der(), &leaf, now).unwrap().valid.until;
        assert!(until < now + 11 * years && until > now + 9 * years);
    }
    let late = authority.issue(csr.der(), &leaf(testing::coordinator()), now + 11 * years);
    assert_eq!(late.unwrap_err(), IssueError::Expired);
}

#[test]
fn a_rotation_leaves_nobody_behind() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("pki");
    let mut authority = Authority::open_or_make(&folder, SystemTime::now()).unwrap();
    let (old_roots, old_hash) = (authority.roots().clone(), authority.hash());
    let before = issue(&authority, testing::coordinator()).unwrap();
    assert!(matches!(authority.retire(), Err(AuthorityError::Alone { only: 1 })));

    authority.rotate(SystemTime::now()).unwrap();
    assert_eq!(authority.numbers(), [1, 2]);
    assert_ne!(authority.hash(), old_hash);
    assert_eq!(authority.roots().hashes(), [old_hash, authority.hash()]);
    let during = issue(&authority, testing::coordinator()).unwrap();
    let new_root = &authority.roots().ders()[1..];
    // Who knows the old root alone believes the new one's certificates, who knows both believes all.
    assert!(believes(old_roots.ders(), &during.chain) && believes(new_root, &during.chain));
    assert!(believes(authority.roots().ders(), &before.chain) && !believes(new_root, &before.chain));
    // Both tokens find their root in the chain.
    let sent: Vec<[u8; 32]> = during.chain.iter().map(roots::hash).collect();
    assert!(sent.contains(&old_hash) && sent.contains(&authority.hash()));
    let again = authority.rotate(SystemTime::now()).unwrap_err();
    assert!(matches!(again, AuthorityError::Rotating { older: 1, newer: 2 }), "{again}");

    let opened = Authority::open_or_make(&folder, SystemTime::now()).unwrap();
    assert_eq!((opened.numbers(), opened.cluster()), (vec![1, 2], authority.cluster()));
    assert!(believes(old_roots.ders(), &issue(&opened, testing::coordinator()).unwrap().chain));

    authority.retire().unwrap();
    assert_eq!((authority.numbers(), authority.roots().ders().len()), (vec![2], 1));
    let after = issue(&authority, testing::coordinator()).unwrap();
    assert!(believes(authority.roots().ders(), &after.chain) && !believes(old_roots.ders(), &after.chain));
    authority.rotate(SystemTime::now()).unwrap();
    let opened = Authority::open_or_make(&folder, SystemTime::now()).unwrap();
    assert_eq!(opened.numbers(), [2, 3]);
}

#[test]
fn a_damaged_or_open_folder_is_refused_by_name() {
    let place = tempfile::tempdir().unwrap();
    let open = |folder: &Path| Authority::open_or_make(folder, SystemTime::now());
    let (one, two) = (place.path().join("one"), place.path().join("two"));
    open(&one).unwrap();
    open(&two).unwrap();
    let (file, other) = (root::path(&one, 1), root::path(&two, 1));
    let (text, theirs) = (fs::read_to_string(&file).unwrap(), fs::read_to_string(&other).unwrap());
    let (key, certificate) = text.split_at(text.find("-----BEGIN CERTIFICATE").unwrap());
    let (_, foreign) = theirs.split_at(theirs.find("-----BEGIN CERTIFICATE").unwrap());
    for (damaged, says) in [
        (String::new(), "no private key"),
        (certificate.to_owned(), "no private key"),
        (key.to_owned(), "no certificate"),
        (format!("{key}{foreign}"), "do not belong together"),
        (text[..text.len() - 40].to_owned(), "root-0001.pem"),
    ] {
        fs::write(&file, damaged).unwrap();
        let error = open(&one).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("root-0001.pem"), "{error}");
    }
    fs::write(&file, &text).unwrap();
    fs::write(root::path(&one, 2), &theirs).unwrap();
    fs::set_permissions(root::path(&one, 2), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(open(&one), Err(AuthorityError::Mixed { .. })));
    fs::remove_file(root::path(&one, 2)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(open(&one), Err(AuthorityError::File(FileError::Exposed { .. }))));
}

#[test]
fn nothing_shows_the_key() {
    let authority = testing::authority();
    let shown = format!("{authority:?}");
    assert!(shown.contains("Authority"));
    for root in &authority.stored {
        let key = root.key.serialized_der();
        assert!(!shown.contains(&format!("{key:?}")) && !shown.contains(&hex::encode(key)));
    }
}

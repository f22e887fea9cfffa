use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::authority::Leaf;
use crate::identity::Role;
use crate::testing;

#[test]
fn the_key_of_a_join_is_the_same_until_the_certificate_is_there() {
    let authority = testing::authority();
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("credentials");
    let (one, first) = Csr::kept(&folder).unwrap();
    let (two, second) = Csr::kept(&folder).unwrap();
    assert_eq!(one.pem(), two.pem());
    let leaf = Leaf { holder: testing::person(Role::Admin, "anna"), valid_for: Duration::from_secs(60) };
    let issue = |csr: &Csr| authority.issue(csr.der(), &leaf, SystemTime::now()).unwrap();
    assert_eq!(issue(&first).key_sha256, issue(&second).key_sha256);
    let issued = issue(&second);
    Credentials::new(two, &issued.chain_pem(), authority.roots().clone()).unwrap().store(&folder).unwrap();
    let (three, third) = Csr::kept(&folder).unwrap();
    assert_ne!(one.pem(), three.pem());
    assert_ne!(issue(&first).key_sha256, issue(&third).key_sha256);
    // What cannot be read is made anew.
    std::fs::write(folder.join("joining.pem"), "nothing").unwrap();
    Csr::kept(&folder).unwrap();
}

#[test]
fn what_is_stored_is_loaded_again() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("credentials");
    assert!(Credentials::load(&folder).unwrap().is_none());
    let authority = testing::authority();
    let first = testing::credentials(&authority, testing::worker(Uuid::from_u128(3)));
    first.store(&folder).unwrap();
    let second = testing::credentials(&authority, testing::worker(Uuid::from_u128(3)));
    second.store(&folder).unwrap();
    let loaded = Credentials::load(&folder).unwrap().unwrap();
    assert_eq!((loaded.serial(), loaded.chain_pem()), (second.serial(), second.chain_pem()));
    assert_eq!((loaded.roots(), loaded.cluster()), (authority.roots(), Some(authority.cluster())));
    assert_eq!(loaded.identity().unwrap().worker(), Some(Uuid::from_u128(3)));
    assert_eq!(loaded.renew_at(), loaded.validity().renew_at());
    for file in fs::read_dir(&folder).unwrap() {
        assert_eq!(file.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    fs::remove_file(folder.join(TRUST)).unwrap();
    assert!(matches!(Credentials::load(&folder), Err(CredentialsError::Missing { .. })));
    fs::set_permissions(folder.join(IDENTITY), fs::Permissions::from_mode(0o604)).unwrap();
    assert!(matches!(Credentials::load(&folder), Err(CredentialsError::File(FileError::Exposed { .. }))));
}

#[test]
fn certificates_from_elsewhere_are_read_by_path() {
    let place = tempfile::tempdir().unwrap();
    let authority = testing::authority();
    let anna = testing::credentials(&authority, testing::person(Role::Submitter, "anna"));
    let path = |name: &str| place.path().join(name);
    let paths = CredentialPaths { chain: path("chain.pem"), key: path("key.pem"), ca: path("ca.pem") };
    fs::write(&paths.chain, anna.chain_pem()).unwrap();
    fs::write(&paths.key, anna.key.pem()).unwrap();
    let missing = Credentials::read(&paths).unwrap_err();
    assert!(missing.to_string().contains("ca.pem"), "{missing}");
    fs::write(&paths.ca, authority.roots().pem()).unwrap();
    assert_eq!(Credentials::read(&paths).unwrap().serial(), anna.serial());
}

#[test]
fn a_certificate_is_for_its_names_alone() {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let names = ["ringtune.example", "*.dicoo.example", "10.0.0.7"].map(str::to_owned);
    let made = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    let trusted = testing::authority().roots().clone();
    let key = PrivateKey::from_pem(&crate::roots::block("PRIVATE KEY", &key.serialize_der())).unwrap();
    let made = Credentials::new(key, &roots::pem_of(&[made.der().clone()]), trusted).unwrap();
    for own in ["ringtune.example", "a.dicoo.example", "10.0.0.7"] {
        assert!(made.is_for(own), "{own}");
    }
    let others =
        ["example", "a.ringtune.example", "dicoo.example", "a.b.dicoo.example", "10.0.0.8", "a b", ""];
    for other in others {
        assert!(!made.is_for(other), "{other}");
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let authority = testing::authority();
    let anna = testing::credentials(&authority, testing::person(Role::Submitter, "anna"));
    let other = Csr::make().unwrap().0;
    let with = |key, chain: &str| Credentials::new(key, chain, authority.roots().clone()).unwrap_err();
    assert!(matches!(with(other.clone(), &anna.chain_pem()), CredentialsError::OtherKey));
    assert!(matches!(with(other.clone(), ""), CredentialsError::Chain { .. }));
    let cut = anna.chain_pem();
    assert!(matches!(with(other, &cut[..200]), CredentialsError::Chain { .. }));
    for (text, says) in [
        ("", "there is none in the text"),
        ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n", "encrypted"),
    ] {
        let error = PrivateKey::from_pem(text).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let no_key = PrivateKey::from_pem(&crate::roots::block("PRIVATE KEY", b"nonsense")).unwrap();
    assert!(matches!(with(no_key, &anna.chain_pem()), CredentialsError::Key { .. }));
}

#[test]
fn the_cluster_is_found_in_what_there_is() {
    let (ours, other) = (testing::authority(), testing::authority());
    let coordinator = testing::credentials(&ours, testing::coordinator());
    assert!(coordinator.identity().is_err());
    let elsewhere = coordinator.with_roots(other.roots().clone());
    assert_eq!(elsewhere.cluster(), Some(ours.cluster()));
}

#[test]
fn nothing_shows_the_key() {
    let anna = testing::credentials(&testing::authority(), testing::person(Role::Admin, "anna"));
    let pem = anna.key.pem();
    let line = pem.lines().nth(1).unwrap();
    let shown = format!("{anna:?}");
    assert!(shown.contains("PrivateKey(…)") && !shown.contains(line));
    let read = PrivateKey::from_pem(&pem).unwrap();
    assert_eq!(read.pem(), pem);
}

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::*;

const LIFE: Duration = Duration::from_secs(600);

fn own(folder: &Path) -> OwnAuthority {
    let names = vec!["ringtune.example".to_owned()];
    OwnAuthority { folder: folder.join("authority"), admin: folder.join("admin"), names }
}

fn pki(folder: &Path) -> Pki {
    Pki::own(own(folder), LIFE, SystemTime::now()).unwrap()
}

fn admin(folder: &Path) -> Credentials {
    Credentials::load(&folder.join("admin")).unwrap().unwrap()
}

#[tokio::test]
async fn the_first_start_makes_all_and_the_next_one_finds_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = pki(folder.path());
    for (path, mode) in
        [("authority", 0o700), ("admin", 0o700), ("admin/identity.pem", 0o600), ("admin/trust.pem", 0o600)]
    {
        let found = std::fs::metadata(folder.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{path}");
    }
    let kept = admin(folder.path());
    let identity = kept.identity().unwrap();
    assert_eq!((identity.role, identity.name.as_str()), (Role::Admin, LOCAL_ADMIN));
    assert_eq!(identity.cluster, first.cluster());
    assert_eq!(first.root_hash(), Some(kept.roots().hashes()[0]));
    let again = pki(folder.path());
    assert_eq!((again.cluster(), again.roots()), (first.cluster(), first.roots()));
    assert_eq!(admin(folder.path()).serial(), kept.serial());
    // The key of its own certificate is nowhere but in memory.
    assert_ne!(own_serial(&again), own_serial(&first));
}

fn own_serial(pki: &Pki) -> String {
    pki.trust().credentials().unwrap().serial().to_owned()
}

#[tokio::test]
async fn what_ends_soon_is_renewed_and_what_does_not_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let (pki, now) = (pki(folder.path()), SystemTime::now());
    let (ours, theirs) = (own_serial(&pki), admin(folder.path()).serial().to_owned());
    let until = pki.renew(now).unwrap();
    assert!(until > now + LIFE / 2 && until < now + LIFE, "{until:?}");
    assert_eq!((own_serial(&pki), admin(folder.path()).serial()), (ours.clone(), theirs.as_str()));
    let later = pki.renew(until).unwrap();
    assert!(later > until, "{later:?}");
    assert_ne!(own_serial(&pki), ours);
    assert_ne!(admin(folder.path()).serial(), theirs);
    let revoked = admin(folder.path()).serial().to_owned();
    pki.set_revoked(Revoked { serials: [revoked.clone()].into(), ..Revoked::default() });
    pki.renew(now).unwrap();
    assert_ne!(admin(folder.path()).serial(), revoked);
    // A clock that was set back by a day.
    let before = own_serial(&pki);
    pki.renew(now - Duration::from_secs(24 * 3600)).unwrap();
    assert_ne!(own_serial(&pki), before);
}

#[tokio::test]
async fn a_rotation_is_told_and_signs_anew_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pki = pki(folder.path());
    let (mut changes, before, ours) = (pki.changes(), pki.roots(), own_serial(&pki));
    pki.rotate().await.unwrap();
    changes.next().await;
    let both = pki.roots();
    assert_eq!(both.iter().map(|root| root.number).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((both[0].clone(), pki.root_hash()), (before[0].clone(), Some(both[1].sha256)));
    assert_ne!(own_serial(&pki), ours);
    assert_eq!(admin(folder.path()).roots(), &pki.trust().roots());
    assert!(matches!(pki.rotate().await, Err(PkiError::Authority(AuthorityError::Rotating { .. }))));
    pki.retire().await.unwrap();
    changes.next().await;
    assert_eq!(pki.roots(), both[1..]);
    assert_eq!(pki.trust().roots().hashes(), [both[1].sha256]);
    assert!(matches!(pki.retire().await, Err(PkiError::Authority(AuthorityError::Alone { only: 2 }))));
}

#[tokio::test]
async fn certificates_are_made_for_workers_and_people() {
    let folder = tempfile::tempdir().unwrap();
    let pki = pki(folder.path());
    let (_, csr) = Csr::make().unwrap();
    let issued = pki.issue(csr.der().to_vec(), Role::Observer, "ada".into()).await.unwrap();
    assert_eq!(issued.identity.unwrap().name, "ada");
    assert!(issued.valid.until <= SystemTime::now() + LIFE);
    let nobody = pki.issue(csr.der().to_vec(), Role::Worker, "ada".into()).await;
    assert!(matches!(nobody, Err(PkiError::Issue(IssueError::Holder(_)))), "{nobody:?}");
    let nothing = pki.issue(b"hello".to_vec(), Role::Observer, "ada".into()).await;
    assert!(matches!(nothing, Err(PkiError::Issue(IssueError::Unreadable))), "{nothing:?}");
}

#[tokio::test]
async fn only_a_change_of_the_revoked_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let pki = pki(folder.path());
    let mut changes = pki.changes();
    let revoked = Revoked { serials: ["8f".to_owned()].into(), ..Revoked::default() };
    pki.set_revoked(revoked.clone());
    changes.next().await;
    assert_eq!(*pki.trust().revoked(), revoked);
    pki.set_revoked(revoked);
    assert!(!changes.0.has_changed().unwrap());
}

#[tokio::test]
async fn certificates_from_elsewhere_are_read_again_and_nothing_is_signed() {
    let folder = tempfile::tempdir().unwrap();
    let theirs = pki(&folder.path().join("theirs"));
    let paths = CredentialPaths {
        chain: folder.path().join("chain.pem"),
        key: folder.path().join("key.pem"),
        ca: folder.path().join("ca.pem"),
    };
    // The admin's: one of a CA that is not this coordinator's.
    let put = |from: &Path| {
        let (key, identity) = (std::fs::read_to_string(from.join("identity.pem")).unwrap(), admin_of(from));
        std::fs::write(&paths.key, key).unwrap();
        std::fs::write(&paths.chain, identity.chain_pem()).unwrap();
        std::fs::write(&paths.ca, identity.roots().pem()).unwrap();
    };
    put(&folder.path().join("theirs/admin"));
    let now = SystemTime::now();
    let pki = Pki::elsewhere(paths.clone(), LIFE, now).unwrap();
    assert_eq!((pki.cluster(), pki.issues(), pki.root_hash()), (theirs.cluster(), false, None));
    assert!(matches!(pki.rotate().await, Err(PkiError::FromElsewhere)));
    assert!(matches!(pki.issue(Vec::new(), Role::Observer, "a".into()).await, Err(PkiError::FromElsewhere)));
    let (mut changes, before) = (pki.changes(), own_serial(&pki));
    assert_eq!(pki.to_replace(now), None);
    let until = pki.trust().credentials().unwrap().validity().until;
    assert_eq!(pki.to_replace(now + LIFE - Duration::from_secs(100)), Some(until));
    pki.renew(now).unwrap();
    assert_eq!(own_serial(&pki), before);
    theirs.rotate().await.unwrap();
    put(&folder.path().join("theirs/admin"));
    pki.renew(now).unwrap();
    changes.next().await;
    assert_ne!(own_serial(&pki), before);
    assert_eq!((pki.roots().len(), pki.trust().roots()), (2, theirs.trust().roots()));
    // Half of it was replaced: what was good stays.
    std::fs::write(&paths.key, "nothing").unwrap();
    pki.renew(now).unwrap_err();
    assert_eq!(pki.roots().len(), 2);
    let late = Pki::elsewhere(paths.clone(), LIFE, now);
    assert!(matches!(late, Err(PkiError::Credentials(_))), "{late:?}");
    put(&folder.path().join("theirs/admin"));
    let late = Pki::elsewhere(paths, LIFE, now + LIFE * 2);
    assert!(matches!(late, Err(PkiError::NotNow { .. })), "{late:?}");
}

#[test]
fn browsers_may_use_the_names_of_a_certificate_from_elsewhere() {
    let place = tempfile::tempdir().unwrap();
    let (now, folder) = (SystemTime::now(), place.path().join("own"));
    let authority = Authority::open_or_make(&place.path().join("theirs"), now).unwrap();
    let put = |name: &str| {
        own_credentials(&authority, &[name.to_owned()], LIFE, now).unwrap().store(&folder).unwrap();
    };
    put("ringtune.example");
    let path = |name: &str| folder.join(name);
    let paths =
        CredentialPaths { chain: path("identity.pem"), key: path("identity.pem"), ca: path("trust.pem") };
    let pki = Pki::elsewhere(paths, LIFE, now).unwrap();
    let names = crate::network::names(&crate::settings::Settings::default(), Some(&pki));
    let status = |host: &'static str| {
        let headers = [(http::header::HOST, http::HeaderValue::from_static(host))].into_iter().collect();
        let refused = ringtune_web::guard::check(&names, &http::Method::GET, &"/".parse().unwrap(), &headers);
        refused.map_or_else(|refused| refused.status.as_u16(), |()| 200)
    };
    let seen = ["ringtune.example:7071", "next.example", "evil.example", "127.0.0.1"].map(status);
    assert_eq!(seen, [200, 421, 421, 200]);
    put("next.example");
    pki.renew(now).unwrap();
    assert_eq!(["ringtune.example:7071", "next.example"].map(status), [421, 200]);
}

fn admin_of(folder: &Path) -> Credentials {
    Credentials::load(folder).unwrap().unwrap()
}

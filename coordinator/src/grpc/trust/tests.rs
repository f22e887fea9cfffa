use std::time::{Duration, SystemTime};

use ringtune_security::Revoked;

use super::*;
use crate::network::authority::OwnAuthority;

fn pki(folder: &std::path::Path) -> Pki {
    let (authority, admin) = (folder.join("authority"), folder.join("admin"));
    let own = OwnAuthority { folder: authority, admin, names: Vec::new() };
    Pki::own(own, Duration::from_secs(600), SystemTime::now()).unwrap()
}

async fn said(news: &mut TrustNews) -> Option<v1::Trust> {
    let soon = tokio::time::timeout(Duration::from_millis(50), TrustNews::next(Some(news)));
    match soon.await.ok()?.message {
        Some(v1::session_response::Message::Trust(trust)) => Some(trust),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_worker_hears_whom_to_trust_after_its_welcome_and_on_each_change() {
    let folder = tempfile::tempdir().unwrap();
    let pki = pki(folder.path());
    let mut news = TrustNews::new(pki.clone());
    assert_eq!(said(&mut news).await, None, "before the welcome");
    news.begin();
    let first = said(&mut news).await.unwrap();
    assert_eq!((first.roots_pem, first.revoked_serials), (pki.trust().roots().pem(), Vec::<String>::new()));
    assert_eq!(said(&mut news).await, None);
    let members = [(Role::Observer, "ada".to_owned())].into();
    pki.set_revoked(Revoked { serials: ["8f".to_owned()].into(), members });
    let next = said(&mut news).await.unwrap();
    assert_eq!(next.revoked_serials, ["8f"]);
    let ada = v1::Member { role: v1::Role::Observer.into(), name: "ada".to_owned() };
    assert_eq!(next.revoked_members, [ada]);
    pki.rotate().await.unwrap();
    assert_eq!(said(&mut news).await.unwrap().roots_pem.matches("BEGIN CERTIFICATE").count(), 2);
    assert_eq!(said(&mut news).await, None);
}

#[tokio::test]
async fn only_its_own_certificate_concerns_a_session() {
    let folder = tempfile::tempdir().unwrap();
    let pki = pki(folder.path());
    let name = uuid::Uuid::new_v4().to_string();
    let identity = Identity { cluster: pki.cluster(), role: Role::Worker, name, serial: "8f".to_owned() };
    let mut revocation = Revocation { pki: pki.clone(), changes: pki.changes(), identity };
    assert!(!comes_soon(&mut revocation).await);
    pki.set_revoked(Revoked { serials: ["90".to_owned()].into(), ..Revoked::default() });
    assert!(!comes_soon(&mut revocation).await && !revocation.is_revoked());
    pki.set_revoked(Revoked { serials: ["8f".to_owned()].into(), ..Revoked::default() });
    assert!(comes_soon(&mut revocation).await && revocation.is_revoked());
}

async fn comes_soon(revocation: &mut Revocation) -> bool {
    let soon = Duration::from_millis(50);
    tokio::time::timeout(soon, Revocation::comes(Some(revocation))).await.is_ok()
}

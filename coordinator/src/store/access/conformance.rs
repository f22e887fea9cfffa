//! What every [`AccessStore`] must do, as one suite for all of them. Panics where one does not.

use std::collections::BTreeMap;

use ringtune_security::{Role, Secret, TokenId};

use super::{
    AccessStore, CertificateRecord, Joined, MOST_REPEATS, MemberRevoked, NewestFirst, TokenKind, TokenRecord,
};
use crate::core::Time;

const HOUR: i64 = 3_600_000;
const NODE: &str = "0193f2a4-5b6c-7d8e-9f00-112233445566";

/// Does what an access store can do, on an empty one.
pub(crate) async fn run(store: &dyn AccessStore) {
    tokens_are_kept_listed_and_forgotten(store).await;
    the_last_use_is_had_by_one(store).await;
    a_worker_has_one_certificate_at_a_time(store).await;
    who_was_revoked_needs_a_newer_token(store).await;
    a_revoked_certificate_is_not_renewed(store).await;
    roots_know_who_depends_on_them(store).await;
    who_asks_again_by_the_same_key_gets_another_certificate(store).await;
    what_has_expired_goes(store).await;
}

/// Token `number`, made at that hour and good for ten.
pub(crate) fn token(number: u8, kind: TokenKind, role: Role, name: &str) -> TokenRecord {
    let created = Time(i64::from(number) * HOUR);
    TokenRecord {
        id: TokenId::from([number; 8]),
        kind,
        role,
        name: name.to_owned(),
        creator: "anna".to_owned(),
        created,
        expires: created.plus(10 * HOUR),
        uses_left: 1,
        secret: Secret::from_bytes([number; 32]).hash(),
    }
}

/// Certificate `number`, given at that hour and good for a hundred.
fn certificate(number: u8, role: Role, name: &str) -> CertificateRecord {
    let created = Time(i64::from(number) * HOUR);
    let serial = format!("{number:032x}");
    let (expires, name) = (created.plus(100 * HOUR), name.to_owned());
    // Each of another key.
    let key_sha256 = [number; 32];
    CertificateRecord { serial, role, name, created, expires, root: 1, revoked: None, key_sha256 }
}

fn page(now: i64, limit: u32) -> NewestFirst {
    NewestFirst { after: None, limit, now: Time(now) }
}

async fn tokens_are_kept_listed_and_forgotten(store: &dyn AccessStore) {
    for number in 1..=3 {
        assert!(
            store.add_token(&token(number, TokenKind::Access, Role::Observer, "bob"), 3).await.expect("add")
        );
    }
    let fourth = token(4, TokenKind::Access, Role::Observer, "bob");
    assert!(!store.add_token(&fourth, 3).await.expect("add"), "there are as many as may be");
    assert!(store.token(fourth.id).await.expect("look").is_none());
    let found = store.token(TokenId::from([2; 8])).await.expect("look").expect("the second");
    let expected = token(2, TokenKind::Access, Role::Observer, "bob");
    assert_eq!((found.kind, found.role, found.name), (expected.kind, expected.role, expected.name));
    assert_eq!((found.created, found.expires, found.uses_left), (expected.created, expected.expires, 1));
    assert_eq!((found.creator.as_str(), found.secret.0), ("anna", expected.secret.0));
    // The newest first, page by page; the first of them expires.
    let mut listed = Vec::new();
    let mut query = page(11 * HOUR, 1);
    while let Some(one) = store.list_tokens(&query).await.expect("list").first() {
        listed.push(one.id);
        query.after = Some((one.created, one.id.to_string()));
    }
    assert_eq!(listed, [TokenId::from([3; 8]), TokenId::from([2; 8])]);
    for (number, there) in [(2, true), (2, false), (3, true), (1, true)] {
        let removed = store.remove_token(TokenId::from([number; 8])).await.expect("remove");
        assert_eq!(removed, there, "{number}");
    }
    assert!(store.list_tokens(&page(0, 9)).await.expect("list").is_empty());
}

async fn the_last_use_is_had_by_one(store: &dyn AccessStore) {
    let twice = TokenRecord { uses_left: 2, ..token(5, TokenKind::Join, Role::Submitter, "carl") };
    assert!(store.add_token(&twice, 9).await.expect("add"));
    let join = |number| {
        let certificate = certificate(number, Role::Submitter, "carl");
        async move { store.join(twice.id, &certificate).await.expect("join") }
    };
    let mut outcomes = [Joined::NoToken; 4];
    (outcomes[0], outcomes[1], outcomes[2], outcomes[3]) = futures::join!(join(6), join(7), join(8), join(9));
    assert_eq!(outcomes.iter().filter(|one| **one == Joined::Done).count(), 2, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|one| **one == Joined::NoToken).count(), 2, "{outcomes:?}");
    assert_eq!(store.list_certificates(&page(9 * HOUR, 9)).await.expect("list").len(), 2);
    assert!(store.list_tokens(&page(9 * HOUR, 9)).await.expect("list").is_empty(), "it opens nothing");
    assert_eq!(store.token(twice.id).await.expect("look").expect("still there").uses_left, 0);
    // Too late, never there, of another kind.
    let late = token(10, TokenKind::Join, Role::Submitter, "carl");
    let access = token(11, TokenKind::Access, Role::Submitter, "carl");
    for one in [&late, &access] {
        assert!(store.add_token(one, 9).await.expect("add"));
    }
    for (id, at) in [(late.id, 20), (access.id, 12), (TokenId::from([99; 8]), 12)] {
        let outcome = store.join(id, &certificate(at, Role::Submitter, "carl")).await.expect("join");
        assert_eq!(outcome, Joined::NoToken, "{id}");
    }
}

async fn a_worker_has_one_certificate_at_a_time(store: &dyn AccessStore) {
    let many = TokenRecord { uses_left: 9, ..token(12, TokenKind::Join, Role::Worker, "") };
    assert!(store.add_token(&many, 9).await.expect("add"));
    let first = certificate(13, Role::Worker, NODE);
    assert_eq!(store.join(many.id, &first).await.expect("join"), Joined::Done);
    let second = certificate(14, Role::Worker, NODE);
    assert_eq!(store.join(many.id, &second).await.expect("join"), Joined::Held(first.expires));
    assert_eq!(store.token(many.id).await.expect("look").expect("there").uses_left, 8, "it took no use");
    assert!(store.revoke_serial(&first.serial, Time(14 * HOUR), 9).await.expect("revoke"));
    assert_eq!(store.join(many.id, &second).await.expect("join"), Joined::Done);
    let revoked = store.revoked(Time(15 * HOUR)).await.expect("revoked");
    assert!(revoked.serials.contains(&first.serial) && !revoked.serials.contains(&second.serial));
    let kept = store.certificate(&first.serial).await.expect("look").expect("there");
    assert_eq!(kept, CertificateRecord { revoked: Some(Time(14 * HOUR)), ..first });
}

async fn who_asks_again_by_the_same_key_gets_another_certificate(store: &dyn AccessStore) {
    let worker = "0193f2a4-5b6c-7d8e-9f00-0000000000aa";
    let once = token(60, TokenKind::Join, Role::Worker, "");
    let other = token(61, TokenKind::Join, Role::Worker, "");
    for one in [&once, &other] {
        assert!(store.add_token(one, 9).await.expect("add"));
    }
    let at = |number: u8, name: &str| CertificateRecord {
        key_sha256: [62; 32],
        created: Time(62 * HOUR),
        root: 50,
        ..certificate(number, Role::Worker, name)
    };
    let join = async |id, one: &CertificateRecord| store.join(id, one).await.expect("join");
    let first = at(62, worker);
    assert_eq!(join(once.id, &first).await, Joined::Done);
    // The answer was lost.
    assert_eq!(join(once.id, &at(63, worker)).await, Joined::Done);
    assert_eq!(store.token(once.id).await.expect("look").expect("there").uses_left, 0);
    let in_use = store.in_use(Time(63 * HOUR)).await.expect("count");
    assert_eq!(in_use.get(&50), Some(&1), "the one that was lost is not");
    // With another key, as another worker, or with another token it is another one that asks.
    let stranger = CertificateRecord { key_sha256: [99; 32], ..at(64, worker) };
    assert_eq!(join(once.id, &stranger).await, Joined::NoToken);
    assert_eq!(join(other.id, &stranger).await, Joined::Held(at(63, worker).expires));
    assert_eq!(join(once.id, &at(64, "0193f2a4-5b6c-7d8e-9f00-0000000000bb")).await, Joined::NoToken);
    assert_eq!(join(other.id, &at(64, worker)).await, Joined::Held(at(63, worker).expires));
    // Not for ever: no more than so many, and not once it was revoked.
    for number in 2..MOST_REPEATS {
        let serial = format!("aa{number:030x}");
        assert_eq!(join(once.id, &CertificateRecord { serial, ..at(65, worker) }).await, Joined::Done);
    }
    assert_eq!(join(once.id, &at(64, worker)).await, Joined::NoToken);
    let late = CertificateRecord { created: once.expires, ..at(64, worker) };
    assert_eq!(join(once.id, &late).await, Joined::NoToken);
    store.revoke_member(Role::Worker, worker, Time(64 * HOUR), 9).await.expect("revoke");
    assert_eq!(join(once.id, &at(64, worker)).await, Joined::NoToken);
}

async fn who_was_revoked_needs_a_newer_token(store: &dyn AccessStore) {
    let older = token(16, TokenKind::Join, Role::Observer, "dora");
    let bearer = token(17, TokenKind::Access, Role::Observer, "dora");
    let hers = token(15, TokenKind::Join, Role::Observer, "dora");
    for one in [&older, &bearer, &hers] {
        assert!(store.add_token(one, 9).await.expect("add"));
    }
    let held = certificate(17, Role::Observer, "dora");
    assert_eq!(store.join(hers.id, &held).await.expect("join"), Joined::Done);
    let now = Time(18 * HOUR);
    let gone = store.revoke_member(Role::Observer, "dora", now, 1).await.expect("revoke");
    assert_eq!(gone, Some(MemberRevoked { certificates: 1, tokens: vec![bearer.id] }));
    assert_eq!(
        store.revoke_member(Role::Observer, "ella", now, 1).await.expect("revoke"),
        None,
        "one too many"
    );
    let again = store.revoke_member(Role::Observer, "dora", now, 1).await.expect("again");
    assert_eq!(again, Some(MemberRevoked { certificates: 1, tokens: Vec::new() }));
    let revoked = store.revoked(now).await.expect("revoked");
    assert_eq!(revoked.members, [(Role::Observer, "dora".to_owned())].into());
    let next = certificate(19, Role::Observer, "dora");
    assert_eq!(store.join(older.id, &next).await.expect("join"), Joined::Revoked(now));
    let newer = token(19, TokenKind::Join, Role::Observer, "dora");
    assert!(store.add_token(&newer, 9).await.expect("add"));
    assert_eq!(store.join(newer.id, &next).await.expect("join"), Joined::Done);
    let revoked = store.revoked(now).await.expect("revoked");
    assert!(revoked.members.is_empty());
    assert!(revoked.serials.contains(&held.serial), "what she had stays revoked");
    assert!(!revoked.serials.contains(&next.serial));
    let nobody = store.revoke_member(Role::Observer, "dora", next.expires, 1).await.expect("late");
    assert_eq!(nobody, Some(MemberRevoked::default()), "what has expired is not counted");
}

async fn a_revoked_certificate_is_not_renewed(store: &dyn AccessStore) {
    let now = Time(20 * HOUR);
    let (first, second) = (certificate(20, Role::Admin, "eve"), certificate(21, Role::Admin, "eve"));
    // One that is not stored, as after an older backup was put back.
    assert!(store.renew("0a", &first).await.expect("renew"));
    assert!(store.revoke_serial(&first.serial, now, 9).await.expect("revoke"));
    assert!(!store.renew(&first.serial, &second).await.expect("renew"));
    assert!(store.certificate(&second.serial).await.expect("look").is_none());
    // From another authority: as many as may be.
    assert!(store.revoke_serial("0b", now, 1).await.expect("revoke"));
    assert!(store.revoke_serial("0b", now, 1).await.expect("again"));
    assert!(!store.revoke_serial("0c", now, 1).await.expect("one too many"));
    assert!(!store.renew("0b", &second).await.expect("renew"));
    assert!(store.revoked(Time(9000 * HOUR)).await.expect("revoked").serials.contains("0b"), "for ever");
    assert!(store.revoke_member(Role::Admin, "eve", now, 9).await.expect("revoke").is_some());
    assert!(!store.renew("0d", &second).await.expect("renew"));
}

async fn roots_know_who_depends_on_them(store: &dyn AccessStore) {
    let now = Time(150 * HOUR);
    let at = |number: u8, name: &str, root| CertificateRecord {
        root,
        ..certificate(number, Role::Submitter, name)
    };
    for one in [at(140, "flo", 7), at(141, "gus", 7), at(142, "hal", 8), at(143, "flo", 7)] {
        assert!(store.renew("00", &one).await.expect("put"));
    }
    let counts = store.in_use(now).await.expect("count");
    assert_eq!((counts.get(&7), counts.get(&8)), (Some(&3), Some(&1)));
    let of = async |limit| store.holders_before(8, now, limit).await.expect("holders");
    let names = |found: Vec<(Role, String)>| found.into_iter().map(|(_, name)| name).collect::<Vec<_>>();
    assert_eq!(names(of(9).await), ["flo", "gus"]);
    assert_eq!(names(of(1).await), ["flo"]);
    assert!(store.renew(&at(141, "gus", 7).serial, &at(144, "gus", 8)).await.expect("renew"));
    assert_eq!(names(of(9).await), ["flo"], "what was renewed is not in use");
    assert_eq!(store.in_use(now).await.expect("count"), BTreeMap::from([(7, 2), (8, 2)]));
}

async fn what_has_expired_goes(store: &dyn AccessStore) {
    store.sweep(Time(241 * HOUR)).await.expect("sweep");
    let left = store.list_certificates(&page(0, 9)).await.expect("list");
    let serials: Vec<&str> = left.iter().map(|one| one.serial.as_str()).collect();
    let of = |number: u8| certificate(number, Role::Submitter, "").serial;
    assert_eq!(serials, [of(144), of(143), of(142)]);
    assert!(store.revoke_serial(&of(143), Time(0), 9).await.expect("revoke"));
    store.forget_before(8).await.expect("forget");
    let revoked = store.revoked(Time(0)).await.expect("revoked").serials;
    assert!(revoked.contains(&of(143)), "its root may be put back");
    assert_eq!(store.in_use(Time(0)).await.expect("count"), BTreeMap::from([(8, 2)]));
    assert!(store.token(TokenId::from([19; 8])).await.expect("look").is_none());
}

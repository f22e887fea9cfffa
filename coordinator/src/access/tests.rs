//! Tokens and certificates, with a CA and a store.

use std::path::Path;

use ringtune_security::{
    AccessToken, Authority, Caller as Seen, CredentialPaths, Credentials, Csr, Holder, Identity, JoinToken,
    Leaf, PrivateKey, Role, Roots,
};

use super::*;
use crate::network::authority::{LOCAL_ADMIN, OwnAuthority};
use crate::store::SqliteStore;
use crate::store::access::{CertificateRecord, TokenKind};
use crate::store::conformance::temporary;

const NODE: &str = "0193f2a4-5b6c-7d8e-9f00-112233445566";
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

pub(crate) struct Stage {
    pub(crate) access: Access,
    pub(crate) pki: Pki,
    store: Arc<SqliteStore>,
    _folder: tempfile::TempDir,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self::within(&LimitSettings::default()).await
    }

    pub(crate) async fn within(limits: &LimitSettings) -> Self {
        let (folder, store) = temporary().await;
        let at = |name: &str| folder.path().join(name);
        let own = OwnAuthority { folder: at("authority"), admin: at("admin"), names: Vec::new() };
        let pki = Pki::own(own, Duration::from_secs(3600), SystemTime::now()).unwrap();
        let store = Arc::new(store);
        let access =
            Access::secured(pki.clone(), store.clone(), Metrics::new().unwrap(), limits).await.unwrap();
        Self { access, pki, store, _folder: folder }
    }

    pub(crate) async fn token(&self, kind: TokenKind, role: Role, uses: u32) -> String {
        let name = if role == Role::Worker { "" } else { "ada" };
        let new = NewToken { kind, role, name: name.to_owned(), ttl: None, uses };
        self.access.create_token(&Caller::Open, new).await.unwrap().line
    }

    async fn join(&self, line: &str, name: &str) -> Result<Credentials, Error> {
        self.join_from(line, name, HERE).await
    }

    async fn join_from(&self, line: &str, name: &str, from: IpAddr) -> Result<Credentials, Error> {
        let (key, csr) = Csr::make().unwrap();
        self.join_with(line, name, from, key, csr).await
    }

    async fn join_with(
        &self,
        line: &str,
        name: &str,
        from: IpAddr,
        key: PrivateKey,
        csr: Csr,
    ) -> Result<Credentials, Error> {
        let token: JoinToken = line.parse().unwrap();
        let joining = Joining {
            token_id: token.id.bytes().to_vec(),
            secret: token.secret.reveal().to_vec(),
            csr: csr.der().to_vec(),
            name: name.to_owned(),
        };
        let given = self.access.join(joining, from).await?;
        Ok(Credentials::new(key, &given.chain_pem, Roots::from_pem(&given.roots_pem).unwrap()).unwrap())
    }

    async fn by_token(&self, line: &str) -> Result<Identified, Error> {
        self.access.identify(&Seen::Anonymous, HERE, Some(line)).await
    }

    async fn renew(&self, identity: &Identity) -> Result<Certified, Error> {
        let (_, csr) = Csr::make().unwrap();
        let caller = Caller::seen(&Seen::Known(identity.clone()));
        self.access.renew(&caller, csr.der().to_vec()).await
    }
}

fn reason<T>(outcome: Result<T, Error>) -> (Reason, String) {
    match outcome.map(|_| ()) {
        Err(Error::Denied(Denied { reason, text, .. })) => (reason, text),
        other => panic!("{other:?}"),
    }
}

fn field<T>(outcome: Result<T, Error>) -> &'static str {
    match outcome.map(|_| ()) {
        Err(Error::Field { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn who_missed_the_answer_asks_again_with_the_same_key() {
    let stage = Stage::new().await;
    let line = stage.token(TokenKind::Join, Role::Worker, 0).await;
    let (key, csr) = Csr::make().unwrap();
    let lost = stage.join_with(&line, NODE, HERE, key.clone(), csr.clone()).await.unwrap();
    let again = stage.join_with(&line, NODE, HERE, key, csr).await.unwrap();
    assert_ne!(lost.serial(), again.serial());
    assert_eq!(again.identity().unwrap().name, NODE);
    let (_, text) = reason(stage.join(&line, NODE).await);
    assert!(text.contains("used up"), "another key: {text}");
    // Both certificates are renewed as any other.
    stage.renew(lost.identity().unwrap()).await.unwrap();
    stage.renew(again.identity().unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_token_lets_in_once_and_says_what_for() {
    let stage = Stage::new().await;
    let line = stage.token(TokenKind::Join, Role::Submitter, 0).await;
    let ada = stage.join(&line, "").await.unwrap();
    let identity = ada.identity().unwrap();
    assert_eq!((identity.role, identity.name.as_str()), (Role::Submitter, "ada"));
    assert_eq!(identity.cluster, stage.pki.cluster());
    let kept = stage.store.certificate(&identity.serial).await.unwrap().unwrap();
    assert_eq!((kept.role, kept.name.as_str(), kept.root), (Role::Submitter, "ada", 1));
    let (why, text) = reason(stage.join(&line, "").await);
    assert!(why == Reason::Token && text.contains("used up"), "{text}");

    let line = stage.token(TokenKind::Join, Role::Worker, 2).await;
    assert_eq!(field(stage.join(&line, "").await), "name");
    assert_eq!(field(stage.join(&line, "my-node").await), "name");
    let worker = stage.join(&line, NODE).await.unwrap();
    assert_eq!(worker.identity().unwrap().worker().unwrap().to_string(), NODE);
    // A token of a person is for nobody else, and for no worker.
    let line = stage.token(TokenKind::Join, Role::Observer, 0).await;
    let (why, text) = reason(stage.join(&line, NODE).await);
    assert!(why == Reason::Token && text.contains("for the observer ada"), "{text}");
    assert!(stage.join(&line, "ada").await.is_ok(), "no use was taken before");
}

#[tokio::test]
async fn a_wrong_token_opens_nothing_and_says_no_more_than_that() {
    let (stage, other) = (Stage::new().await, Stage::new().await);
    let line = stage.token(TokenKind::Join, Role::Submitter, 0).await;
    // Of another cluster; with another one's secret; of another kind.
    let foreign = other.token(TokenKind::Join, Role::Submitter, 0).await;
    let unknown = reason(stage.join(&foreign, "").await);
    assert_eq!(unknown.0, Reason::Token);
    let (right, wrong): (JoinToken, JoinToken) = (line.parse().unwrap(), foreign.parse().unwrap());
    let mixed = JoinToken { secret: wrong.secret, ..right.clone() };
    assert_eq!(reason(stage.join(&mixed.reveal(), "").await), unknown);
    let access: AccessToken = stage.token(TokenKind::Access, Role::Submitter, 0).await.parse().unwrap();
    let disguised = JoinToken { id: access.id, secret: access.secret, ..right };
    assert_eq!(reason(stage.join(&disguised.reveal(), "").await), unknown);
    // Too late: the secret is right, so that more may be said.
    let token: JoinToken = line.parse().unwrap();
    let record = stage.store.token(token.id).await.unwrap().unwrap();
    stage.store.remove_token(token.id).await.unwrap();
    let late = crate::store::access::TokenRecord { expires: record.created, ..record };
    assert!(stage.store.add_token(&late, 9).await.unwrap());
    let (why, text) = reason(stage.join(&line, "").await);
    assert!(why == Reason::Token && text.contains("expired at 20"), "{text}");
    // Revoked.
    stage.access.revoke_token(token.id).await.unwrap();
    assert_eq!(reason(stage.join(&line, "").await), unknown);
    let joining = Joining { token_id: vec![1; 7], secret: vec![1; 32], csr: Vec::new(), name: String::new() };
    assert_eq!(field(stage.access.join(joining.clone(), HERE).await), "token_id");
    let joining = Joining { token_id: vec![1; 8], secret: vec![1; 31], ..joining };
    assert_eq!(field(stage.access.join(joining, HERE).await), "secret");
}

#[tokio::test]
async fn of_two_who_join_with_the_last_use_one_does() {
    let stage = Stage::new().await;
    let line = stage.token(TokenKind::Join, Role::Submitter, 1).await;
    let (one, other) = tokio::join!(stage.join(&line, ""), stage.join(&line, ""));
    assert!(one.is_ok() != other.is_ok());
    assert_eq!(stage.access.list_certificates(None, 9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_bad_request_for_a_certificate_takes_no_use() {
    let stage = Stage::new().await;
    let line = stage.token(TokenKind::Join, Role::Submitter, 0).await;
    let token: JoinToken = line.parse().unwrap();
    for csr in [Vec::new(), b"no request".to_vec(), vec![0; 9000]] {
        let (token_id, secret) = (token.id.bytes().to_vec(), token.secret.reveal().to_vec());
        let joining = Joining { token_id, secret, csr, name: String::new() };
        assert_eq!(field(stage.access.join(joining, HERE).await), "csr");
    }
    assert!(stage.join(&line, "").await.is_ok());
}

#[tokio::test]
async fn no_worker_takes_the_id_of_another_one() {
    let stage = Stage::new().await;
    let line = stage.token(TokenKind::Join, Role::Worker, 9).await;
    let first = stage.join(&line, NODE).await.unwrap();
    let (why, text) = reason(stage.join(&line, NODE).await);
    assert!(why == Reason::Worker && text.contains("revoke it first"), "{text}");
    let serial = first.serial().to_owned();
    let shown: Vec<String> =
        serial.as_bytes().chunks(2).map(|two| String::from_utf8_lossy(two).to_uppercase()).collect();
    assert_eq!(stage.access.revoke(Which::Serial(shown.join(":"))).await.unwrap(), Some(1));
    assert!(stage.pki.trust().revoked().has_serial(&serial));
    assert!(stage.join(&line, NODE).await.is_ok());
}

#[tokio::test]
async fn who_is_revoked_comes_back_with_a_newer_token_alone() {
    let stage = Stage::new().await;
    let older = stage.token(TokenKind::Join, Role::Worker, 9).await;
    let first = stage.join(&older, NODE).await.unwrap();
    assert_eq!(stage.access.revoke(Which::Member(Role::Worker, NODE.to_owned())).await.unwrap(), Some(1));
    let identity = first.identity().unwrap();
    assert!(stage.pki.trust().revoked().has(identity));
    let (why, text) = reason(stage.join(&older, NODE).await);
    assert!(why == Reason::Token && text.contains("newer"), "{text}");
    assert_eq!(reason(stage.renew(identity).await).0, Reason::Certificate);
    // A token of the same millisecond is not newer.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let newer = stage.token(TokenKind::Join, Role::Worker, 1).await;
    let second = stage.join(&newer, NODE).await.unwrap();
    let revoked = stage.pki.trust().revoked();
    assert!(!revoked.has(second.identity().unwrap()) && revoked.has(identity));
    // A coordinator that starts again knows as much.
    stage.pki.set_revoked(ringtune_security::Revoked::default());
    Access::secured(
        stage.pki.clone(),
        stage.store.clone(),
        Metrics::new().unwrap(),
        &LimitSettings::default(),
    )
    .await
    .unwrap();
    assert!(stage.pki.trust().revoked().has(identity));
}

#[tokio::test]
async fn strange_names_are_not_revoked() {
    let stage = Stage::new().await;
    for serial in ["", "xyz", &"a".repeat(41)] {
        assert_eq!(field(stage.access.revoke(Which::Serial(serial.to_owned())).await), "serial");
    }
    let member = Which::Member(Role::Worker, "node".to_owned());
    assert_eq!(field(stage.access.revoke(member).await), "member.name");
}

#[tokio::test]
async fn nobody_locks_the_machines_own_admin_out() {
    let stage = Stage::new().await;
    let local = Which::Member(Role::Admin, LOCAL_ADMIN.to_owned());
    assert_eq!(field(stage.access.revoke(local).await), "member.name");
    assert_eq!(stage.pki.trust().revoked().members.len(), 0);
    // Only an admin is that.
    for (role, name) in [(Role::Observer, LOCAL_ADMIN), (Role::Admin, "ada")] {
        stage.access.revoke(Which::Member(role, name.to_owned())).await.unwrap();
    }
}

#[tokio::test]
async fn who_revokes_hears_whether_there_was_anything_to_revoke() {
    let stage = Stage::new().await;
    let line = stage.token(TokenKind::Join, Role::Worker, 2).await;
    let given = stage.join(&line, NODE).await.unwrap().serial().to_owned();
    // The beginning of one is none.
    for part in [&given[..8], &given[..31]] {
        assert_eq!(field(stage.access.revoke(Which::Serial(part.to_owned())).await), "serial", "{part}");
    }
    assert!(!stage.pki.trust().revoked().has_serial(&given));
    // One that is not known is refused too, as an older backup may have been put back.
    let unknown = "e".repeat(32);
    assert_eq!(stage.access.revoke(Which::Serial(unknown.clone())).await.unwrap(), Some(0));
    assert!(stage.pki.trust().revoked().has_serial(&unknown));
    assert_eq!(stage.access.revoke(Which::Member(Role::Observer, "bob".to_owned())).await.unwrap(), Some(0));
    // Asking again is no other answer.
    for _ in 0..2 {
        assert_eq!(stage.access.revoke(Which::Serial(given.clone())).await.unwrap(), Some(1));
        assert_eq!(stage.access.revoke(Which::Member(Role::Worker, NODE.to_owned())).await.unwrap(), Some(1));
    }
}

#[tokio::test]
async fn an_access_token_says_who_calls_until_it_is_revoked() {
    let stage = Stage::new().await;
    let line = stage.token(TokenKind::Access, Role::Observer, 0).await;
    let identified = stage.by_token(&line).await.unwrap();
    let known = identified.caller.known().unwrap();
    assert_eq!((known.role, known.name.as_str()), (Role::Observer, "ada"));
    // A certificate counts more, and without TLS nothing is looked at.
    let bob =
        Identity { cluster: stage.pki.cluster(), role: Role::Admin, name: "bob".into(), serial: "1".into() };
    let seen = stage.access.identify(&Seen::Known(bob), HERE, Some("nonsense")).await.unwrap();
    assert_eq!(seen.caller.known().unwrap().name, "bob");
    let plain = Access::plain(Metrics::new().unwrap(), &LimitSettings::default());
    assert_eq!(plain.identify(&Seen::Open, HERE, Some("nonsense")).await.unwrap().caller, Caller::Open);
    assert_eq!(plain.identify(&Seen::Anonymous, HERE, Some(&line)).await.unwrap().caller, Caller::Anonymous);
    let open = stage.access.identify(&Seen::Open, HERE, None).await.unwrap();
    assert_eq!(open.caller, Caller::Anonymous, "nothing is open where callers are asked");
    // It ends while a call is under way.
    let over = tokio::spawn(identified.watch.unwrap().over());
    let unrelated: AccessToken = stage.token(TokenKind::Access, Role::Admin, 0).await.parse().unwrap();
    assert!(stage.access.revoke_token(unrelated.id).await.unwrap());
    assert!(!stage.access.revoke_token(unrelated.id).await.unwrap(), "it is gone");
    tokio::task::yield_now().await;
    assert!(!over.is_finished());
    assert_eq!(stage.access.revoke(Which::Member(Role::Observer, "ada".to_owned())).await.unwrap(), Some(1));
    let told = tokio::time::timeout(Duration::from_secs(10), over).await.unwrap().unwrap();
    assert!(told.text.contains("revoked"), "{told}");
    assert_eq!(reason(stage.by_token(&line).await).0, Reason::Token);
    let join = stage.token(TokenKind::Join, Role::Observer, 0).await;
    assert!(reason(stage.by_token(&join).await).1.contains("another kind"));
    assert!(!reason(stage.by_token("rta1.secret").await).1.contains("secret"));
}

#[tokio::test]
async fn an_access_token_ends_with_its_time() {
    let stage = Stage::new().await;
    let line = stage.token(TokenKind::Access, Role::Observer, 0).await;
    let id = line.parse::<AccessToken>().unwrap().id;
    let record = stage.store.token(id).await.unwrap().unwrap();
    let soon = crate::store::access::TokenRecord { expires: now().plus(300), ..record };
    stage.store.remove_token(id).await.unwrap();
    assert!(stage.store.add_token(&soon, 9).await.unwrap());
    let identified = stage.by_token(&line).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(10), identified.watch.unwrap().over()).await.unwrap();
    assert!(told.text.contains("expired at"), "{told}");
    assert!(reason(stage.by_token(&line).await).1.contains("expired at"));
}

#[tokio::test]
async fn after_twenty_wrong_tokens_an_address_has_to_wait() {
    let stage = Stage::new().await;
    let right = stage.token(TokenKind::Access, Role::Observer, 0).await;
    let join = stage.token(TokenKind::Join, Role::Submitter, 0).await;
    for _ in 0..20 {
        let guess = AccessToken::new().unwrap().reveal();
        assert_eq!(reason(stage.by_token(&guess).await).0, Reason::Token);
    }
    assert_eq!(reason(stage.by_token(&right).await).0, Reason::TooManyTokens);
    assert_eq!(reason(stage.join(&join, "").await).0, Reason::TooManyTokens);
    assert!(stage.join_from(&join, "", "10.0.0.2".parse().unwrap()).await.is_ok());
}

#[tokio::test]
async fn the_older_root_is_kept_while_somebody_needs_it() {
    let stage = Stage::new().await;
    let line = stage.token(TokenKind::Join, Role::Worker, 9).await;
    let worker = stage.join(&line, NODE).await.unwrap();
    assert!(matches!(stage.access.retire(false).await, Err(Error::InUse { .. } | Error::Roots(_))));
    let view = stage.access.rotate().await.unwrap();
    let counts: Vec<(u32, u64)> = view.roots.iter().map(|(root, count)| (root.number, *count)).collect();
    assert_eq!(counts, [(1, 1), (2, 0)]);
    assert!(matches!(stage.access.rotate().await, Err(Error::Roots(_))));
    let Err(Error::InUse { holders }) = stage.access.retire(false).await else { panic!("it is retired") };
    assert_eq!(holders, format!("worker {NODE}"));
    // A token of before still lets in, and its certificate is of the new root.
    let other = "0193f2a4-5b6c-7d8e-9f00-112233445577";
    let second = stage.join(&line, other).await.unwrap();
    let kept = stage.store.certificate(second.serial()).await.unwrap().unwrap();
    assert_eq!(kept.root, 2);
    let renewed = stage.renew(worker.identity().unwrap()).await.unwrap();
    assert_eq!((renewed.record.root, renewed.record.name.as_str()), (2, NODE));
    let view = stage.access.retire(false).await.unwrap();
    let counts: Vec<(u32, u64)> = view.roots.iter().map(|(root, count)| (root.number, *count)).collect();
    assert_eq!(counts, [(2, 2)]);
}

#[tokio::test]
async fn forced_the_older_root_goes_with_all_that_it_signed() {
    let stage = Stage::new().await;
    let line = stage.token(TokenKind::Join, Role::Worker, 9).await;
    for number in 0..6 {
        stage.join(&line, &format!("0193f2a4-5b6c-7d8e-9f00-00000000000{number}")).await.unwrap();
    }
    stage.access.rotate().await.unwrap();
    let Err(Error::InUse { holders }) = stage.access.retire(false).await else { panic!("it is retired") };
    assert!(holders.matches("worker").count() == 5 && holders.ends_with("and others"), "{holders}");
    stage.access.retire(true).await.unwrap();
    assert!(stage.access.list_certificates(None, 9).await.unwrap().is_empty());
    // Whoever is out comes in again; tokens of the older root are known by their secrets still.
    assert!(stage.join(&line, "0193f2a4-5b6c-7d8e-9f00-000000000001").await.is_ok());
}

#[tokio::test]
async fn there_are_so_many_tokens_at_most() {
    let stage = Stage::new().await;
    stage.token(TokenKind::Access, Role::Observer, 0).await;
    // Copies of it in one statement: one by one they would take a commit each.
    let path = stage._folder.path().join("coordinator.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let database = sqlx::sqlite::SqlitePool::connect_with(options).await.unwrap();
    let copies = "WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < 9999) \
                  INSERT INTO tokens (token_id, kind, role, name, creator, created, expires, uses_left, secret_sha256) \
                  SELECT number, kind, role, name, creator, created, expires, uses_left, secret_sha256 FROM numbers, tokens";
    sqlx::query(copies).execute(&database).await.unwrap();
    let new = NewToken { kind: TokenKind::Join, role: Role::Worker, name: String::new(), ttl: None, uses: 0 };
    let refused = stage.access.create_token(&Caller::Open, new).await.map(|_| ());
    assert!(matches!(refused, Err(Error::TooMany { most: 10_000, .. })), "{refused:?}");
}

#[tokio::test]
async fn where_nothing_is_authenticated_there_is_nobody_to_let_in() {
    let plain = Access::plain(Metrics::new().unwrap(), &LimitSettings::default());
    let nothing = |outcome: Result<(), Error>| assert!(matches!(outcome, Err(Error::NothingAuthenticated)));
    let joining = Joining { token_id: Vec::new(), secret: Vec::new(), csr: Vec::new(), name: String::new() };
    nothing(plain.join(joining, HERE).await.map(drop));
    nothing(plain.renew(&Caller::Open, Vec::new()).await.map(drop));
    nothing(plain.list_tokens(None, 1).await.map(drop));
    nothing(plain.list_certificates(None, 1).await.map(drop));
    nothing(plain.revoke(Which::Serial("1".to_owned())).await.map(drop));
    nothing(plain.revoke_token([1; 8].into()).await.map(drop));
    nothing(plain.authority().await.map(drop));
    nothing(plain.rotate().await.map(drop));
    nothing(plain.retire(true).await.map(drop));
    assert!(plain.who_is(&Caller::Open).known.is_none());
    plain.sweep().await.unwrap();
}

/// A coordinator's certificate as another authority might give it.
fn from_elsewhere(folder: &Path) -> Pki {
    let authority = Authority::open_or_make(&folder.join("ca"), SystemTime::now()).unwrap();
    let (key, csr) = Csr::make().unwrap();
    let holder = Holder::Coordinator { names: Vec::new() };
    let leaf = Leaf { holder, valid_for: Duration::from_secs(3600) };
    let issued = authority.issue(csr.der(), &leaf, SystemTime::now()).unwrap();
    let paths = CredentialPaths {
        chain: folder.join("chain.pem"),
        key: folder.join("key.pem"),
        ca: folder.join("ca.pem"),
    };
    std::fs::write(&paths.chain, issued.chain_pem()).unwrap();
    std::fs::write(&paths.key, key.pem()).unwrap();
    std::fs::write(&paths.ca, authority.roots().pem()).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&paths.key, std::fs::Permissions::from_mode(0o600)).unwrap();
    Pki::elsewhere(paths, Duration::from_secs(3600), SystemTime::now()).unwrap()
}

#[tokio::test]
async fn with_certificates_from_elsewhere_there_are_access_tokens_and_revocation() {
    let (folder, store) = temporary().await;
    let pki = from_elsewhere(folder.path());
    let access =
        Access::secured(pki.clone(), Arc::new(store), Metrics::new().unwrap(), &LimitSettings::default())
            .await
            .unwrap();
    let new =
        |kind, name: &str| NewToken { kind, role: Role::Observer, name: name.to_owned(), ttl: None, uses: 0 };
    let refused = access.create_token(&Caller::Open, new(TokenKind::Join, "ada")).await.map(drop);
    assert!(matches!(refused, Err(Error::FromElsewhere)), "{refused:?}");
    let made = access.create_token(&Caller::Open, new(TokenKind::Access, "ada")).await.unwrap();
    assert!(access.identify(&Seen::Anonymous, HERE, Some(&made.line)).await.unwrap().watch.is_some());
    let joining = Joining { token_id: vec![1; 8], secret: vec![1; 32], csr: Vec::new(), name: String::new() };
    assert!(matches!(access.join(joining, HERE).await, Err(Error::FromElsewhere)));
    assert!(matches!(access.rotate().await, Err(Error::FromElsewhere)));
    assert!(matches!(access.retire(true).await, Err(Error::FromElsewhere)));
    // How many there are, the other authority knows.
    assert_eq!(access.revoke(Which::Serial("0aff".to_owned())).await.unwrap(), None);
    assert_eq!(access.revoke(Which::Member(Role::Worker, NODE.to_owned())).await.unwrap(), None);
    let revoked = pki.trust().revoked();
    assert!(revoked.has_serial("0aff") && revoked.members.contains(&(Role::Worker, NODE.to_owned())));
    assert_eq!(access.list_certificates(None, 9).await.unwrap(), Vec::<CertificateRecord>::new());
}

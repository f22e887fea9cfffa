use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

use ringtune_security::{AccessToken, Authority, Credentials, Csr, Holder, Leaf, Role};
use tempfile::TempDir;

use super::*;
use crate::client::CoordinatorUrl;

const HOUR: Duration = Duration::from_secs(3600);

/// A home, a coordinator's state folder, and the CA of a cluster.
struct World {
    place: TempDir,
    authority: Authority,
    given: Given,
}

impl World {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("folder");
        let authority =
            Authority::open_or_make(&place.path().join("authority"), SystemTime::now()).expect("a CA");
        let environment = Environment {
            home: Some(place.path().into()),
            state_dir: Some(place.path().join("state")),
            ..Environment::default()
        };
        Self { place, authority, given: Given { environment, ..Given::default() } }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Credentials of an admin, who was given them at that time.
    fn credentials(&self, name: &str, at: SystemTime) -> Credentials {
        let (key, csr) = Csr::make().expect("a key");
        let holder = Holder::Member { role: Role::Admin, name: name.to_owned() };
        let issued = self.authority.issue(csr.der(), &Leaf { holder, valid_for: HOUR }, at).expect("issued");
        Credentials::new(key, &issued.chain_pem(), self.authority.roots().clone()).expect("they fit")
    }

    fn store(&self, name: &str, folder: &Path) {
        self.credentials(name, SystemTime::now()).store(folder).expect("stored");
    }

    fn login(&self) -> PathBuf {
        Places::of(&self.given.environment).expect("a home").login(&url())
    }

    fn found(&self) -> Result<(CredentialSource, Option<String>), AccessError> {
        find(&url(), &self.given).map(|found| (found.source.clone(), holder(&found)))
    }
}

fn url() -> CoordinatorUrl {
    "https://head-node:9".parse().expect("a URL")
}

fn holder(found: &Found) -> Option<String> {
    found.trust.credentials().map(|own| own.identity().expect("a name").name.clone())
}

#[test]
fn what_is_named_comes_first_and_this_machines_admin_last() {
    let mut world = World::new();
    let none = world.found().expect_err("nothing is there").to_string();
    assert!(none.contains("ringtune login https://head-node:9") && none.contains("RINGTUNE_TOKEN"), "{none}");

    let admin = world.path("state/admin");
    world.store("local", &admin);
    assert_eq!(world.found().expect("found"), (CredentialSource::Admin(admin), Some("local".to_owned())));

    let login = world.login();
    world.store("ada", &login);
    assert_eq!(world.found().expect("found"), (CredentialSource::Login(login), Some("ada".to_owned())));

    // The roots are those of the login.
    let token = AccessToken::new().expect("random bytes");
    let file = world.path("token");
    fs::write(&file, format!("{}\n", token.reveal())).expect("written");
    world.given.environment.token_file = Some(file);
    let found = find(&url(), &world.given).expect("found");
    assert_eq!((&found.source, holder(&found)), (&CredentialSource::Token("RINGTUNE_TOKEN_FILE"), None));
    assert_eq!(found.token.expect("a token").id, token.id);
    assert_eq!(found.trust.roots(), *world.authority.roots());

    let named = world.path("named");
    world.given.credentials = Some(named.clone());
    let empty = world.found().expect_err("empty").to_string();
    assert!(empty.contains("named") && empty.contains("chain.pem"), "{empty}");
    world.store("bob", &named);
    assert_eq!(world.found().expect("found"), (CredentialSource::Folder(named), Some("bob".to_owned())));
}

#[test]
fn certificates_of_another_authority_are_taken_by_their_names() {
    let mut world = World::new();
    let ours = world.path("ours");
    world.store("ada", &ours);
    let text = fs::read_to_string(ours.join("identity.pem")).expect("there");
    let (key, chain) = text.split_at(text.find("-----BEGIN CERTIFICATE").expect("a chain"));
    let folder = world.path("theirs");
    fs::create_dir(&folder).expect("made");
    world.given.credentials = Some(folder.clone());
    for (name, text) in [("chain.pem", chain), ("key.pem", key)] {
        fs::write(folder.join(name), text).expect("written");
    }
    let missing = world.found().expect_err("no CA").to_string();
    assert!(missing.contains("ca.pem"), "{missing}");
    fs::copy(ours.join("trust.pem"), folder.join("ca.pem")).expect("copied");
    let (source, holder) = world.found().expect("found");
    assert_eq!((source.renewed_in(), holder.as_deref()), (None, Some("ada")));
}

#[test]
fn a_token_alone_is_not_enough_and_a_wrong_one_is_not_quoted() {
    let mut world = World::new();
    let token = AccessToken::new().expect("random bytes").reveal();
    world.given.environment.token = Some(token.clone());
    assert!(matches!(world.found(), Err(AccessError::NoRoots)));
    let ca = world.path("ca.pem");
    world.given.ca = Some(ca.clone());
    assert!(matches!(world.found(), Err(AccessError::File { .. })));
    fs::write(&ca, "nothing").expect("written");
    assert!(matches!(world.found(), Err(AccessError::Roots { .. })));
    fs::write(&ca, world.authority.roots().pem()).expect("written");
    assert_eq!(world.found().expect("found").0, CredentialSource::Token("RINGTUNE_TOKEN"));
    let cut = &token[..40];
    world.given.environment.token = Some(cut.to_owned());
    let error = world.found().expect_err("cut").to_string();
    assert!(error.starts_with("RINGTUNE_TOKEN: ") && !error.contains(&cut[5..]), "{error}");
}

#[test]
fn files_that_others_may_read_are_refused() {
    let world = World::new();
    let login = world.login();
    world.store("ada", &login);
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&login), mode(&login.join("identity.pem"))), (0o700, 0o600));
    fs::set_permissions(login.join("identity.pem"), fs::Permissions::from_mode(0o604)).expect("changed");
    let error = world.found().expect_err("open to everybody").to_string();
    assert!(error.contains("identity.pem") && error.contains("604"), "{error}");
}

#[test]
fn the_coordinator_is_the_named_one_that_of_the_last_login_or_this_machines() {
    let world = World::new();
    let choice =
        |named: Option<&str>| choose(named.map(|text| text.parse().expect("a URL")).as_ref(), &world.given);
    let here = CoordinatorUrl::on_this_machine();
    assert!(matches!(choice(None), Ok(Choice::Open(url)) if url == here));
    assert!(matches!(choice(Some("http://node")), Ok(Choice::Open(url)) if !url.is_loopback()));
    assert!(matches!(choice(Some("node")), Err(AccessError::None { .. })));

    // A coordinator with TLS was started here.
    world.store("local", &world.path("state/admin"));
    assert!(matches!(choice(None), Ok(Choice::Here(url, _)) if url == here.secured()));
    assert!(matches!(choice(Some("127.0.0.1")), Ok(Choice::Open(_))));

    let places = Places::of(&world.given.environment).expect("a home");
    world.store("ada", &world.login());
    places.set_default(&url()).expect("written");
    assert!(matches!(choice(None), Ok(Choice::Secure(chosen, _)) if chosen == url()));
    fs::write(world.path(".config/ringtune/credentials/default"), "a b").expect("written");
    assert!(matches!(choice(None), Err(AccessError::Default { .. })));
}

#[test]
fn a_login_is_forgotten_and_with_it_the_default() {
    let world = World::new();
    let places = Places::of(&world.given.environment).expect("a home");
    let other: CoordinatorUrl = "other".parse().expect("a URL");
    assert!(!places.forget(&url()).expect("nothing to do"));
    world.store("ada", &world.login());
    world.store("ada", &places.login(&other));
    places.set_default(&url()).expect("written");
    assert!(places.forget(&other).expect("forgotten"));
    assert_eq!(places.default_coordinator().expect("read"), Some(url()));
    assert!(places.forget(&url()).expect("forgotten") && !world.login().exists());
    assert_eq!(places.default_coordinator().expect("read"), None);
    let nowhere = Environment { home: Some("relative".into()), ..Environment::default() };
    assert!(matches!(Places::of(&nowhere), Err(AccessError::NoHome)));
    let config = Environment { config_home: Some("/c".into()), ..world.given.environment.clone() };
    assert_eq!(
        Places::of(&config).expect("a home").login(&url()),
        Path::new("/c/ringtune/credentials/head-node_9")
    );
}

#[test]
fn a_certificate_is_renewed_in_its_last_third_by_whoever_keeps_it() {
    let world = World::new();
    let now = SystemTime::now();
    // It is made for an hour.
    let found = |minutes: u64, source: fn(PathBuf) -> CredentialSource| {
        let credentials = world.credentials("ada", now - Duration::from_secs(minutes * 60));
        let trust = ringtune_security::Trust::of(credentials).expect("of this cluster");
        Found { trust, token: None, source: source("x".into()) }
    };
    assert!(!is_due(&found(35, CredentialSource::Login), now));
    assert!(is_due(&found(45, CredentialSource::Login), now));
    assert!(is_due(&found(45, CredentialSource::Folder), now));
    assert!(
        !is_due(&found(45, CredentialSource::Admin), now)
            && !is_due(&found(45, CredentialSource::Elsewhere), now)
    );
    assert!(!is_due(&found(65, CredentialSource::Login), now), "nobody takes it any more");
}

#[tokio::test]
async fn a_long_command_goes_on_with_the_certificate_that_another_one_got() {
    let world = World::new();
    let folder = world.path("kept");
    let old = world.credentials("ada", SystemTime::now() - HOUR * 3 / 4);
    for source in [CredentialSource::Admin, CredentialSource::Folder, CredentialSource::Login] {
        let trust = ringtune_security::Trust::of(old.clone()).expect("of this cluster");
        let found = Found { trust: trust.clone(), token: None, source: source(folder.clone()) };
        // Somebody else's does not do.
        world.store("bob", &folder);
        // Nobody answers there.
        let client = crate::client::Client::new(&"http://127.0.0.1:1".parse().expect("a URL"));
        let keeping = tokio::spawn(keep(client, found));
        let next = world.credentials("ada", SystemTime::now());
        next.store(&folder).expect("stored");
        let taken = async {
            while trust.credentials().is_none_or(|now| now.serial() != next.serial()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), taken).await.expect("it is taken");
        assert_eq!(trust.credentials().expect("there are some").identity().expect("a name").name, "ada");
        keeping.abort();
    }
}

#[tokio::test]
async fn a_token_is_read_from_a_file_or_the_environment() {
    let place = tempfile::tempdir().expect("folder");
    let file = place.path().join("token");
    fs::write(&file, "of the file").expect("written");
    let environment = Environment { join: Some("of the environment".into()), ..Environment::default() };
    assert_eq!(read_join_token(Some(&file), &environment).await.expect("read"), "of the file");
    assert_eq!(read_join_token(None, &environment).await.expect("read"), "of the environment");
    let error = read_join_token(Some(Path::new("/none")), &environment).await.expect_err("not there");
    assert!(error.to_string().contains("/none"), "{error}");
}

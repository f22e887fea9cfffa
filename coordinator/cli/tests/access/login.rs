//! From a token to a certificate, and from one certificate to the next.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    time::{Duration, SystemTime},
};

use ringtune_security::{AccessToken, Role};

use crate::fake::{Coordinator, files};

#[tokio::test]
async fn a_token_is_enough_for_all_later_commands() {
    let coordinator = Coordinator::start().await;
    let home = coordinator.home("ada");
    let token = coordinator.token(Role::Submitter, "ada");
    let url = coordinator.url();
    let login = home.fed(&format!("{token}\n"), &["login", &url]).await.ok();
    assert!(login.stdout.is_empty() && login.stderr.contains("you are submitter ada"), "{}", login.stderr);

    // Nobody else can read what it keeps, and the token is not among it.
    let mode = |path: &std::path::Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&home.credentials_folder()), mode(&home.login_folder())), (0o700, 0o700));
    for file in files(&home.login_folder()) {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
        assert!(!fs::read_to_string(&file).expect("text").contains(&token[5..]), "{}", file.display());
    }

    // Later commands need neither the token nor the address.
    let who = home.run(&["whoami", "--output", "json"]).await.ok().json();
    assert_eq!((&who[0]["type"], &who[0]["authenticated"]), (&"identity".into(), &true.into()));
    assert_eq!((&who[0]["role"], &who[0]["name"]), (&"submitter".into(), &"ada".into()));
    assert_eq!(who[0]["coordinator"], url.as_str());
    assert_eq!(who[0]["credentials"], home.login_folder().display().to_string());
    let text = home.run(&["whoami"]).await.ok().stdout;
    assert!(text.contains("role       submitter\nname       ada\n"), "{text}");
    assert!(text.contains("files      12 of 1000, with 1.5 GiB of 1.0 TiB"), "{text}");
    assert_eq!((&who[0]["usage"]["bytes"], &who[0]["usage"]["max_files"]), (&(3 << 29).into(), &1000.into()));

    let logout = home.run(&["logout", "--output", "json"]).await.ok().json();
    assert_eq!((&logout[0]["type"], &logout[0]["was_logged_in"]), (&"logout".into(), &true.into()));
    assert!(files(&home.credentials_folder()).is_empty());
    home.run(&["whoami", "--coordinator", &url]).await.failed(2, &["ringtune login https://127.0.0.1"]);
}

#[tokio::test]
async fn a_token_comes_from_a_file_or_the_environment_too() {
    let coordinator = Coordinator::start().await;
    let url = coordinator.url();
    let home = coordinator.home("ada");
    fs::write(home.folder.join("token"), coordinator.token(Role::Admin, "ada")).expect("written");
    let login = home.run(&["login", &url, "--token-file", "token", "--output", "json"]).await.ok().json();
    assert_eq!((&login[0]["type"], &login[0]["role"]), (&"login".into(), &"admin".into()));
    assert_eq!(login[0]["serial"], home.stored().serial());

    let home = coordinator.home("bob");
    let token = coordinator.token(Role::Observer, "bob");
    home.run_with(&[("RINGTUNE_JOIN", &token), ("RINGTUNE_COORDINATOR", &url)], &["login"]).await.ok();
    let home = coordinator.home("eve");
    let token = coordinator.token(Role::Observer, "eve");
    home.fed(&token, &["login", &url, "--token-file", "-"]).await.ok();
    assert_eq!(home.stored().identity().expect("a name").name, "eve");
}

#[tokio::test]
async fn a_wrong_token_says_what_is_wrong_with_it_and_is_not_shown() {
    let (coordinator, other) = (Coordinator::start().await, Coordinator::start().await);
    let home = coordinator.home("ada");
    let url = coordinator.url();
    let good = coordinator.token(Role::Submitter, "ada");
    let (cut, mut mistyped) = (good[..good.len() - 9].to_owned(), good.clone());
    let last = if mistyped.pop() == Some('A') { 'B' } else { 'A' };
    mistyped.push(last);
    let access = AccessToken::new().expect("random bytes").reveal();
    let worker = coordinator.token(Role::Worker, "");
    let theirs = other.token(Role::Submitter, "ada");
    for (token, code, says) in [
        ("", 2, "the token is empty"),
        ("hello", 2, "ringtune token create --role submitter"),
        (&cut, 2, "characters"),
        (&mistyped, 2, "error: the token "),
        (&access, 2, "another kind"),
        (&worker, 2, "ringtune-worker --coordinator https://"),
        (&theirs, 3, "is not the coordinator that made this token"),
    ] {
        let ran = home.fed(token, &["login", &url]).await;
        ran.failed(code, &[says]);
        assert!(ran.stdout.is_empty() && !ran.stderr.contains(&good[10..30]), "{}", ran.stderr);
        assert!(!home.credentials_folder().exists(), "{says}: something is kept");
    }
    // None of these has used it up; this does.
    home.log_in(&good).await;
    home.fed(&good, &["login", &url]).await.failed(2, &["cannot log in", "was used already"]);
    assert_eq!(home.stored().identity().expect("a name").name, "ada", "what was there stays");
    home.fed(&theirs, &["login", &coordinator.http()]).await.failed(2, &["encrypts nothing", &url]);
    assert!(other.state().tokens.len() == 1, "a token went to somebody else");
}

#[tokio::test]
async fn any_command_renews_a_certificate_when_it_is_time() {
    let coordinator = Coordinator::start().await;
    let home = coordinator.home("ada");
    home.log_in(&coordinator.token(Role::Submitter, "ada")).await;
    home.run(&["whoami"]).await.ok();
    assert_eq!(coordinator.state().calls, ["submitter ada: who"], "renewed too early");

    let minutes = |count: u64| SystemTime::now() - Duration::from_secs(60 * count);
    let old = coordinator.credentials_at(Role::Submitter, "ada", minutes(40));
    old.store(&home.login_folder()).expect("stored");
    coordinator.state().renews = false;
    let refused = home.run(&["whoami"]).await.ok();
    assert!(refused.stderr.contains("warning: your certificate ends soon"), "{}", refused.stderr);
    assert!(refused.stderr.contains("the disk is full"), "{}", refused.stderr);
    assert_eq!(home.stored().serial(), old.serial());

    coordinator.state().renews = true;
    let silent = home.run(&["whoami"]).await.ok();
    assert!(silent.stderr.is_empty(), "{}", silent.stderr);
    let new = home.stored();
    assert!(new.serial() != old.serial() && new.validity().until > old.validity().until);
    assert_eq!(new.identity().expect("a name").name, "ada");

    // By hand, whenever it is.
    let renewed = home.run(&["cert", "renew", "--output", "json"]).await.ok().json();
    assert_eq!(
        (&renewed[0]["type"], &renewed[0]["serial"]),
        (&"renewed".into(), &home.stored().serial().into())
    );
    assert_ne!(home.stored().serial(), new.serial());

    // One that is over says so, and what to do.
    let over = coordinator.credentials_at(Role::Submitter, "ada", minutes(70));
    over.store(&home.login_folder()).expect("stored");
    home.run(&["whoami"]).await.failed(3, &["expired", "join again with a new token", "ringtune login"]);
}

#[tokio::test]
async fn the_roots_of_a_rotation_are_taken_over() {
    let coordinator = Coordinator::start().await;
    let home = coordinator.home("ada");
    home.log_in(&coordinator.token(Role::Admin, "ada")).await;
    assert_eq!(home.stored().roots().ders().len(), 1);
    coordinator.state().authority.rotate(SystemTime::now()).expect("rotated");
    home.run(&["whoami"]).await.ok();
    assert_eq!(home.stored().roots(), coordinator.state().authority.roots());
}

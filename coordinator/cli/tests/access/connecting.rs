//! Who the command is to a coordinator, and what it says where they do not understand each other.

use std::{fs, time::SystemTime};

use ringtune_security::Role;

use crate::fake::Coordinator;

#[tokio::test]
async fn an_access_token_goes_with_each_call_and_never_in_the_clear() {
    let coordinator = Coordinator::start().await;
    let home = coordinator.home("program");
    let (token, url) = (coordinator.state().access_token.reveal(), coordinator.url());
    let roots = coordinator.state().authority.roots().pem();
    fs::write(home.folder.join("ca.pem"), roots).expect("written");
    fs::write(home.folder.join("token"), format!("{token}\n")).expect("written");
    let who = ["whoami", "--output", "json", "--coordinator", &url];
    for environment in [("RINGTUNE_TOKEN", token.as_str()), ("RINGTUNE_TOKEN_FILE", "token")] {
        let ran = home.run_with(&[environment, ("RINGTUNE_CA", "ca.pem")], &who).await.ok();
        assert_eq!(
            (&ran.json()[0]["name"], &ran.json()[0]["credentials"]),
            (&"a program".into(), &environment.0.into())
        );
        home.run_with(&[environment], &who).await.failed(2, &["--ca FILE", "ringtune ca show --pem"]);
    }
    let ca = [&who[..], &["--ca", "ca.pem"]].concat();
    let wrong = ringtune_security::AccessToken::new().expect("random bytes").reveal();
    home.run_with(&[("RINGTUNE_TOKEN", &wrong)], &ca).await.failed(2, &["this token opens nothing"]);
    let cut = home.run_with(&[("RINGTUNE_TOKEN", &token[..30])], &ca).await;
    cut.failed(2, &["RINGTUNE_TOKEN: ", "a join token goes to"]);
    assert!(!cut.stderr.contains(&token[6..30]), "{}", cut.stderr);

    // A coordinator without TLS gets no token.
    let plain = Coordinator::plain().await;
    let open = ["whoami", "--output", "json", "--coordinator", &plain.http()];
    let ran = home.run_with(&[("RINGTUNE_TOKEN", &token), ("RINGTUNE_CA", "ca.pem")], &open).await.ok();
    assert_eq!((&ran.json()[0]["authenticated"], ran.json()[0].get("name")), (&false.into(), None));
    assert!(!ran.stderr.contains("warning"), "loopback needs no warning: {}", ran.stderr);
}

#[tokio::test]
async fn credentials_come_from_a_folder_that_is_named_or_from_the_coordinators_machine() {
    let coordinator = Coordinator::start().await;
    let (home, url) = (coordinator.home("root"), coordinator.url());
    let admin = coordinator.credentials_at(Role::Admin, "local", SystemTime::now());
    admin.store(&home.folder.join("state/admin")).expect("stored");
    let who = ["whoami", "--output", "json", "--coordinator", &url];
    assert_eq!(home.run(&who).await.ok().json()[0]["name"], "local");
    let bob = coordinator.credentials_at(Role::Observer, "bob", SystemTime::now());
    bob.store(&home.folder.join("bob")).expect("stored");
    let named = home.run_with(&[("RINGTUNE_CREDENTIALS", "bob")], &who).await.ok();
    assert_eq!(named.json()[0]["name"], "bob");
    let renew = ["cert", "renew", "--coordinator", &url];
    home.run(&renew).await.failed(2, &["the coordinator renews its admin's by itself"]);
}

#[tokio::test]
async fn where_the_two_do_not_understand_each_other_it_says_what_to_do() {
    let (coordinator, other, plain) =
        (Coordinator::start().await, Coordinator::start().await, Coordinator::plain().await);
    let home = coordinator.home("ada");
    home.log_in(&coordinator.token(Role::Submitter, "ada")).await;
    let credentials = home.login_folder().display().to_string();
    let ask =
        async |url: &str| home.run(&["workers", "--coordinator", url, "--credentials", &credentials]).await;
    let began = std::time::Instant::now();
    let tls = ask(&coordinator.http()).await;
    tls.failed(3, &["cannot talk to the coordinator", "speaks TLS: use https://127.0.0.1"]);
    ask(&plain.url()).await.failed(3, &["speaks no TLS: use http://127.0.0.1"]);
    ask(&other.url()).await.failed(3, &["of a CA that is not known here"]);
    assert!(began.elapsed().as_secs() < 20, "another try is no use: {:?}", began.elapsed());
    assert!(!tls.stderr.contains("is it running"), "{}", tls.stderr);

    // Nobody is there, which TLS has nothing to do with.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let url = format!("https://{}", nobody.local_addr().expect("an address"));
    drop(nobody);
    ask(&url).await.failed(3, &["cannot reach the coordinator", "is it running"]);
    // Nothing is encrypted there, if it is there at all.
    let warned = home.run(&["list", "--coordinator", "http://0.0.0.0:1"]).await;
    assert_eq!(
        warned.stderr.matches("warning: nothing is encrypted on the way to http://0.0.0.0:1").count(),
        1
    );
}

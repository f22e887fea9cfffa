//! What an administrator does: tokens, certificates, the authority.

use ringtune_security::{Role, Roots};

use crate::fake::{Coordinator, Home};

async fn admin(coordinator: &Coordinator) -> Home {
    let home = coordinator.home("admin");
    home.log_in(&coordinator.token(Role::Admin, "ada")).await;
    home
}

#[tokio::test]
async fn a_new_token_alone_goes_to_stdout() {
    let coordinator = Coordinator::start().await;
    let home = admin(&coordinator).await;
    let worker = home.run(&["token", "create", "--role", "worker", "--ttl", "2h", "--uses", "3"]).await.ok();
    assert_eq!(worker.stdout, "rtj1.secret\n");
    assert!(worker.stderr.contains("ringtune-worker --coordinator https://"), "{}", worker.stderr);
    assert!(worker.stderr.contains("--join TOKEN") && !worker.stderr.contains("rtj1"), "{}", worker.stderr);
    let args = ["token", "create", "--role=observer", "--name=prometheus", "--access", "--output=json"];
    let access = home.run(&args).await.ok();
    let object = &access.json()[0];
    for (key, value) in [
        ("type", "token"),
        ("kind", "access"),
        ("role", "observer"),
        ("name", "prometheus"),
        ("secret", "rtj1.secret"),
    ] {
        assert_eq!(object[key], value, "{key}");
    }
    assert!(object.get("uses_left").is_none(), "{object}");
    home.run(&["token", "revoke", "0123456789ABCDEF"]).await.ok();
    home.run(&["token", "revoke", "8f"]).await.failed(2, &["16 hexadecimal digits"]);
    let unknown = home.run(&["token", "revoke", "f123456789abcdef"]).await;
    unknown.failed(2, &["there is no token f123456789abcdef", "`ringtune token list`"]);
    assert!(!unknown.stderr.contains("revoked;"), "{}", unknown.stderr);
    let asked = [
        "token  for 7200 s, 3 uses",
        "token prometheus for 0 s, 0 uses",
        "revoke token 0123456789abcdef",
        "revoke token f123456789abcdef",
    ];
    assert_eq!(coordinator.state().calls, asked.map(|call| format!("admin ada: {call}")));
}

#[tokio::test]
async fn tokens_and_certificates_are_listed() {
    let coordinator = Coordinator::start().await;
    let home = admin(&coordinator).await;
    let tokens = home.run(&["token", "list", "--output", "json"]).await.ok().json();
    let kinds: Vec<_> = tokens.iter().map(|token| token["kind"].clone()).collect();
    assert_eq!(kinds, ["join", "access"], "both pages");
    assert_eq!((&tokens[0]["uses_left"], tokens[0].get("secret")), (&1.into(), None));
    let text = home.run(&["token", "list"]).await.ok().stdout;
    assert!(
        text.contains("TOKEN") && text.contains("0123456789abcdef") && text.contains("prometheus"),
        "{text}"
    );
    let certificates = home.run(&["cert", "list", "--output", "json"]).await.ok().json();
    assert_eq!((&certificates[0]["serial"], &certificates[0]["name"]), (&"8f02".into(), &"bob".into()));
    assert_eq!((&certificates[1]["root"], &certificates[1]["revoke_time"]), (&1.into(), &"".into()));
}

#[tokio::test]
async fn certificates_are_revoked_one_by_one_or_all_of_a_holder() {
    let coordinator = Coordinator::start().await;
    let home = admin(&coordinator).await;
    let id = "00000000-0000-4000-8000-000000000001";
    let one = home.run(&["cert", "revoke", "00:8F:01", "--output", "json"]).await.ok();
    assert_eq!((&one.json()[0]["type"], &one.json()[0]["serial"]), (&"revoked".into(), &"8f01".into()));
    home.run(&["cert", "revoke", "--worker", id]).await.ok();
    let bob =
        home.run(&["cert", "revoke", "--role", "observer", "--name", "bob", "--output", "json"]).await.ok();
    assert_eq!((&bob.json()[0]["role"], &bob.json()[0]["name"]), (&"observer".into(), &"bob".into()));
    let calls = coordinator.state().calls.clone();
    assert!(calls[0].contains("Serial(\"8f01\")"), "{calls:?}");
    assert!(calls[1].contains("role: Worker") && calls[1].contains(id), "{calls:?}");
    assert!(calls[2].contains("role: Observer") && calls[2].contains("bob"), "{calls:?}");
}

#[tokio::test]
async fn what_nobody_has_is_not_revoked_as_if_somebody_had_it() {
    let coordinator = Coordinator::start().await;
    let home = admin(&coordinator).await;
    let serial = home.run(&["cert", "revoke", "dead01"]).await;
    serial.failed(2, &["`ringtune cert list` shows no certificate with the serial number dead01"]);
    let name = home.run(&["cert", "revoke", "--role", "submitter", "--name", "nobody"]).await;
    name.failed(2, &["submitter nobody has no certificate and no access token"]);
    for refused in [serial, name] {
        assert!(!refused.stderr.contains("revoked;"), "{}", refused.stderr);
    }
}

#[tokio::test]
async fn a_root_is_replaced_in_two_steps() {
    let coordinator = Coordinator::start().await;
    let home = admin(&coordinator).await;
    let pem = home.run(&["ca", "show", "--pem"]).await.ok().stdout;
    assert_eq!(Roots::from_pem(&pem).expect("roots"), *coordinator.state().authority.roots());

    let rotated = home.run(&["ca", "rotate"]).await.ok();
    assert!(rotated.stderr.contains("root 2 signs from now on, and root 1 is trusted"), "{}", rotated.stderr);
    let refused = home.run(&["ca", "retire"]).await;
    refused.failed(
        1,
        &["a certificate of root 1 is in use", "1 certificate of root 1:\n  submitter ada", "--force"],
    );
    assert!(!refused.stderr.contains("bob"), "{}", refused.stderr);

    let shown = home.run(&["ca", "show", "--output", "json"]).await.ok().json();
    let roots = shown[0]["roots"].as_array().expect("roots");
    let numbers: Vec<_> = roots.iter().map(|root| root["number"].as_i64()).collect();
    assert_eq!((shown[0]["type"].as_str(), numbers), (Some("authority"), vec![Some(1), Some(2)]));
    // The roots that it has are those of before.
    home.run(&["cert", "renew"]).await.ok();
    let retired = home.run(&["ca", "retire", "--force", "--output", "json"]).await.ok().json();
    assert_eq!(retired[0]["roots"].as_array().map(Vec::len), Some(1));
}

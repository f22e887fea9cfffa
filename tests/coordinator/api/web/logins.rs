//! Login, logout, and what a revoked token still opens.

use ringtune_proto::v1::{self, access_service_client::AccessServiceClient};

use super::{Browser, secured};
use crate::coordinator::Coordinator;

fn login(token: &str) -> Vec<u8> {
    serde_json::to_vec(&serde_json::json!({ "token": token })).unwrap()
}

#[tokio::test]
async fn a_login_is_a_cookie_that_only_this_host_gets() {
    let coordinator = secured().await;
    let browser = Browser::of(&coordinator);
    let session = browser.get("/api/session").await.json();
    assert_eq!((&session["login"], &session["secured"]), (&"none".into(), &true.into()));
    assert_eq!(browser.call("JobService/ListJobs", "{}").await.status, 401);
    assert_eq!(browser.get("/api/events").await.status, 401);

    // 1. In.
    let token = coordinator.token(v1::Role::Submitter, "ada").await;
    let entered = browser.send("POST", "/login", &login(&token.secret)).await;
    assert_eq!(entered.status, 204, "{entered:?}");
    let cookie = entered.header("set-cookie").unwrap().to_owned();
    for rule in ["HttpOnly", "Secure", "SameSite=Strict", "Path=/", "Max-Age="] {
        assert!(cookie.contains(rule), "{cookie}");
    }
    let sent = browser.and("cookie", cookie.split(';').next().unwrap());
    let from =
        |scheme: &str| sent.and("origin", &format!("{scheme}://localhost:{}", coordinator.http.port()));
    for elsewhere in [&sent, &from("http")] {
        assert_eq!(elsewhere.call("JobService/ListJobs", "{}").await.status, 403);
    }
    let logged_in = from("https");
    let session = logged_in.get("/api/session").await.json();
    assert_eq!((&session["login"], &session["name"]), (&"token".into(), &"ada".into()));
    assert_eq!(logged_in.call("JobService/ListJobs", "{}").await.status, 200);
    let wrong_bearer = logged_in.by_bearer("rta1.nonsense").call("JobService/ListJobs", "{}").await;
    assert_eq!(
        (wrong_bearer.status, wrong_bearer.header("set-cookie")),
        (401, None),
        "a bearer token counts first"
    );

    // 2. Out.
    let out = logged_in.send("POST", "/logout", b"{}").await;
    assert_eq!(out.status, 204);
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));

    // 3. Revoked: at once, also in the middle of events, and the cookie goes.
    let events = logged_in.events("").await;
    let mut access = AccessServiceClient::new(coordinator.channel.clone());
    let token_id = token.token.unwrap().token_id;
    access.revoke_token(v1::RevokeTokenRequest { token_id }).await.unwrap();
    assert_eq!(events.end().await, "login");
    let late = logged_in.call("JobService/ListJobs", "{}").await;
    assert_eq!(late.status, 401);
    assert!(late.header("set-cookie").unwrap().contains("Max-Age=0"));
    let session = logged_in.get("/api/session").await;
    assert_eq!(session.json()["login"], "none");
    assert!(session.header("set-cookie").unwrap().contains("Max-Age=0"));
    coordinator.stop().await;
}

#[tokio::test]
async fn wrong_logins_are_refused_and_soon_not_looked_at() {
    let coordinator = secured().await;
    let browser = Browser::of(&coordinator);
    for body in [&b""[..], b"{}", b"{\"token\":7}", b"x", b"{\"token\":\"a\",\"b\":1}", &vec![b' '; 20 << 10]]
    {
        let answer = browser.send("POST", "/login", body).await;
        assert_eq!((answer.status, &answer.json()["code"]), (400, &"invalid_argument".into()), "{answer:?}");
    }
    let right = coordinator.token(v1::Role::Admin, "root").await.secret;
    let mut statuses = Vec::new();
    for _ in 0..100 {
        let answer = browser.send("POST", "/login", &login("rta1.nonsense")).await;
        assert_eq!(answer.header("set-cookie"), None);
        statuses.push(answer.status);
        if answer.status == 429 {
            assert!(answer.header("retry-after").is_some(), "{answer:?}");
            break;
        }
    }
    assert_eq!((statuses.first(), statuses.last()), (Some(&401), Some(&429)), "{statuses:?}");
    assert_eq!(
        browser.send("POST", "/login", &login(&right)).await.status,
        429,
        "from there nobody gets in now"
    );
    coordinator.stop().await;
}

#[tokio::test]
async fn where_nobody_is_asked_no_login_is_needed() {
    let coordinator = Coordinator::fresh().await;
    let browser = Browser::of(&coordinator);
    let answer = browser.send("POST", "/login", &login("rta1.x")).await;
    assert_eq!((answer.status, &answer.json()["code"]), (400, &"failed_precondition".into()));
    assert!(answer.text().contains("no login is needed"), "{answer:?}");
    assert_eq!(answer.header("set-cookie"), None);
    let session = browser.by_cookie("rta1.x").get("/api/session").await.json();
    assert_eq!((&session["login"], &session["secured"]), (&"open".into(), &false.into()));
    assert!(session["methods"].as_array().unwrap().iter().any(|name| name == "ClusterService/DrainWorker"));
    coordinator.stop().await;
}

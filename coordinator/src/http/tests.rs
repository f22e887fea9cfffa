use std::{net::SocketAddr, time::Duration};

use ringtune_security::Role;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::access::tests::Stage;
use crate::network::listen;
use crate::settings::LimitSettings;
use crate::store::access::TokenKind;

async fn get(address: SocketAddr, path: &str) -> String {
    ask(address, path, "").await
}

async fn get_with(address: SocketAddr, path: &str, token: &str) -> String {
    ask(address, path, &format!("Authorization: Bearer {token}\r\n")).await
}

async fn ask(address: SocketAddr, path: &str, header: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Without any service behind it.
fn options(metrics: &Metrics, readiness: &Readiness, access: Access, shutdown: CancellationToken) -> Options {
    let nothing = tower::service_fn(|_| async { Ok(tonic::Status::unimplemented("nothing").into_http()) });
    let web = ringtune_web::Options {
        calls: ringtune_web::Calls::new::<_, tonic::body::Body>(nothing),
        secured: false,
        version: ringtune_shared::version::VERSION,
        methods: |_, _| Vec::new(),
        shutdown,
    };
    let (metrics, readiness) = (metrics.clone(), readiness.clone());
    Options { metrics, readiness, scrapes: Scrapes::default(), access, names: Names::default(), web }
}

async fn start(access: Access, metrics: &Metrics, opening_seconds: f64) -> (SocketAddr, Readiness) {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let limits = LimitSettings { opening_seconds, ..LimitSettings::default() };
    let listener = listen::http(tcp, None, &limits, metrics.refusals()).unwrap();
    let readiness = Readiness::default();
    let never = CancellationToken::new();
    tokio::spawn(serve(listener, options(metrics, &readiness, access, never)));
    (address, readiness)
}

#[tokio::test]
async fn probes_and_metrics_answer() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let (readiness, metrics) = (Readiness::default(), Metrics::new().unwrap());
    let listener = listen::http(tcp, None, &LimitSettings::default(), metrics.refusals()).unwrap();
    let stop = CancellationToken::new();
    let access = Access::plain(metrics.clone(), &LimitSettings::default());
    let served = tokio::spawn(serve(listener, options(&metrics, &readiness, access, stop.clone())));
    assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 503"));
    readiness.set(true);
    assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
    assert!(get(address, "/metrics").await.contains("ringtune_steps_total 0"));
    assert!(get(address, "/").await.contains("<title>Ringtune"));
    assert!(get(address, "/api/session").await.contains(ringtune_shared::version::VERSION));
    assert!(get(address, "/other").await.starts_with("HTTP/1.1 404"));
    stop.cancel();
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn access_is_checked_for_every_path() {
    let stage = Stage::new().await;
    let (address, _) = start(stage.access.clone(), &Metrics::new().unwrap(), 10.0).await;
    let observer = stage.token(TokenKind::Access, Role::Observer, 0).await;
    assert!(get_with(address, "/metrics", &observer).await.starts_with("HTTP/1.1 200"));
    let submitter = stage.token(TokenKind::Access, Role::Submitter, 0).await;
    assert!(get_with(address, "/metrics", &submitter).await.starts_with("HTTP/1.1 403"));
    for path in ["/metrics", "/other"] {
        let unknown = get(address, path).await;
        let (status, header) = ("HTTP/1.1 401", "www-authenticate: Bearer");
        assert!(unknown.starts_with(status) && unknown.contains(header), "{unknown}");
    }
}

#[tokio::test]
async fn who_comes_with_too_many_wrong_tokens_is_told_when_to_come_again() {
    let stage = Stage::new().await;
    let (address, _) = start(stage.access.clone(), &Metrics::new().unwrap(), 10.0).await;
    let mut answer = get_with(address, "/metrics", "nonsense").await;
    while answer.starts_with("HTTP/1.1 401") {
        answer = get_with(address, "/metrics", "nonsense").await;
    }
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("\r\nretry-after: "), "{answer}");
}

#[test]
fn a_bearer_token_is_found_whatever_the_case_of_its_scheme() {
    let of = |text: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, text.parse().unwrap());
        bearer(&headers).map(str::to_owned)
    };
    assert_eq!(of("Bearer rta1.x").as_deref(), Some("rta1.x"));
    assert_eq!(of("bearer  rta1.x ").as_deref(), Some("rta1.x"));
    assert_eq!((of("Basic rta1.x"), of("rta1.x")), (None, None));
    assert_eq!(bearer(&HeaderMap::new()), None);
}

#[tokio::test]
async fn a_request_that_comes_too_slowly_is_closed_and_counted() {
    let metrics = Metrics::new().unwrap();
    let (address, _) = start(Access::plain(metrics.clone(), &LimitSettings::default()), &metrics, 0.3).await;
    let mut slow = TcpStream::connect(address).await.unwrap();
    let trickle = async {
        slow.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        while slow.write_all(b"X: y\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), trickle).await.unwrap();
    let text = metrics.text().unwrap();
    assert!(text.contains(r#"ringtune_refused_connections_total{reason="unused"} 1"#), "{text}");
}

use std::{net::SocketAddr, time::Duration};

use ringtune_security::{Caller, Peer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::access::Access;
use crate::network::listen;
use crate::settings::LimitSettings;

async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Without any service behind it.
fn options(
    metrics: &Metrics,
    readiness: &Readiness,
    gate: Arc<dyn Gate>,
    shutdown: CancellationToken,
) -> Options {
    let nothing = tower::service_fn(|_| async { Ok(tonic::Status::unimplemented("nothing").into_http()) });
    let web = ringtune_web::Options {
        calls: ringtune_web::Calls::new::<_, tonic::body::Body>(nothing),
        secured: false,
        version: ringtune_shared::version::VERSION,
        methods: |_, _| Vec::new(),
        shutdown,
    };
    let (metrics, readiness) = (metrics.clone(), readiness.clone());
    Options { metrics, readiness, scrapes: Scrapes::default(), gate, names: Names::default(), web }
}

async fn start(gate: Arc<dyn Gate>, metrics: &Metrics, opening_seconds: f64) -> (SocketAddr, Readiness) {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let limits = LimitSettings { opening_seconds, ..LimitSettings::default() };
    let listener = listen::http(tcp, None, &limits, metrics.refusals()).unwrap();
    let readiness = Readiness::default();
    let never = CancellationToken::new();
    tokio::spawn(serve(listener, options(metrics, &readiness, gate, never)));
    (address, readiness)
}

#[tokio::test]
async fn probes_and_metrics_answer() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let (readiness, metrics) = (Readiness::default(), Metrics::new().unwrap());
    let listener = listen::http(tcp, None, &LimitSettings::default(), metrics.refusals()).unwrap();
    let stop = CancellationToken::new();
    let gate = Arc::new(Access::plain(metrics.clone(), &LimitSettings::default()));
    let served = tokio::spawn(serve(listener, options(&metrics, &readiness, gate, stop.clone())));
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

/// Lets in whoever has the token, to one page.
struct OnePage;

#[async_trait::async_trait]
impl Gate for OnePage {
    async fn allowed(
        &self,
        peer: &Peer,
        bearer: Option<&str>,
        method: &Method,
        path: &str,
    ) -> Result<(), NotAnswered> {
        assert_eq!((&peer.caller, bearer, method), (&Caller::Open, Some("t"), &Method::GET));
        match path {
            "/metrics" => Ok(()),
            "/readyz" => Err(NotAnswered::new(StatusCode::FORBIDDEN, "not you")),
            "/healthz" => {
                let soon = Some(Duration::from_secs(5));
                let often = NotAnswered::new(StatusCode::TOO_MANY_REQUESTS, "not so often");
                Err(NotAnswered { retry_after: soon, ..often })
            }
            _ => Err(NotAnswered::new(StatusCode::UNAUTHORIZED, "who are you")),
        }
    }
}

#[tokio::test]
async fn the_gate_is_asked_for_every_path() {
    let (address, _) = start(Arc::new(OnePage), &Metrics::new().unwrap(), 10.0).await;
    assert!(get(address, "/metrics").await.starts_with("HTTP/1.1 200"));
    let forbidden = get(address, "/readyz").await;
    assert!(forbidden.starts_with("HTTP/1.1 403") && forbidden.ends_with("not you\n"), "{forbidden}");
    let often = get(address, "/healthz").await;
    assert!(often.starts_with("HTTP/1.1 429") && often.contains("retry-after: 5\r\n"), "{often}");
    let unknown = get(address, "/other").await;
    assert!(unknown.starts_with("HTTP/1.1 401") && unknown.contains("www-authenticate: Bearer"), "{unknown}");
}

#[tokio::test]
async fn a_request_that_comes_too_slowly_is_closed_and_counted() {
    let metrics = Metrics::new().unwrap();
    let (address, _) =
        start(Arc::new(Access::plain(metrics.clone(), &LimitSettings::default())), &metrics, 0.3).await;
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

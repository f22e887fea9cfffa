//! The page's API over real HTTP, as browsers and others who may not use it.

mod calls;
mod crowd;
mod events;
mod files;
mod logins;

use ringtune_proto::v1;
use ringtune_shared::daemon::settings::TlsMode;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::{coordinator::Coordinator, soon, tls::connector};

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Somebody who makes requests, each over a connection of its own.
#[derive(Clone)]
struct Browser {
    address: std::net::SocketAddr,
    tls: Option<TlsConnector>,
    /// Headers of all requests.
    headers: Vec<(String, String)>,
}

/// An answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Of a coordinator that speaks TLS on loopback.
async fn secured() -> Coordinator {
    Coordinator::fresh_with(|settings| settings.security.tls = TlsMode::On).await
}

impl Browser {
    /// Without a certificate.
    fn of(coordinator: &Coordinator) -> Self {
        Self::with_identity(coordinator, "")
    }

    /// `identity`: key and certificates, PEM.
    fn with_identity(coordinator: &Coordinator, identity: &str) -> Self {
        let tls = coordinator.pki.as_ref().map(|pki| connector(&pki.trust().roots(), identity));
        Self { address: coordinator.http, tls, headers: Vec::new() }
    }

    fn and(&self, name: &str, value: &str) -> Self {
        let mut more = self.clone();
        more.headers.push((name.to_owned(), value.to_owned()));
        more
    }

    /// As the page sends it, which says from where.
    fn by_cookie(&self, token: &str) -> Self {
        self.and("cookie", &format!("__Host-ringtune={token}")).and("sec-fetch-site", "same-origin")
    }

    fn by_bearer(&self, token: &str) -> Self {
        self.and("authorization", &format!("Bearer {token}"))
    }

    async fn open(&self, method: &str, path: &str, body: &[u8]) -> BufReader<Box<dyn Wire>> {
        let tcp = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut wire: Box<dyn Wire> = match &self.tls {
            Some(tls) => Box::new(soon("a handshake", tls.connect(name, tcp)).await.unwrap()),
            None => Box::new(tcp),
        };
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        let mut own = vec![("host".to_owned(), format!("localhost:{}", self.address.port()))];
        if method == "POST" {
            own.push(("content-type".to_owned(), "application/json".to_owned()));
            own.push(("content-length".to_owned(), body.len().to_string()));
        }
        // Given headers replace the defaults.
        own.retain(|(name, _)| !self.headers.iter().any(|(other, _)| other == name));
        for (name, value) in own.iter().chain(&self.headers) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        wire.write_all(&[head.as_bytes(), b"\r\n", body].concat()).await.unwrap();
        wire.flush().await.unwrap();
        BufReader::new(wire)
    }

    async fn send(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let mut wire = self.open(method, path, body).await;
        let (status, head) = soon(path, read_head(&mut wire)).await;
        let mut body = Vec::new();
        // A connection that ends without a TLS close is complete.
        let _ = soon(path, wire.read_to_end(&mut body)).await;
        let answer = Answer { status, head, body };
        let length = answer.header("content-length").map(|length| length.parse::<usize>().unwrap());
        if let Some(length) = length.filter(|_| method != "HEAD" && status != 304) {
            assert_eq!(answer.body.len(), length, "{path} broke off");
        }
        answer
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, b"").await
    }

    /// Makes a call: "JobService/GetJob".
    async fn call(&self, method: &str, json: &str) -> Answer {
        self.send("POST", &format!("/api/ringtune.v1.{method}"), json.as_bytes()).await
    }

    /// A stream of events.
    async fn events(&self, query: &str) -> Events {
        let path = format!("/api/events{query}");
        let mut wire = self.open("GET", &path, b"").await;
        let (status, _) = soon("the beginning of events", read_head(&mut wire)).await;
        assert_eq!(status, 200);
        Events { wire, text: String::new() }
    }
}

async fn read_head(wire: &mut BufReader<Box<dyn Wire>>) -> (u16, Vec<(String, String)>) {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        wire.read_line(&mut line).await.unwrap();
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let status = lines[0].split(' ').nth(1).unwrap().parse().unwrap();
    let split =
        |line: &String| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
    (status, lines[1..].iter().filter_map(split).collect())
}

/// A stream of events, while it lasts.
struct Events {
    wire: BufReader<Box<dyn Wire>>,
    text: String,
}

/// An event.
#[derive(Debug)]
struct Event {
    name: String,
    id: Option<u64>,
    data: Value,
}

impl Events {
    /// The next event; none at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                self.text = rest.to_owned();
                let field = |name: &str| {
                    block
                        .lines()
                        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned))
                };
                if let (Some(name), Some(data)) = (field("event"), field("data")) {
                    let id = field("id").map(|id| id.parse().unwrap());
                    return Some(Event { name, id, data: serde_json::from_str(&data).unwrap() });
                }
            }
            let mut size = String::new();
            if soon("an event", self.wire.read_line(&mut size)).await.ok()? == 0 {
                return None;
            }
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            let mut bytes = vec![0; size + 2];
            soon("an event's rest", self.wire.read_exact(&mut bytes)).await.ok()?;
            if size == 0 {
                return None;
            }
            self.text.push_str(std::str::from_utf8(&bytes[..size]).unwrap());
        }
    }

    /// Waits for one of which something is true.
    async fn until(&mut self, name: &str, is: impl Fn(&Value) -> bool) -> Event {
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("the events ended before {name}"));
            if event.name == name && is(&event.data) {
                return event;
            }
        }
    }

    /// Why the stream ends; then it does.
    async fn end(mut self) -> String {
        let reason = self.until("end", |_| true).await.data["reason"].as_str().unwrap().to_owned();
        assert!(self.next().await.is_none());
        reason
    }
}

impl Coordinator {
    /// An access token.
    async fn token(&self, role: v1::Role, name: &str) -> v1::CreateTokenResponse {
        let kind = v1::create_token_request::Kind::Access.into();
        let name = name.to_owned();
        let request = v1::CreateTokenRequest { kind, role: role.into(), name, ..Default::default() };
        let mut access = v1::access_service_client::AccessServiceClient::new(self.channel.clone());
        access.create_token(request).await.unwrap().into_inner()
    }
}

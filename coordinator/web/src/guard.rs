//! What a web site elsewhere could make a browser send here is refused.
//!
//! A page of `evil.example` can send requests to 127.0.0.1 from the browser of whoever looks at it, and with a name that
//! it lets point there (DNS rebinding) it could read the answers, too. So a request has to be meant for this host by a
//! name that belongs to it, and what changes something has to come from its own page, also on loopback.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, Method, StatusCode, Uri};

use crate::{answer, cookie};

/// For probes, which reach the port by whatever name and learn nothing that is secret.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];
/// What programs alone ask for: where the port asks who they are, by whatever name. No site has their token, and a browser shows
/// no certificate to a name that the coordinator's is not for. Where nobody is asked, a site could read it.
const FOR_PROGRAMS: [&str; 2] = ["/metrics", "/sd"];
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// How this host is reached: by its names, besides `localhost` and addresses, and with TLS or without.
#[derive(Clone, Default)]
pub struct Names {
    secured: bool,
    fixed: Arc<[String]>,
    /// Also those for which this is true: of a certificate that may be replaced.
    more: Option<Arc<IsName>>,
}

/// Whether a name, in lower case, is one of this host's.
type IsName = dyn Fn(&str) -> bool + Send + Sync;

impl Names {
    /// These, whatever their case.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let fixed = names.into_iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { secured: false, fixed, more: None }
    }

    /// And over TLS alone, where everybody is asked who they are.
    #[must_use]
    pub fn over_tls(self) -> Self {
        Self { secured: true, ..self }
    }

    /// And those for which this is true just now. It is given a name in lower case.
    #[must_use]
    pub fn and(self, is_name: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { more: Some(Arc::new(is_name)), ..self }
    }

    /// An address cannot be made to point elsewhere.
    fn has(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
        host == "localhost"
            || address.parse::<IpAddr>().is_ok()
            || self.fixed.contains(&host)
            || self.more.as_ref().is_some_and(|is_name| is_name(&host))
    }
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// 400, 403, 415 or 421.
    pub status: StatusCode,
    /// For people.
    pub text: String,
}

fn refuse<T>(status: StatusCode, text: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { status, text: text.into() })
}

/// Whether a request may come from where it comes.
///
/// # Errors
/// Why not.
pub fn check(names: &Names, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
    if PROBES.contains(&uri.path()) || (names.secured && is_for_programs(uri.path())) {
        return Ok(());
    }
    // 1. For whom is it?
    let host = host(uri, headers)?;
    if !names.has(host.host()) {
        let text = format!(
            "Host: got {:?}; allowed: addresses, localhost, the coordinator's host name, the names in its certificate and \
             those in its setting authority.names: add it there, if that is how the coordinator is reached",
            host.host()
        );
        return refuse(StatusCode::MISDIRECTED_REQUEST, text);
    }
    // 2. From where does it come?
    let reads = method == Method::GET || method == Method::HEAD;
    if reads && !uri.path().starts_with("/api/") {
        return Ok(());
    }
    if let Some(origin) = headers.get(ORIGIN)
        && !is_same(origin.as_bytes(), &host, names.secured)
    {
        let scheme = if names.secured { "https" } else { "http" };
        return refuse(
            StatusCode::FORBIDDEN,
            format!("Origin: got {origin:?}; allowed: this page's own, {scheme}://{host}"),
        );
    }
    if let Some(site) = headers.get(FETCH_SITE)
        && !(site == "same-origin" || (reads && site == "none"))
    {
        return refuse(
            StatusCode::FORBIDDEN,
            format!("Sec-Fetch-Site: got {site:?}; allowed: \"same-origin\""),
        );
    }
    // A browser sends its cookie by itself, and says with it from where: whoever does not say is none, and has its token as a header.
    let says_where = headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE);
    if !reads && !says_where && cookie::token(headers).is_some() && !headers.contains_key(AUTHORIZATION) {
        return refuse(
            StatusCode::FORBIDDEN,
            "Origin: is missing; allowed with a cookie: this page's own. Programs send \"Authorization: Bearer TOKEN\" instead",
        );
    }
    // 3. A form of another site cannot send these types without asking first.
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_message = answer::is_type(kind, "application/json")
        || (uri.path().starts_with("/api/") && answer::is_type(kind, answer::PROTO));
    if !reads && !is_message {
        let text = format!("Content-Type: got {kind:?}; allowed: \"application/json\"");
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
    }
    Ok(())
}

/// One of them, or below it.
fn is_for_programs(path: &str) -> bool {
    let rest = FOR_PROGRAMS.into_iter().find_map(|place| path.strip_prefix(place));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The host and port that a request is for.
fn host(uri: &Uri, headers: &HeaderMap) -> Result<Authority, Refused> {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return refuse(StatusCode::BAD_REQUEST, "Host: is missing, or came twice; allowed: once");
    };
    let parsed = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    // After a "]" there is a port or nothing: what is read as the host would be an address, and the name another one.
    let is_whole = |host: &Authority| {
        let rest = host.as_str().strip_prefix(host.host());
        rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with(':') && host.port_u16().is_some()))
    };
    let Some(parsed) = parsed.filter(is_whole) else {
        return refuse(
            StatusCode::BAD_REQUEST,
            format!("Host: got {host:?}; allowed: a name or an address, and a port"),
        );
    };
    if uri.authority().is_some_and(|authority| *authority != parsed) {
        return refuse(
            StatusCode::BAD_REQUEST,
            format!("Host: got {host:?}, and another one in the request's target"),
        );
    }
    Ok(parsed)
}

/// Whether an origin ("https://node-1:7071") is this host and port. A page that came in the clear is not the one of a port that
/// speaks TLS. The other way round it is: something before this port may speak TLS for it.
fn is_same(origin: &[u8], host: &Authority, secured: bool) -> bool {
    let Ok(Ok(origin)) = std::str::from_utf8(origin).map(str::parse::<Uri>) else { return false };
    let (Some(scheme), Some(authority)) = (origin.scheme_str(), origin.authority()) else { return false };
    let default = match scheme {
        "http" if !secured => 80,
        "https" => 443,
        _ => return false,
    };
    let port = |authority: &Authority| authority.port_u16().unwrap_or(default);
    authority.host().eq_ignore_ascii_case(host.host()) && port(authority) == port(host)
}

/// The guard around a router; and what every answer says to browsers.
pub async fn guard(State(names): State<Names>, request: Request, next: Next) -> Response {
    let is_page = matches!(request.uri().path(), "/") || request.uri().path().starts_with("/assets/");
    let mut response = match check(&names, request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(Refused { status, text }) if is_page => (status, format!("{text}\n")).into_response(),
        Err(Refused { status, text }) => answer::refused(status, &text),
    };
    answer::for_browsers(response.headers_mut());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        status_at(Names::default(), method, path, headers)
    }

    fn status_at(names: Names, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        let own = Names::new(["Node-1".to_owned(), "ringtune.example".to_owned()]);
        let names = Names { secured: names.secured, ..own.and(|name| name == "of.certificate") };
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        let checked = check(&names, &method.parse().unwrap(), &path.parse().unwrap(), &map);
        checked.map_or_else(|refused| refused.status.as_u16(), |()| 200)
    }

    #[test]
    fn a_request_is_for_a_name_of_this_host() {
        let own = [
            "localhost",
            "LOCALHOST:7071",
            "127.0.0.1",
            "10.0.0.7:80",
            "[::1]:7071",
            "[::1]",
            "node-1",
            "NODE-1.:7071",
        ];
        for host in own.into_iter().chain(["ringtune.example:443", "of.CERTIFICATE.:7071"]) {
            assert_eq!(status("GET", "/", &[("host", host)]), 200, "{host}");
        }
        let rebound =
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "xlocalhost", "node-1.evil"];
        let secured = || Names::default().over_tls();
        for host in rebound {
            assert_eq!(status("GET", "/", &[("host", host)]), 421, "{host}");
            assert_eq!(status("GET", "/api/session", &[("host", host)]), 421, "{host}");
            assert_eq!(status("GET", "/healthz", &[("host", host)]), 200, "{host}");
            assert_eq!(status("GET", "/metrics", &[("host", host)]), 421, "{host}");
            assert_eq!(status_at(secured(), "GET", "/metrics", &[("host", host)]), 200, "{host}");
            assert_eq!(status_at(secured(), "GET", "/sd/workers", &[("host", host)]), 200, "{host}");
            assert_eq!(status_at(secured(), "GET", "/sdx", &[("host", host)]), 421, "{host}");
            assert_eq!(status_at(secured(), "GET", "/api/session", &[("host", host)]), 421, "{host}");
        }
        let glued =
            ["[::1].evil.example", "[::1].evil.example:7071", "[::1]evil:1", "localhost:", "localhost:70710"];
        for broken in ["", "a b", "user@localhost", "localhost:x:y", "http://localhost/", "\u{fc}"]
            .into_iter()
            .chain(glued)
        {
            assert_eq!(status("GET", "/", &[("host", broken)]), 400, "{broken}");
        }
        assert_eq!(status("GET", "/", &[]), 400);
        assert_eq!(status("GET", "/", &[("host", "localhost"), ("host", "localhost")]), 400);
        assert_eq!(status("GET", "http://localhost/", &[("host", "localhost")]), 200);
        assert_eq!(status("GET", "http://evil.example/", &[("host", "localhost")]), 400);
    }

    #[test]
    fn what_changes_something_comes_from_its_own_page() {
        let post = |more: &[(&str, &str)]| {
            let own = [("host", "127.0.0.1:7071"), ("content-type", "application/json")];
            status("POST", "/api/ringtune.v1.JobService/CancelJob", &[&own, more].concat())
        };
        assert_eq!(post(&[]), 200, "a program sends neither");
        assert_eq!(post(&[("origin", "http://127.0.0.1:7071"), ("sec-fetch-site", "same-origin")]), 200);
        for origin in [
            "null",
            "http://evil.example",
            "http://127.0.0.1:7072",
            "http://127.0.0.1",
            "https://localhost:7071",
            "http://127.0.0.1:7071.evil.example",
            "file://127.0.0.1:7071",
            "127.0.0.1:7071",
            "",
        ] {
            assert_eq!(post(&[("origin", origin)]), 403, "{origin}");
        }
        for site in ["cross-site", "same-site", "none", ""] {
            assert_eq!(post(&[("sec-fetch-site", site)]), 403, "{site}");
        }
        // Over TLS a page that came in the clear is another one; before a port without, something may speak TLS.
        let over = |names: Names, origin| {
            let own = [("host", "node-1:7071"), ("content-type", "application/json"), ("origin", origin)];
            status_at(names, "POST", "/api/ringtune.v1.JobService/CancelJob", &own)
        };
        let secured = || Names::default().over_tls();
        assert_eq!(
            (over(secured(), "https://node-1:7071"), over(secured(), "http://node-1:7071")),
            (200, 403)
        );
        let plain =
            ["http://node-1:7071", "https://node-1:7071"].map(|origin| over(Names::default(), origin));
        assert_eq!(plain, [200, 200]);
        // A cookie alone says nothing of who sent it.
        let cookie = ("cookie", "a=b; __Host-ringtune=rta1.x");
        assert_eq!((post(&[cookie]), post(&[("cookie", "a=b")])), (403, 200));
        assert_eq!(post(&[cookie, ("origin", "http://127.0.0.1:7071")]), 200);
        assert_eq!(post(&[cookie, ("sec-fetch-site", "same-origin")]), 200);
        assert_eq!(post(&[cookie, ("authorization", "Bearer rta1.x")]), 200);
        let typed = |kind| status("POST", "/login", &[("host", "localhost"), ("content-type", kind)]);
        assert_eq!((typed("application/json; charset=utf-8"), typed("Application/JSON")), (200, 200));
        for kind in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "",
            "application/jsonx",
        ] {
            assert_eq!(typed(kind), 415, "{kind}");
        }
        assert_eq!(status("POST", "/logout", &[("host", "localhost")]), 415);
        assert_eq!((typed("application/proto"), post(&[])), (415, 200));
        let binary = [("host", "localhost"), ("content-type", "application/proto")];
        assert_eq!(status("POST", "/api/ringtune.v1.JobService/GetJob", &binary), 200);
    }

    #[test]
    fn others_read_no_data_but_may_link_to_the_page() {
        let get = |path, site| status("GET", path, &[("host", "localhost"), ("sec-fetch-site", site)]);
        assert_eq!((get("/", "cross-site"), get("/assets/page.css", "same-origin")), (200, 200));
        assert_eq!((get("/api/events", "same-origin"), get("/api/events", "none")), (200, 200));
        assert_eq!((get("/api/events", "cross-site"), get("/api/files/a/b", "same-site")), (403, 403));
    }

    #[test]
    fn a_default_port_need_not_be_said() {
        let same = |origin: &str, host: &str| is_same(origin.as_bytes(), &host.parse().unwrap(), false);
        assert!(
            same("https://node-1", "node-1:443")
                && same("https://node-1:443", "node-1")
                && same("http://A", "a:80")
        );
        assert!(!same("https://node-1", "node-1:80") && !same("http://node-1:443", "node-1"));
    }
}

//! The cookie of a login: the access token itself, so that it outlives a coordinator's restart and a revoked one ends at
//! once.

use std::time::Duration;

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

/// Browsers take a name that begins so over TLS alone, for this host alone and for all its paths.
const NAME: &str = "__Host-ringtune";
/// Browsers keep no cookie for longer.
const LONGEST: Duration = Duration::from_secs(400 * 24 * 3600);
const RULES: &str = "HttpOnly; Secure; SameSite=Strict; Path=/";

/// The token of a request's cookie; the first, where there are several.
pub(crate) fn token(headers: &HeaderMap) -> Option<&str> {
    headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|header| header.to_str().ok())
        .flat_map(|text| text.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(NAME)?.strip_prefix('='))
        .filter(|token| !token.is_empty())
}

/// Has the browser keep a token for so long. None: it has characters that a cookie cannot have.
pub(crate) fn set(token: &str, left: Duration) -> Option<HeaderValue> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_~+/=".contains(&byte);
    let age = left.min(LONGEST).as_secs();
    let text = format!("{NAME}={token}; {RULES}; Max-Age={age}");
    if token.is_empty() || !token.bytes().all(fits) {
        return None;
    }
    HeaderValue::from_str(&text).ok()
}

/// Has the browser forget it.
pub(crate) fn gone() -> HeaderValue {
    HeaderValue::from_static("__Host-ringtune=; HttpOnly; Secure; SameSite=Strict; Path=/; Max-Age=0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_found_among_other_cookies() {
        let of = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(COOKIE, HeaderValue::from_str(line).unwrap());
            }
            token(&headers).map(str::to_owned)
        };
        let found = Some("rta1.a-b_c=".to_owned());
        assert_eq!(of(&["__Host-ringtune=rta1.a-b_c="]), found);
        assert_eq!(of(&["a=b;c; __Host-ringtune=rta1.a-b_c=;d=e"]), found);
        assert_eq!(of(&["a=b", " __Host-ringtune=rta1.a-b_c="]), found);
        for none in
            ["", "__Host-ringtune", "__Host-ringtune=", "x__Host-ringtune=a", "__host-ringtune=a", ";;="]
        {
            assert_eq!(of(&[none]), None, "{none}");
        }
    }

    #[test]
    fn a_cookie_is_for_this_host_over_tls_and_for_no_other_site() {
        let set_to = set("rta1.x", Duration::from_secs(60)).unwrap();
        let expected = "__Host-ringtune=rta1.x; HttpOnly; Secure; SameSite=Strict; Path=/; Max-Age=60";
        assert_eq!(set_to, expected);
        assert!(set("rta1.x", Duration::MAX).unwrap().to_str().unwrap().ends_with("Max-Age=34560000"));
        assert!(gone().to_str().unwrap().contains(RULES));
        for bad in ["", "a;b", "a b", "a\r\nb", "ü", "a,b", "a\"b"] {
            assert_eq!(set(bad, Duration::MAX), None, "{bad:?}");
        }
    }
}

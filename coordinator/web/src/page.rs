//! The page's own files, which are in the program.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};
use sha2::{Digest as _, Sha256};

use crate::answer;

/// Names and bytes.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/page.rs"));
const INDEX: &str = "index.html";
/// Nothing from elsewhere, no script or style that is not a file of its own, and no text that becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the page.
#[derive(Debug, Clone)]
struct File {
    kind: &'static str,
    etag: HeaderValue,
    bytes: Bytes,
}

/// All files of the page.
#[derive(Debug)]
pub struct Pages(BTreeMap<&'static str, File>);

impl Pages {
    /// Those that the program was built with.
    pub fn new() -> Self {
        let file = |(name, bytes): &(&'static str, &'static [u8])| {
            let bytes = Bytes::from_static(bytes);
            let etag = HeaderValue::try_from(format!("\"{}\"", hex::encode(Sha256::digest(&bytes))));
            let etag = etag.unwrap_or_else(|_| HeaderValue::from_static("\"\""));
            (*name, File { kind: media_type(name), etag, bytes })
        };
        Self(FILES.iter().map(file).collect())
    }

    fn answer(&self, name: &str, asked: &HeaderMap) -> Response {
        let Some(file) = self.0.get(name) else {
            return answer::refused(StatusCode::NOT_FOUND, &format!("the page has no file {name:?}"));
        };
        let known = asked.get(IF_NONE_MATCH).is_some_and(|etag| etag == file.etag);
        let mut response = Response::new(if known { Body::empty() } else { Body::from(file.bytes.clone()) });
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        headers.insert(ETAG, file.etag.clone());
        response
    }
}

/// `/`.
pub async fn index(State(pages): State<Arc<Pages>>, asked: HeaderMap) -> Response {
    pages.answer(INDEX, &asked)
}

/// `/assets/NAME`.
pub async fn asset(State(pages): State<Arc<Pages>>, Path(name): Path<String>, asked: HeaderMap) -> Response {
    pages.answer(&name, &asked)
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/vnd.microsoft.icon",
        "json" | "webmanifest" => "application/json",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_their_types_and_are_sent_once() {
        let pages = Pages::new();
        let index = pages.answer(INDEX, &HeaderMap::new());
        assert_eq!(index.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        assert!(index.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().contains("default-src 'none'"));
        let mut asked = HeaderMap::new();
        asked.insert(IF_NONE_MATCH, index.headers()[ETAG].clone());
        assert_eq!(pages.answer(INDEX, &asked).status(), 304);
        assert_ne!(pages.0[INDEX].etag, pages.0["main.js"].etag);
        for missing in ["", "..", "../Cargo.toml", "index.html/", "\0"] {
            assert_eq!(pages.answer(missing, &HeaderMap::new()).status(), 404, "{missing:?}");
        }
        for (name, file) in &pages.0 {
            assert_ne!(file.kind, "application/octet-stream", "{name} has no type here");
        }
    }
}

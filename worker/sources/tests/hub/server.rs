//! A small hub: the routes of the real one, and a second server where large files lie.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, Response, StatusCode, header},
};
use sha1::{Digest as _, Sha1};
use sha2::Sha256;
use tokio::net::TcpListener;

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const UNET: &str = "unet/diffusion_pytorch_model.safetensors";

/// A received request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) at_storage: bool,
}

/// Faults, each injected once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The connection ends after so many bytes of the UNet's weights.
    CutAfter(usize),
    /// Nothing more comes after so many bytes.
    StallAfter(usize),
}

#[derive(Default)]
struct Inner {
    files: BTreeMap<String, Vec<u8>>,
    /// Sent instead of what was announced.
    wrong: BTreeMap<String, Vec<u8>>,
    listed_too: Vec<String>,
    token: Option<String>,
    storage: String,
    troubles: Vec<Trouble>,
    seen: Vec<Seen>,
}

#[derive(Clone)]
pub(crate) struct Hub {
    inner: Arc<Mutex<Inner>>,
    pub(crate) endpoint: String,
}

#[derive(Clone)]
struct Place {
    inner: Arc<Mutex<Inner>>,
    is_storage: bool,
}

impl Hub {
    /// Serves acme/toy-sd with small files, and weights of different sizes.
    pub(crate) async fn start() -> Self {
        let mut files = BTreeMap::new();
        let names = "model_index.json scheduler/scheduler_config.json text_encoder/config.json unet/config.json \
            vae/config.json tokenizer/added_tokens.json tokenizer/merges.txt tokenizer/special_tokens_map.json \
            tokenizer/tokenizer.json tokenizer/tokenizer_config.json tokenizer/vocab.json README.md";
        for name in names.split(' ') {
            files.insert(name.to_owned(), format!("{{\"name\": \"{name}\"}}").into_bytes());
        }
        let weights = [
            ("text_encoder/model.safetensors", 3_000),
            (UNET, 300_000),
            ("vae/diffusion_pytorch_model.safetensors", 5_000),
            ("unet/diffusion_pytorch_model.bin", 100),
            ("safety_checker/model.safetensors", 100),
        ];
        for (name, size) in weights {
            files.insert(name.to_owned(), (0..size).map(|n| (n * 31 % 251) as u8).collect());
        }
        let inner = Arc::new(Mutex::new(Inner { files, ..Inner::default() }));
        let endpoint = serve(Place { inner: Arc::clone(&inner), is_storage: false }).await;
        let storage = serve(Place { inner: Arc::clone(&inner), is_storage: true }).await;
        inner.lock().unwrap().storage = storage;
        Self { inner, endpoint }
    }

    /// Serves these files too, in the same repository.
    pub(crate) fn add(&self, name: &str, content: &[u8]) {
        self.inner.lock().unwrap().files.insert(name.to_owned(), content.to_vec());
    }

    pub(crate) fn require_token(&self, token: &str) {
        self.inner.lock().unwrap().token = Some(token.to_owned());
    }

    pub(crate) fn trouble(&self, trouble: Trouble) {
        self.inner.lock().unwrap().troubles.push(trouble);
    }

    pub(crate) fn send_instead(&self, name: &str, content: Option<Vec<u8>>) {
        let wrong = &mut self.inner.lock().unwrap().wrong;
        match content {
            Some(content) => drop(wrong.insert(name.to_owned(), content)),
            None => wrong.clear(),
        }
    }

    pub(crate) fn list_too(&self, name: &str) {
        self.inner.lock().unwrap().listed_too.push(name.to_owned());
    }

    pub(crate) fn file(&self, name: &str) -> Vec<u8> {
        self.inner.lock().unwrap().files[name].clone()
    }

    /// The requests since the last call.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.inner.lock().unwrap().seen)
    }
}

async fn serve(place: Place) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(
        async move { axum::serve(listener, Router::new().fallback(answer).with_state(place)).await },
    );
    format!("http://{address}")
}

async fn answer(State(place): State<Place>, request: Request) -> Response<Body> {
    let headers = request.headers().clone();
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let path = request.uri().path().to_owned();
    let seen = Seen {
        method: request.method().clone(),
        path: path.clone(),
        range: text(header::RANGE),
        token: text(header::AUTHORIZATION),
        at_storage: place.is_storage,
    };
    let mut inner = place.inner.lock().unwrap();
    inner.seen.push(seen.clone());
    if place.is_storage {
        return content(&mut inner, path.trim_start_matches('/'), &headers, seen.method == Method::HEAD);
    }
    if let Some(wanted) = &inner.token
        && seen.token != Some(format!("Bearer {wanted}"))
    {
        let code = if seen.token.is_none() { "RepoNotFound" } else { "" };
        return refuse(StatusCode::UNAUTHORIZED, code);
    }
    // A set of data of the same name has the same files.
    let path = path.replace("/api/datasets/", "/api/models/");
    let path = path.strip_prefix("/datasets").unwrap_or(&path);
    if let Some(revision) = path.strip_prefix("/api/models/acme/toy-sd/revision/") {
        let known = ["main", "refs%2Fpr%2F1", COMMIT];
        return if known.contains(&revision) {
            listing(&inner)
        } else {
            refuse(StatusCode::NOT_FOUND, "RevisionNotFound")
        };
    }
    let Some(name) = path.strip_prefix(&format!("/acme/toy-sd/resolve/{COMMIT}/")) else {
        return refuse(StatusCode::NOT_FOUND, "RepoNotFound");
    };
    if name.ends_with(".safetensors") {
        let Some(file) = inner.files.get(name) else { return refuse(StatusCode::NOT_FOUND, "EntryNotFound") };
        return Response::builder()
            .status(StatusCode::FOUND)
            .header(header::LOCATION, format!("{}/{name}?signature=secret", inner.storage))
            .header("x-repo-commit", COMMIT)
            .header("x-linked-size", file.len())
            .header("x-linked-etag", format!("\"{}\"", hex::encode(Sha256::digest(file))))
            .body(Body::empty())
            .unwrap();
    }
    content(&mut inner, name, &headers, seen.method == Method::HEAD)
}

fn listing(inner: &Inner) -> Response<Body> {
    let names = inner.files.keys().chain(&inner.listed_too);
    let siblings: Vec<_> = names.map(|name| serde_json::json!({"rfilename": name})).collect();
    let answer = serde_json::json!({"id": "acme/toy-sd", "sha": COMMIT, "siblings": siblings});
    Response::new(Body::from(answer.to_string()))
}

fn content(inner: &mut Inner, name: &str, headers: &HeaderMap, head: bool) -> Response<Body> {
    let Some(file) = inner.files.get(name) else { return refuse(StatusCode::NOT_FOUND, "EntryNotFound") };
    let etag = hex::encode(Sha1::digest([format!("blob {}\0", file.len()).as_bytes(), file].concat()));
    let file = inner.wrong.get(name).unwrap_or(file).clone();
    let begin: usize = headers
        .get(header::RANGE)
        .and_then(|range| range.to_str().ok()?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok())
        .unwrap_or(0);
    let mut answer = Response::builder()
        .header("x-repo-commit", COMMIT)
        .header(header::ETAG, format!("\"{etag}\""))
        .header(header::CONTENT_LENGTH, file.len() - begin);
    if begin > 0 {
        let range = format!("bytes {begin}-{}/{}", file.len() - 1, file.len());
        answer = answer.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, range);
    }
    let rest = file[begin..].to_vec();
    let body = match (head, name == UNET && !inner.troubles.is_empty()) {
        (true, _) => Body::empty(),
        (false, false) => Body::from(rest),
        (false, true) => troubled(rest, inner.troubles.remove(0)),
    };
    answer.body(body).unwrap()
}

fn troubled(rest: Vec<u8>, trouble: Trouble) -> Body {
    use futures::{StreamExt as _, stream};
    let first =
        |bytes: usize| Ok::<_, std::io::Error>(Bytes::copy_from_slice(&rest[..bytes.min(rest.len())]));
    match trouble {
        Trouble::CutAfter(bytes) => {
            // The bytes sent before have to be in flight when the connection ends.
            let end = async {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                Err(std::io::Error::other("cut"))
            };
            Body::from_stream(stream::iter([first(bytes)]).chain(stream::once(end)))
        }
        Trouble::StallAfter(bytes) => {
            Body::from_stream(stream::iter([first(bytes)]).chain(stream::pending()))
        }
    }
}

fn refuse(status: StatusCode, code: &str) -> Response<Body> {
    Response::builder().status(status).header("x-error-code", code).body(Body::from("no")).unwrap()
}

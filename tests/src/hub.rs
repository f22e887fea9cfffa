//! A model hub of this machine, with one repository: the routes that fetching uses.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{Response, StatusCode, header},
};
use ringtune_shared::ids::ContentHash;
use tokio::net::TcpListener;

use crate::places;

/// The commit that is everything there is.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The repository.
pub const REPOSITORY: &str = "acme/toy-sd";

/// A running hub; it ends with the test.
#[derive(Debug, Clone)]
pub struct Hub {
    /// For HF_ENDPOINT.
    pub endpoint: String,
    sent: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone)]
struct Served {
    files: Arc<BTreeMap<String, Vec<u8>>>,
    token: String,
    sent: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    /// Serves a folder to whoever has the token.
    pub async fn start(folder: &Path, token: &str) -> Result<Self> {
        let files = Arc::new(files_below(folder)?);
        let sent = Arc::new(Mutex::new(Vec::new()));
        let served = Served { files, token: token.to_owned(), sent: Arc::clone(&sent) };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let router = Router::new().fallback(answer).with_state(served);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { endpoint, sent })
    }

    /// The names of the files whose contents were sent.
    pub fn sent(&self) -> Vec<String> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Fills a hub's cache in which "main" is the toy checkpoint, with one byte of its weights changed by `change`.
/// `home`: for HF_HOME.
pub fn fill_cache(home: &Path, change: u8) -> Result<()> {
    let repository = home.join("hub").join(format!("models--{}", REPOSITORY.replace('/', "--")));
    for (name, mut content) in files_below(&places::toy_checkpoint())? {
        if name == "unet/diffusion_pytorch_model.safetensors" {
            let last = content.last_mut().context("a byte")?;
            *last ^= change;
        }
        let file = repository.join("snapshots").join(COMMIT).join(name);
        std::fs::create_dir_all(file.parent().context("a folder")?)?;
        std::fs::write(file, content)?;
    }
    std::fs::create_dir_all(repository.join("refs"))?;
    Ok(std::fs::write(repository.join("refs/main"), COMMIT)?)
}

/// The files below a folder, by their paths with slashes.
pub fn files_below(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let (mut files, mut open) = (BTreeMap::new(), vec![(folder.to_owned(), String::new())]);
    while let Some((folder, prefix)) = open.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                open.push((entry.path(), format!("{name}/")));
            } else {
                files.insert(name, std::fs::read(entry.path())?);
            }
        }
    }
    Ok(files)
}

async fn answer(State(served): State<Served>, request: Request) -> Response<Body> {
    let refuse = |status| response(status, Body::empty());
    let authorization = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if authorization != Some(&format!("Bearer {}", served.token)) {
        return refuse(StatusCode::UNAUTHORIZED);
    }
    let path = request.uri().path();
    if path == format!("/api/models/{REPOSITORY}/revision/main") {
        let siblings: Vec<_> =
            served.files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
        let listing = serde_json::json!({"sha": COMMIT, "siblings": siblings});
        return response(StatusCode::OK, Body::from(listing.to_string()));
    }
    let name = path.strip_prefix(&format!("/{REPOSITORY}/resolve/{COMMIT}/"));
    let Some((name, content)) = name.and_then(|name| Some((name, served.files.get(name)?))) else {
        return refuse(StatusCode::NOT_FOUND);
    };
    let is_head = request.method() == axum::http::Method::HEAD;
    if !is_head {
        served.sent.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
    }
    let body = if is_head { Body::empty() } else { Body::from(content.clone()) };
    let mut response = response(StatusCode::OK, body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, content.len().into());
    if let Ok(etag) = format!("\"{}\"", ContentHash::of(content)).parse() {
        headers.insert(header::ETAG, etag);
    }
    response
}

fn response(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

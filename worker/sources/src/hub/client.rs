//! The hub's routes: what a revision holds, what a file is, and its bytes.

use async_trait::async_trait;
use futures::{StreamExt as _, TryStreamExt as _};
use reqwest::{Client, Method, Response, StatusCode, Url, header};
use ringtune_shared::job::{HubModel, is_plain_name};
use serde::Deserialize;

use super::settings::HubSettings;
use crate::{
    Error,
    names::{MOST_FILES, check_listed},
    transfer::{Opened, Origin},
    web,
};

/// The largest answer that lists a repository.
const LARGEST_LISTING: usize = 32 << 20;
const MOST_REDIRECTS: usize = 5;

/// A revision's commit and files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listing {
    /// 40 hexadecimal digits.
    pub(crate) commit: String,
    /// Paths with slashes.
    pub(crate) files: Vec<String>,
}

/// The hub's facts of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFacts {
    /// Names the content; fit for a file's name.
    pub(crate) etag: String,
    pub(crate) size: u64,
}

/// Asks one hub.
#[derive(Clone, Debug)]
pub(crate) struct HubClient {
    client: Client,
    settings: HubSettings,
}

/// A file of a commit.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile<'a> {
    pub(crate) client: &'a HubClient,
    pub(crate) model: &'a HubModel,
    pub(crate) commit: &'a str,
    pub(crate) name: &'a str,
}

#[derive(Deserialize)]
struct ModelAnswer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl HubClient {
    pub(crate) fn new(settings: HubSettings) -> Result<Self, Error> {
        Ok(Self { client: web::client()?, settings })
    }

    /// The commit that a revision is now, and its files.
    pub(crate) async fn list(&self, model: &HubModel) -> Result<Listing, Error> {
        let revision = model.revision.replace('/', "%2F").replace('+', "%2B");
        // The name of a set of data says that it is one.
        let kind = if model.dataset().is_some() { "" } else { "models/" };
        let url = self.url(model, &format!("api/{kind}{}/revision/{revision}", model.repository))?;
        let response = self.follow(model, Method::GET, url, None).await?;
        let response = self.check(model, None, response)?;
        let bytes = limited(model, response).await?;
        let unreadable = |problem: String| Error::Unsuitable { place: model.to_string(), problem };
        let answer: ModelAnswer = serde_json::from_slice(&bytes)
            .map_err(|error| unreadable(format!("the hub's list of files cannot be read: {error}")))?;
        if !is_commit(&answer.sha) {
            return Err(unreadable("the hub names no commit".to_owned()));
        }
        if answer.siblings.len() > MOST_FILES {
            let count = answer.siblings.len();
            return Err(unreadable(format!("has {count} files; allowed: {MOST_FILES}")));
        }
        let files: Vec<String> = answer.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        files.iter().try_for_each(|name| check_listed(name)).map_err(unreadable)?;
        Ok(Listing { commit: answer.sha, files })
    }

    /// `path` below the endpoint.
    fn url(&self, model: &HubModel, path: &str) -> Result<Url, Error> {
        let text = format!("{}/{path}", self.settings.endpoint.as_str().trim_end_matches('/'));
        Url::parse(&text)
            .map_err(|error| Error::Refused { place: model.to_string(), problem: format!("no URL: {error}") })
    }

    /// Sends a request and goes where it is sent. HEAD stays at the hub: the headers that it is sent for are the
    /// hub's, not those of where the content lies.
    async fn follow(
        &self,
        model: &HubModel,
        method: Method,
        mut url: Url,
        offset: Option<u64>,
    ) -> Result<Response, Error> {
        for _ in 0..=MOST_REDIRECTS {
            let mut request = self.client.request(method.clone(), url.clone());
            request = request.header(header::ACCEPT_ENCODING, "identity");
            if let Some(offset) = offset.filter(|offset| *offset > 0) {
                request = request.header(header::RANGE, format!("bytes={offset}-"));
            }
            // The token is for the hub alone: where it sends us on to never sees it.
            if let Some(token) = self.settings.token.as_ref().filter(|_| self.is_hub(&url)) {
                request = request.bearer_auth(token.secret());
            }
            let response =
                request.send().await.map_err(|error| web::unreachable(model.to_string(), error))?;
            let Some(next) = redirect(&response).filter(|_| response.status().is_redirection()) else {
                return Ok(response);
            };
            let next = url.join(&next).ok().filter(|next| {
                matches!(next.scheme(), "http" | "https")
                    && !(url.scheme() == "https" && next.scheme() == "http")
            });
            let Some(next) = next else {
                let problem = "the hub sends us on to something that is no web address".to_owned();
                return Err(Error::Refused { place: model.to_string(), problem });
            };
            if method == Method::HEAD && !self.is_hub(&next) {
                return Ok(response);
            }
            url = next;
        }
        let problem = format!("the hub sends us on more than {MOST_REDIRECTS} times");
        Err(Error::Refused { place: model.to_string(), problem })
    }

    fn is_hub(&self, url: &Url) -> bool {
        url.origin() == self.settings.endpoint.origin()
    }

    /// Turns an unsuccessful answer into an error.
    fn check(&self, model: &HubModel, file: Option<&str>, response: Response) -> Result<Response, Error> {
        let status = response.status();
        let elsewhere = !self.is_hub(response.url());
        if status.is_success() || (status.is_redirection() && file.is_some()) {
            return Ok(response);
        }
        let what = file.map_or_else(|| model.to_string(), |file| format!("{model}: {file}"));
        let busy = status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        // Addresses of contents are signed and expire: the hub gives a fresh one.
        let expired = elsewhere && matches!(status, StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED);
        if busy || expired {
            return Err(Error::Unreachable { what, problem: format!("answered {status}") });
        }
        let code = response.headers().get("x-error-code").and_then(|code| code.to_str().ok()).unwrap_or("");
        let problem = self.explain(model, file, status, code);
        Err(Error::Refused { place: what, problem })
    }

    fn explain(&self, model: &HubModel, file: Option<&str>, status: StatusCode, code: &str) -> String {
        let with_token = self.settings.token.is_some();
        let endpoint = self.settings.endpoint.as_str().trim_end_matches('/');
        match (code, status, with_token) {
            ("GatedRepo", ..) => format!(
                "the repository is gated: accept its conditions at {endpoint}/{}, and give a token of that account in \
                 HF_TOKEN",
                model.repository
            ),
            ("RevisionNotFound", ..) => format!("the repository has no revision {:?}", model.revision),
            ("EntryNotFound", ..) => "the repository has no such file".to_owned(),
            (_, StatusCode::UNAUTHORIZED, true) => {
                format!(
                    "{endpoint} answered {status}: it does not accept the token of HF_TOKEN or the token file"
                )
            }
            ("RepoNotFound", ..)
            | (_, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND, _) => {
                let token = match (with_token, file) {
                    (true, _) => "the token of HF_TOKEN or the token file is not allowed to see it",
                    (false, _) => "it is private and needs a token in HF_TOKEN",
                };
                format!("{endpoint} answered {status}: there is no such repository or revision, or {token}")
            }
            _ => format!("{endpoint} answered {status}"),
        }
    }
}

impl RemoteFile<'_> {
    fn url(&self) -> Result<Url, Error> {
        let path = format!("{}/resolve/{}/{}", self.model.repository, self.commit, self.name);
        self.client.url(self.model, &path)
    }

    /// Asks the hub for its facts.
    pub(crate) async fn facts(&self) -> Result<FileFacts, Error> {
        let response = self.client.follow(self.model, Method::HEAD, self.url()?, None).await?;
        let response = self.client.check(self.model, Some(self.name), response)?;
        let header = |names: &[&str]| {
            names.iter().find_map(|name| response.headers().get(*name)?.to_str().ok()).map(str::to_owned)
        };
        let wrong = |problem: &str| Error::Unsuitable {
            place: self.model.to_string(),
            problem: format!("{}: {problem}", self.name),
        };
        if header(&["x-repo-commit"]).is_some_and(|commit| commit != self.commit) {
            return Err(wrong("the hub answers for another commit"));
        }
        let etag = header(&["x-linked-etag", "etag"]).unwrap_or_default();
        let etag = etag.strip_prefix("W/").unwrap_or(&etag).trim_matches('"').to_owned();
        // The length of an answer that only sends us on is not the file's.
        let sizes: &[&str] = match response.status().is_redirection() {
            true => &["x-linked-size"],
            false => &["x-linked-size", "content-length"],
        };
        let size = header(sizes).and_then(|size| size.parse().ok());
        match size {
            Some(size) if is_plain_name(&etag) => Ok(FileFacts { etag, size }),
            _ => Err(wrong("the hub says neither its ETag nor its size")),
        }
    }
}

#[async_trait]
impl Origin for RemoteFile<'_> {
    async fn open(&self, offset: u64) -> Result<Opened, Error> {
        let response = self.client.follow(self.model, Method::GET, self.url()?, Some(offset)).await?;
        let response = self.client.check(self.model, Some(self.name), response)?;
        let begins = match response.status() {
            StatusCode::PARTIAL_CONTENT => content_range_start(&response),
            _ => Some(0),
        };
        let what = format!("{}: {}", self.model, self.name);
        let Some(begins) = begins.filter(|begins| *begins == 0 || *begins == offset) else {
            let problem = format!("another part than the one from byte {offset} was sent");
            return Err(Error::Unreachable { what, problem });
        };
        let body =
            response.bytes_stream().map_err(move |error| web::unreachable(what.clone(), error)).boxed();
        Ok(Opened { offset: begins, body })
    }
}

/// Whether a text is a commit's name: 40 hexadecimal digits.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn redirect(response: &Response) -> Option<String> {
    response.headers().get(header::LOCATION)?.to_str().ok().map(str::to_owned)
}

/// "bytes 100-199/200" begins at 100.
fn content_range_start(response: &Response) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

async fn limited(model: &HubModel, response: Response) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut body = response.bytes_stream();
    while let Some(part) = body.next().await {
        bytes.extend_from_slice(&part.map_err(|error| web::unreachable(model.to_string(), error))?);
        if bytes.len() > LARGEST_LISTING {
            let problem = format!("the list of its files has more than {LARGEST_LISTING} bytes");
            return Err(Error::TooLarge { what: model.to_string(), problem });
        }
    }
    Ok(bytes)
}

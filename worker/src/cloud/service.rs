//! A metadata service, over HTTP.

use std::time::Duration;

use reqwest::{Client, Method, StatusCode, header::HeaderMap, redirect::Policy};

/// A service on the machine itself answers at once. One that hangs is asked again later.
const LIMIT: Duration = Duration::from_secs(2);
/// Their documents have a few kilobytes.
const LONGEST_ANSWER: usize = 64 << 10;

/// Why a service's word is not known.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// HTTP cannot be spoken.
    #[error("HTTP: {0}")]
    Client(reqwest::Error),
    /// No answer in time.
    #[error("{url} does not answer: {problem}")]
    Silent {
        /// What was asked.
        url: String,
        /// What happened.
        problem: String,
    },
    /// An answer that is none.
    #[error("{url} answers {status}")]
    Refused {
        /// What was asked.
        url: String,
        /// Of HTTP.
        status: StatusCode,
    },
    /// An answer that makes no sense.
    #[error("{url} makes no sense: {problem}")]
    Senseless {
        /// What was asked.
        url: String,
        /// What is wrong.
        problem: String,
    },
}

/// Asks one service.
#[derive(Clone, Debug)]
pub(super) struct Service {
    client: Client,
    endpoint: String,
}

impl Service {
    /// At `http://HOST[:PORT]`.
    pub(super) fn at(endpoint: &str) -> Result<Self, Trouble> {
        ringtune_security::use_ring();
        // It is beside the machine, and leads nowhere else.
        let builder = Client::builder().no_proxy().redirect(Policy::none()).timeout(LIMIT);
        let client = builder.build().map_err(Trouble::Client)?;
        Ok(Self { client, endpoint: endpoint.trim_end_matches('/').to_owned() })
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint)
    }

    /// The text of an answer; none: there is nothing of that name.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: String,
    ) -> Result<Option<String>, Trouble> {
        let url = self.url(path);
        let silent = |error: reqwest::Error| Trouble::Silent {
            url: url.clone(),
            problem: error.without_url().to_string(),
        };
        let request = self.client.request(method, &url).headers(headers).body(body);
        let mut answer = request.send().await.map_err(silent)?;
        match answer.status() {
            StatusCode::NOT_FOUND => return Ok(None),
            status if !status.is_success() => return Err(Trouble::Refused { url, status }),
            _ => {}
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(silent)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > LONGEST_ANSWER {
                let problem = format!("it has more than {LONGEST_ANSWER} bytes");
                return Err(Trouble::Senseless { url, problem });
            }
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Trouble::Senseless { url, problem: "it is no text".to_owned() }),
        }
    }

    /// Reads an answer; what is wrong with it is said with where it is from.
    pub(super) fn read<T>(&self, path: &str, read: Result<T, String>) -> Result<T, Trouble> {
        read.map_err(|problem| Trouble::Senseless { url: self.url(path), problem })
    }
}

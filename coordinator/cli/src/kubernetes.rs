//! Secrets of Kubernetes, as a pod writes them through its API server.

use std::{
    collections::BTreeMap,
    env, io,
    path::{Path, PathBuf},
    time::Duration,
};

use reqwest::{Certificate, Client, StatusCode, header};
use serde::Deserialize;
use serde_json::json;

/// Where a pod finds its service account.
pub const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// How long a call of the API server may take.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// The most of an answer that is shown.
const LONGEST_ANSWER: usize = 500;

/// Why a Secret was not written.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// Kubernetes tells its pods where the API server is.
    #[error("--kubernetes-secret: this is no pod of Kubernetes: {0} is not set")]
    NoPod(&'static str),
    /// The service account.
    #[error(
        "--kubernetes-secret: this pod has no service account: cannot read {}: {source}; mount one, or give its folder \
         with --service-account",
        path.display()
    )]
    NoAccount {
        /// A file of it.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The roots of the API server, or the client.
    #[error("--kubernetes-secret: the API server's roots in {} cannot be used: {problem}", path.display())]
    Roots {
        /// Their file.
        path: PathBuf,
        /// What is wrong with them.
        problem: String,
    },
    /// No answer.
    #[error("the API server at {address} cannot be reached: {problem}")]
    Unreachable {
        /// Host and port.
        address: String,
        /// What happened to the call.
        problem: String,
    },
    /// There is no such Secret.
    #[error(
        "there is no Secret {secret} in namespace {namespace}; make an empty one: kubectl create secret generic {secret}"
    )]
    NoSecret {
        /// Its name.
        secret: String,
        /// The pod's.
        namespace: String,
    },
    /// It may not be written, or not so.
    #[error("the API server did not write Secret {secret} in namespace {namespace}: {status}: {message}")]
    Refused {
        /// Its name.
        secret: String,
        /// The pod's.
        namespace: String,
        /// Of HTTP.
        status: StatusCode,
        /// What the server said.
        message: String,
    },
}

/// What an API server says of a call that failed. Source: `Status` of `meta/v1`.
#[derive(Deserialize)]
struct Refusal {
    message: String,
}

/// The service account of this pod, and the API server that knows it.
#[derive(Debug, Clone)]
pub struct ServiceAccount {
    folder: PathBuf,
    /// Host and port.
    address: String,
}

impl ServiceAccount {
    /// Of the pod in which this process runs; its files are in `folder`.
    ///
    /// # Errors
    /// This is no pod.
    pub fn of_this_pod(folder: &Path) -> Result<Self, KubernetesError> {
        let variable = |name| env::var(name).map_err(|_| KubernetesError::NoPod(name));
        let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Ok(Self { folder: folder.to_owned(), address: format!("{host}:{port}") })
    }

    /// Writes `entries` into a Secret that is there; others that it has stay. Its token and roots are read each time: the
    /// kubelet replaces them.
    ///
    /// # Errors
    /// The pod has no account, or the API server does not answer, or refuses.
    pub async fn write(
        &self,
        secret: &str,
        entries: &BTreeMap<&'static str, String>,
    ) -> Result<(), KubernetesError> {
        let (token, namespace) = (self.read("token").await?, self.read("namespace").await?);
        let url = format!("https://{}/api/v1/namespaces/{namespace}/secrets/{secret}", self.address);
        let unreachable = |error: reqwest::Error| KubernetesError::Unreachable {
            address: self.address.clone(),
            problem: with_causes(&error.without_url()),
        };
        let request = self.client().await?.patch(url).bearer_auth(token);
        // Entries that are not named stay. Source: RFC 7386.
        let request = request.header(header::CONTENT_TYPE, "application/merge-patch+json");
        let answer = request.body(json!({ "stringData": entries }).to_string()).send();
        let answer = answer.await.map_err(unreachable)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let (secret, namespace) = (secret.to_owned(), namespace.clone());
        if status == StatusCode::NOT_FOUND {
            return Err(KubernetesError::NoSecret { secret, namespace });
        }
        let text = answer.text().await.map_err(unreachable)?;
        let message = serde_json::from_str(&text).map_or(text, |refusal: Refusal| refusal.message);
        let message = message.chars().take(LONGEST_ANSWER).collect();
        Err(KubernetesError::Refused { secret, namespace, status, message })
    }

    /// A client that trusts the API server's roots alone, and uses no proxy: the server is beside the pod.
    async fn client(&self) -> Result<Client, KubernetesError> {
        let path = self.folder.join("ca.crt");
        let pem = self.read("ca.crt").await?;
        let wrong = |error: reqwest::Error| KubernetesError::Roots {
            path: path.clone(),
            problem: with_causes(&error),
        };
        ringtune_security::use_ring();
        let roots = Certificate::from_pem_bundle(pem.as_bytes()).map_err(wrong)?;
        let builder = Client::builder().no_proxy().timeout(CALL_LIMIT).tls_certs_only(roots);
        builder.user_agent(concat!("ringtune/", env!("CARGO_PKG_VERSION"))).build().map_err(wrong)
    }

    async fn read(&self, name: &str) -> Result<String, KubernetesError> {
        let path = self.folder.join(name);
        match tokio::fs::read_to_string(&path).await {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(source) => Err(KubernetesError::NoAccount { path, source }),
        }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The name of a Secret. Source: RFC 1123, as Kubernetes has it.
///
/// # Errors
/// What is allowed.
pub fn parse_secret(text: &str) -> Result<String, String> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let has_ends =
        [text.bytes().next(), text.bytes().last()].into_iter().all(|end| end.is_some_and(is_inner));
    let is_name = text.len() <= 253 && text.bytes().all(|byte| is_inner(byte) || b"-.".contains(&byte));
    if has_ends && is_name {
        return Ok(text.to_owned());
    }
    Err("allowed: lower-case letters, digits, - and ., with a letter or digit at both ends".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_those_of_kubernetes() {
        for right in ["a", "ringtune-join", "a.b-1"] {
            assert_eq!(parse_secret(right).as_deref(), Ok(right));
        }
        for wrong in ["", "-a", "a-", "A", "a/b", "a b", &"a".repeat(254)] {
            assert!(parse_secret(wrong).is_err(), "{wrong}");
        }
    }
}

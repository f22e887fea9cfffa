//! The calls by which a worker gets its certificates.

use std::time::Duration;

use ringtune_proto::v1::{self, access_service_client::AccessServiceClient};
use ringtune_security::{ConnectError, Connector, Credentials, Csr, JoinToken, PrivateKey, Roots};
use ringtune_shared::ids::WorkerId;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use crate::{
    error_chain::{cause_of, error_chain},
    status_text::status_text,
};

/// For one call, its connection included.
const LIMIT: Duration = Duration::from_secs(20);

/// A call that brought nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// Later it may go well.
    #[error("{0}")]
    Later(String),
    /// The coordinator refuses, or belongs to another cluster.
    #[error("{0}")]
    Refused(String),
    /// It refuses this side's certificate, or this side does not know its CA.
    #[error("{0}")]
    Disowned(String),
}

impl CallError {
    fn of_connection(error: &tonic::transport::Error) -> Self {
        let text = error_chain(error);
        match cause_of::<ConnectError>(error) {
            Some(ConnectError::Refused { .. } | ConnectError::UnknownAuthority { .. }) => {
                Self::Disowned(text)
            }
            Some(
                ConnectError::Unreachable { .. }
                | ConnectError::Slow { .. }
                | ConnectError::Closed { .. }
                | ConnectError::Handshake { .. },
            )
            | None => Self::Later(text),
            Some(_) => Self::Refused(text),
        }
    }

    fn of_answer(status: &Status) -> Self {
        let text = status_text(status);
        match status.code() {
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Aborted
            | Code::Unknown
            | Code::Internal
            | Code::ResourceExhausted => Self::Later(text),
            Code::Unauthenticated => Self::Disowned(text),
            _ => Self::Refused(text),
        }
    }
}

/// A key, and what the coordinator needs to sign it.
pub(super) struct Asking {
    pub(super) key: PrivateKey,
    pub(super) csr: Csr,
}

/// Exchanges a token for a certificate.
pub(super) async fn join(
    url: &str,
    token: &JoinToken,
    worker: WorkerId,
    csr: &Csr,
) -> Result<v1::Certified, CallError> {
    let request = v1::JoinRequest {
        token_id: token.id.bytes().to_vec(),
        secret: token.secret.reveal().to_vec(),
        csr: csr.der().to_vec(),
        name: worker.to_string(),
    };
    let call = async {
        let answer = client(url, Connector::joining(token)).await?.join(request).await;
        certified(answer.map_err(|status| CallError::of_answer(&status))?.into_inner().certified)
    };
    in_time(call).await
}

/// Gets the next certificate by the present one.
pub(super) async fn renew(url: &str, connector: Connector, csr: &Csr) -> Result<v1::Certified, CallError> {
    let request = v1::RenewCertificateRequest { csr: csr.der().to_vec() };
    let call = async {
        let answer = client(url, connector).await?.renew_certificate(request).await;
        certified(answer.map_err(|status| CallError::of_answer(&status))?.into_inner().certified)
    };
    in_time(call).await
}

/// Asks as whom the coordinator knows this side.
pub(super) async fn who_am_i(url: &str, connector: Connector) -> Result<v1::WhoAmIResponse, CallError> {
    let call = async {
        let answer = client(url, connector).await?.who_am_i(v1::WhoAmIRequest {}).await;
        Ok(answer.map_err(|status| CallError::of_answer(&status))?.into_inner())
    };
    in_time(call).await
}

async fn client(url: &str, connector: Connector) -> Result<AccessServiceClient<Channel>, CallError> {
    let endpoint = Endpoint::from_shared(url.to_owned());
    let endpoint = endpoint.map_err(|error| CallError::Refused(error_chain(&error)))?;
    let channel = endpoint.connect_timeout(LIMIT).connect_with_connector(connector).await;
    Ok(AccessServiceClient::new(channel.map_err(|error| CallError::of_connection(&error))?))
}

async fn in_time<T>(call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
    let late = |_| CallError::Later(format!("no answer within {} s", LIMIT.as_secs()));
    tokio::time::timeout(LIMIT, call).await.map_err(late)?
}

fn certified(certified: Option<v1::Certified>) -> Result<v1::Certified, CallError> {
    certified.ok_or_else(|| CallError::Refused("the answer has no certificate in it".to_owned()))
}

/// Validates the coordinator's answer against the request.
pub(super) fn credentials(
    key: PrivateKey,
    certified: &v1::Certified,
    worker: WorkerId,
) -> Result<Credentials, String> {
    let roots = Roots::from_pem(&certified.roots_pem).map_err(|error| error.to_string())?;
    let given = Credentials::new(key, &certified.chain_pem, roots).map_err(|error| error.to_string())?;
    match given.identity() {
        Ok(identity) if identity.worker() == Some(worker.0) => Ok(given),
        Ok(other) => Err(format!("it gave a certificate of {other} to worker {worker}")),
        Err(error) => Err(error.to_string()),
    }
}

//! Connections of tests to a coordinator: plain on loopback, or over TLS as the administrator of its machine.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use ringtune_proto::v1::{self, access_service_client::AccessServiceClient, create_token_request::Kind};
use ringtune_security::{Connector, Credentials, Server, Trust};
use tonic::transport::{Channel, Endpoint};

/// For a connection to come up.
const PATIENCE: Duration = Duration::from_secs(10);

/// The address of a coordinator, and what opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    address: String,
    credentials: Option<PathBuf>,
}

impl Door {
    /// Of a coordinator at HOST:PORT that asks nobody who they are.
    pub fn open(address: &str) -> Self {
        Self { address: address.to_owned(), credentials: None }
    }

    /// Of one that speaks TLS, with the credentials in a folder.
    pub fn locked(address: &str, credentials: &Path) -> Self {
        Self { address: address.to_owned(), credentials: Some(credentials.to_owned()) }
    }

    /// The coordinator behind another HOST:PORT.
    pub fn behind(&self, address: &str) -> Self {
        Self { address: address.to_owned(), ..self.clone() }
    }

    /// Whether it speaks TLS.
    pub fn is_locked(&self) -> bool {
        self.credentials.is_some()
    }

    /// The URL for daemons and commands.
    pub fn url(&self) -> String {
        let scheme = if self.is_locked() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Environment variables of a `ringtune` command that uses it.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let credentials = self.credentials.iter();
        let credentials = credentials.map(|folder| ("RINGTUNE_CREDENTIALS", folder.display().to_string()));
        std::iter::once(("RINGTUNE_COORDINATOR", self.url())).chain(credentials).collect()
    }

    /// Connects with the first call.
    pub fn channel(&self) -> Result<Channel> {
        self.channel_within(PATIENCE)
    }

    /// As above with a timeout of each try to connect.
    pub fn channel_within(&self, patience: Duration) -> Result<Channel> {
        let endpoint = Endpoint::from_shared(self.url())?.connect_timeout(patience).tcp_nodelay(true);
        let Some(folder) = &self.credentials else { return Ok(endpoint.connect_lazy()) };
        let credentials = Credentials::load(folder)?.with_context(|| format!("nothing in {folder:?}"))?;
        let connector = Connector::to(Trust::of(credentials)?, Server::Coordinator).within(patience);
        Ok(endpoint.connect_with_connector_lazy(connector))
    }

    /// A token for so many workers, as one line.
    pub async fn worker_token(&self, uses: i32) -> Result<String> {
        let request = v1::CreateTokenRequest {
            kind: Kind::Join.into(),
            role: v1::Role::Worker.into(),
            uses,
            ..Default::default()
        };
        let mut client = AccessServiceClient::new(self.channel()?);
        Ok(client.create_token(request).await?.into_inner().secret)
    }
}

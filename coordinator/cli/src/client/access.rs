//! Calls about who may talk to the cluster: joining, certificates, tokens, the authority.

use ringtune_proto::v1::{
    self, access_service_client::AccessServiceClient, revoke_certificate_request::Which as WireWhich,
};
use ringtune_security::{Connector, JoinToken, TokenId};
use tonic::{Response, Status};

use super::{Bearer, Client, ClientError, CoordinatorUrl, PAGE_SIZE, link::Link, unary};

/// Which certificates are to be revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The one with this serial number.
    Serial(String),
    /// All that this member has.
    Member(v1::Member),
}

impl Client {
    /// A client for the one call that exchanges a token: it believes the root that the token names, and no other.
    pub fn joining(url: &CoordinatorUrl, token: &JoinToken) -> Self {
        Self::with(url, Connector::joining(token), Bearer::none())
    }

    /// Exchanges a token for a certificate. Never repeated: the first try may have used the token up.
    pub async fn join(&self, token: &JoinToken, csr: &[u8]) -> Result<v1::Certified, ClientError> {
        let doing = "log in";
        let request = v1::JoinRequest {
            token_id: token.id.bytes().to_vec(),
            secret: token.secret.reveal().to_vec(),
            csr: csr.to_vec(),
            name: String::new(),
        };
        let answer = self.once(doing, self.access().join(unary(request)).await)?;
        answer.certified.ok_or_else(|| self.nonsense(doing, "an answer without a certificate"))
    }

    /// Gets the caller's next certificate.
    pub async fn renew_certificate(&self, csr: &[u8]) -> Result<v1::Certified, ClientError> {
        let doing = "renew the certificate";
        let request = v1::RenewCertificateRequest { csr: csr.to_vec() };
        let answer = self.once(doing, self.access().renew_certificate(unary(request)).await)?;
        answer.certified.ok_or_else(|| self.nonsense(doing, "an answer without a certificate"))
    }

    /// Who the coordinator takes the caller for.
    pub async fn who_am_i(&self) -> Result<v1::WhoAmIResponse, ClientError> {
        let request = v1::WhoAmIRequest {};
        self.ask("ask who you are", request, async |request| self.access().who_am_i(request).await).await
    }

    /// Makes a token. Never repeated: a second one would lie around.
    pub async fn create_token(
        &self,
        wanted: v1::CreateTokenRequest,
    ) -> Result<(v1::Token, String), ClientError> {
        let doing = "create the token";
        let answer = self.once(doing, self.access().create_token(unary(wanted)).await)?;
        let token = answer.token.ok_or_else(|| self.nonsense(doing, "an answer without a token"))?;
        Ok((token, answer.secret))
    }

    /// All tokens that still open something.
    pub async fn list_tokens(&self) -> Result<Vec<v1::Token>, ClientError> {
        self.pages(async |page_token| {
            let request = v1::ListTokensRequest { page_size: PAGE_SIZE, page_token };
            let page = self
                .ask("list the tokens", request, async |request| self.access().list_tokens(request).await)
                .await?;
            Ok((page.tokens, page.next_page_token))
        })
        .await
    }

    /// Makes a token worthless. Whether there was such a token; none of a coordinator that does not say.
    pub async fn revoke_token(&self, token: TokenId) -> Result<Option<bool>, ClientError> {
        let request = v1::RevokeTokenRequest { token_id: token.to_string() };
        self.ask("revoke the token", request, async |request| self.access().revoke_token(request).await)
            .await
            .map(|v1::RevokeTokenResponse { found }| found)
    }

    /// All certificates that have not expired.
    pub async fn list_certificates(&self) -> Result<Vec<v1::Certificate>, ClientError> {
        self.pages(async |page_token| {
            let request = v1::ListCertificatesRequest { page_size: PAGE_SIZE, page_token };
            let page = self
                .ask("list the certificates", request, async |request| {
                    self.access().list_certificates(request).await
                })
                .await?;
            Ok((page.certificates, page.next_page_token))
        })
        .await
    }

    /// Makes certificates worthless, and ends the connections of whoever holds them. How many certificates and access
    /// tokens that are; none of a coordinator that does not know.
    pub async fn revoke_certificate(&self, which: Which) -> Result<Option<i32>, ClientError> {
        let which = match which {
            Which::Serial(serial) => WireWhich::Serial(serial),
            Which::Member(member) => WireWhich::Member(member),
        };
        let request = v1::RevokeCertificateRequest { which: Some(which) };
        self.ask("revoke the certificate", request, async |request| {
            self.access().revoke_certificate(request).await
        })
        .await
        .map(|v1::RevokeCertificateResponse { found }| found)
    }

    /// The cluster's authority and its roots.
    pub async fn get_authority(&self) -> Result<v1::Authority, ClientError> {
        let doing = "read the authority";
        let request = v1::GetAuthorityRequest {};
        let answer =
            self.ask(doing, request, async |request| self.access().get_authority(request).await).await?;
        self.authority(doing, answer.authority)
    }

    /// Makes a new root. Never repeated: the second try would be refused because of the first.
    pub async fn rotate_authority(&self) -> Result<v1::Authority, ClientError> {
        let doing = "rotate the authority";
        let request = unary(v1::RotateAuthorityRequest {});
        let answer = self.once(doing, self.access().rotate_authority(request).await)?;
        self.authority(doing, answer.authority)
    }

    /// Drops the older root. Never repeated, as above.
    pub async fn retire_authority(&self, force: bool) -> Result<v1::Authority, ClientError> {
        let doing = "retire the older root";
        let request = unary(v1::RetireAuthorityRequest { force });
        let answer = self.once(doing, self.access().retire_authority(request).await)?;
        self.authority(doing, answer.authority)
    }

    fn access(&self) -> AccessServiceClient<Link> {
        AccessServiceClient::new(self.link.clone())
    }

    fn once<T>(&self, doing: &'static str, answer: Result<Response<T>, Status>) -> Result<T, ClientError> {
        answer.map(Response::into_inner).map_err(|status| self.failure(doing, status))
    }

    fn authority(
        &self,
        doing: &'static str,
        authority: Option<v1::Authority>,
    ) -> Result<v1::Authority, ClientError> {
        authority.ok_or_else(|| self.nonsense(doing, "an answer without the authority"))
    }
}

//! ListTokens and ListCertificates.

use ringtune_proto::v1;

use super::pages::{self, Listing};
use crate::grpc::access::{AccessCalls, certificate, token};
use crate::grpc::status::FailedRequest;

/// Tokens or certificates on a page, by default and at most.
const PAGE: (u32, u32) = (100, 500);

impl AccessCalls {
    pub(in crate::grpc) async fn page_of_tokens(
        &self,
        request: v1::ListTokensRequest,
    ) -> Result<v1::ListTokensResponse, FailedRequest> {
        let size = pages::size(request.page_size, PAGE.0, PAGE.1)?;
        let listing = Listing::new("tokens", "");
        let after = listing.last(&request.page_token, pages::created_and_name)?;
        let found = self.0.access.list_tokens(after, size + 1).await?;
        let (tokens, last) = pages::fill(&found, size, token);
        let last = last.map(|one| listing.token(&format!("{} {}", one.created.0, one.id)));
        Ok(v1::ListTokensResponse { next_page_token: last.unwrap_or_default(), tokens })
    }

    pub(in crate::grpc) async fn page_of_certificates(
        &self,
        request: v1::ListCertificatesRequest,
    ) -> Result<v1::ListCertificatesResponse, FailedRequest> {
        let size = pages::size(request.page_size, PAGE.0, PAGE.1)?;
        let listing = Listing::new("certificates", "");
        let after = listing.last(&request.page_token, pages::created_and_name)?;
        let found = self.0.access.list_certificates(after, size + 1).await?;
        let (certificates, last) = pages::fill(&found, size, certificate);
        let last = last.map(|one| listing.token(&format!("{} {}", one.created.0, one.serial)));
        Ok(v1::ListCertificatesResponse { next_page_token: last.unwrap_or_default(), certificates })
    }
}

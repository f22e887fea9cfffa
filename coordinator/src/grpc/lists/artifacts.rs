//! ListArtifacts.

use ringtune_proto::v1;

use super::filter::Filter;
use super::order::Order;
use super::pages::{self, Listing};
use crate::access::Call;
use crate::grpc::artifacts::Artifacts;
use crate::grpc::ids::job_id;
use crate::grpc::outbound;
use crate::grpc::status::FailedRequest;
use crate::store::lists::ArtifactQuery;

/// Artifacts on a page, by default and at most.
const PAGE: (u32, u32) = (100, 500);
const FIELDS: &str = "name, media_type";
/// Whether it is by time.
const ORDERS: [(&str, bool); 2] = [("name", false), ("create_time", true)];
const BY_NAME: Order<bool> = Order { by: false, descending: false };

impl Artifacts {
    pub(in crate::grpc) async fn page_of_artifacts(
        &self,
        call: &Call,
        request: v1::ListArtifactsRequest,
    ) -> Result<v1::ListArtifactsResponse, FailedRequest> {
        let size = pages::size(request.page_size, PAGE.0, PAGE.1)?;
        let order = Order::parse(&request.order_by, &ORDERS, BY_NAME)?;
        let mut filter = Filter::parse(&request.filter)?;
        let job = job_id(&request.job_id)?;
        let listing = Listing::new("artifacts", &format!("{job} {} {order:?}", filter.canonical()));
        let after = listing.last(&request.page_token, pages::created_and_name)?;
        let query = ArtifactQuery {
            job,
            name: filter.text("name"),
            media_type: filter.text("media_type"),
            by_time: order.by,
            descending: order.descending,
            after,
            limit: size + 1,
        };
        filter.finish(FIELDS)?;
        self.0.check_reach(call, job).await?;
        self.0.handle.job(job).await?;
        let found = self.0.handle.store().list_artifacts(&query).await?;
        let (artifacts, last) = pages::fill(&found, size, outbound::artifact);
        let place = last.map(|one| format!("{} {}", one.created.0, one.name));
        Ok(v1::ListArtifactsResponse {
            next_page_token: place.map(|place| listing.token(&place)).unwrap_or_default(),
            artifacts,
        })
    }
}

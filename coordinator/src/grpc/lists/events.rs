//! ListEvents.

use ringtune_proto::v1;

use super::filter::Filter;
use super::order::Order;
use super::pages::{self, Listing};
use crate::core::EventKind;
use crate::grpc::jobs::{Jobs, job_id};
use crate::grpc::outbound;
use crate::grpc::status::FailedRequest;
use crate::store::lists::EventQuery;

/// Events on a page, by default and at most.
const PAGE: (u32, u32) = (100, 1000);
const ORDERS: [(&str, ()); 1] = [("sequence", ())];
const OLDEST_FIRST: Order<()> = Order { by: (), descending: false };

impl Jobs {
    pub(in crate::grpc) async fn page_of_events(
        &self,
        request: v1::ListEventsRequest,
    ) -> Result<v1::ListEventsResponse, FailedRequest> {
        let size = pages::size(request.page_size, PAGE.0, PAGE.1)?;
        let Order { descending, .. } = Order::parse(&request.order_by, &ORDERS, OLDEST_FIRST)?;
        let mut filter = Filter::parse(&request.filter)?;
        let job = job_id(&request.job_id)?;
        let first = request.after_sequence;
        let view = format!("{job} {first} {} {descending}", filter.canonical());
        let listing = Listing::new("events", &view);
        let last = listing.last_number(&request.page_token)?;
        let types: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
        let read = |text: &str| EventKind::ALL.into_iter().find(|kind| kind.as_str() == text);
        let kind = filter.value("type", &types.join(", "), read)?;
        filter.finish("type")?;
        self.0.handle.job(job).await?;
        let (above, below) = match descending {
            false => (last.unwrap_or(first), None),
            true => (first, last),
        };
        let query = EventQuery { job, above, below, kind, descending, limit: size + 1 };
        let mut events = self.0.handle.store().list_events(&query).await?;
        let more = pages::cut(&mut events, size);
        let last = events.last().filter(|_| more).map(|event| listing.token(&event.sequence.to_string()));
        Ok(v1::ListEventsResponse {
            next_page_token: last.unwrap_or_default(),
            events: events.into_iter().filter_map(outbound::event).collect(),
        })
    }
}

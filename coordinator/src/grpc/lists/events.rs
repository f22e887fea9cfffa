//! ListEvents.

use ringtune_proto::v1;

use super::filter::Filter;
use super::order::Order;
use super::pages::{self, Listing, Page};
use crate::access::Call;
use crate::core::EventKind;
use crate::grpc::ids::job_id;
use crate::grpc::jobs::Jobs;
use crate::grpc::outbound;
use crate::grpc::status::FailedRequest;
use crate::store::lists::EventQuery;

/// Events on a page, by default and at most.
const PAGE: (u32, u32) = (100, 1000);
/// Events that are looked at in one query, whether they are of the type that is wanted or not, and queries for a page: in
/// a long history of another type a page may be short, and have a next one all the same.
const PORTION: u64 = 10_000;
const MOST_PORTIONS: usize = 10;
const ORDERS: [(&str, ()); 1] = [("sequence", ())];
const OLDEST_FIRST: Order<()> = Order { by: (), descending: false };

impl Jobs {
    pub(in crate::grpc) async fn page_of_events(
        &self,
        call: &Call,
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
        let newest = self.0.job(call, job).await?.last_sequence;
        let mut range = Range { above: first, below: newest.saturating_add(1) };
        if let Some(last) = last {
            *(if descending { &mut range.below } else { &mut range.above }) = last;
        }
        let mut page = Page::new(size);
        for _ in 0..MOST_PORTIONS {
            let Some(portion) = range.take(descending) else { break };
            // One more than there is room for tells whether there is another page.
            let limit = u32::try_from(page.room() + 1).unwrap_or(u32::MAX);
            let (above, below) = (portion.above, Some(portion.below));
            let query = EventQuery { job, above, below, kind, descending, limit };
            let found = self.0.handle.store().list_events(&query).await?;
            let cut_off = found.len() == limit as usize;
            let mut seen = None;
            for event in found {
                let sequence = event.sequence;
                // What only older versions kept takes no room.
                if outbound::event(event).is_some_and(|event| !page.put(event)) {
                    break;
                }
                seen = Some(sequence);
            }
            if cut_off || page.is_full() {
                range = portion.behind(seen, range, descending);
            }
            if page.is_full() {
                break;
            }
        }
        let last = if descending { range.below } else { range.above };
        let more = !range.is_empty();
        Ok(v1::ListEventsResponse {
            next_page_token: if more { listing.token(&last.to_string()) } else { String::new() },
            events: page.into_items(),
        })
    }
}

/// Sequence numbers that are still to be looked at: those between the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    above: u64,
    below: u64,
}

impl Range {
    fn is_empty(self) -> bool {
        self.above.saturating_add(1) >= self.below
    }

    /// The part that comes next, which goes from this range; none where there is nothing left.
    fn take(&mut self, descending: bool) -> Option<Self> {
        if self.is_empty() {
            return None;
        }
        let whole = *self;
        Some(if descending {
            // What is left ends with the last number that is not in the part.
            self.below = whole.below.saturating_sub(PORTION).max(whole.above + 1);
            Self { above: self.below - 1, ..whole }
        } else {
            self.above = whole.above.saturating_add(PORTION).min(whole.below - 1);
            Self { below: self.above + 1, ..whole }
        })
    }

    /// The range that is left when of this part only the events up to `seen`, if any, were read, and `rest` follows it.
    fn behind(self, seen: Option<u64>, rest: Self, descending: bool) -> Self {
        match descending {
            false => Self { above: seen.unwrap_or(self.above), below: rest.below },
            true => Self { above: rest.above, below: seen.unwrap_or(self.below) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All parts of a range, as the numbers in them.
    fn parts(mut range: Range, descending: bool) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        while let Some(part) = range.take(descending) {
            parts.push((part.above + 1, part.below - 1));
        }
        assert!(range.is_empty());
        parts
    }

    #[test]
    fn parts_cover_a_range_in_both_directions_and_nothing_twice() {
        let end = 2 * PORTION + 5;
        let range = Range { above: 3, below: end };
        assert_eq!(
            parts(range, false),
            [(4, PORTION + 3), (PORTION + 4, 2 * PORTION + 3), (end - 1, end - 1)]
        );
        assert_eq!(parts(range, true), [(PORTION + 5, end - 1), (5, PORTION + 4), (4, 4)]);
        for empty in
            [Range { above: 3, below: 4 }, Range { above: 9, below: 4 }, Range { above: 0, below: 1 }]
        {
            assert!(parts(empty, false).is_empty() && parts(empty, true).is_empty());
        }
    }

    #[test]
    fn what_did_not_fit_is_looked_at_again() {
        let range = |above, below| Range { above, below };
        assert_eq!(range(10, 21).behind(Some(15), range(20, 30), false), range(15, 30));
        assert_eq!(range(10, 21).behind(None, range(20, 30), false), range(10, 30));
        assert_eq!(range(10, 21).behind(Some(15), range(0, 11), true), range(0, 15));
        assert_eq!(range(10, 21).behind(None, range(0, 11), true), range(0, 21));
    }
}

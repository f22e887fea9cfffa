//! ListJobs.

use ringtune_proto::convert::{FieldError, job_state_from_name};
use ringtune_proto::v1;
use ringtune_shared::job::JobKind;

use super::filter::Filter;
use super::order::Order;
use super::pages::{self, Listing, Page};
use crate::access::Call;
use crate::core::JobState;
use crate::grpc::jobs::Jobs;
use crate::grpc::outbound;
use crate::grpc::reach::redact_for;
use crate::grpc::status::FailedRequest;
use crate::store::lists::{JobFilter, JobKey, JobOrder, JobPlace, JobQuery};

/// Jobs on a page, by default and at most.
const PAGE: (u32, u32) = (50, 500);
/// Jobs that are read at once. One may take a mebibyte.
const PORTION: u32 = 32;
const FIELDS: &str = "state, name, owner, priority, kind, sweep, labels.KEY";
const STATES: &str = "QUEUED, PREPARING, RUNNING, PAUSED, SUCCEEDED, FAILED, CANCELLED";
const ORDERS: [(&str, JobOrder); 3] =
    [("create_time", JobOrder::Creation), ("priority", JobOrder::Priority), ("name", JobOrder::Name)];
const NEWEST_FIRST: Order<JobOrder> = Order { by: JobOrder::Creation, descending: true };

impl Jobs {
    pub(in crate::grpc) async fn page_of_jobs(
        &self,
        call: &Call,
        request: v1::ListJobsRequest,
    ) -> Result<v1::ListJobsResponse, FailedRequest> {
        let size = pages::size(request.page_size, PAGE.0, PAGE.1)?;
        let order = Order::parse(&request.order_by, &ORDERS, NEWEST_FIRST)?;
        let filter = Filter::parse(&request.filter)?;
        let states = listed_states(&request.states)?;
        let listing = Listing::new("jobs", &format!("{states:?} {} {order:?}", filter.canonical()));
        let after = listing.last(&request.page_token, |text| read_place(order.by, text))?;
        let filter = within_reach(call, read_filter(states, filter)?);
        let mut query =
            JobQuery { filter, order: order.by, descending: order.descending, after, limit: PORTION };
        let mut page = Page::new(size);
        // Read in portions: what does not fit on the page is not to take all memory before it is left out.
        loop {
            // One more than there is room for tells whether there is another page.
            query.limit = PORTION.min(u32::try_from(page.room() + 1).unwrap_or(PORTION));
            let mut jobs = self.0.handle.store().list_jobs(&query).await?;
            self.0.handle.explain(&mut jobs);
            jobs.iter_mut().for_each(|job| redact_for(call, job));
            let fitting = jobs.iter().take_while(|job| page.put(outbound::job(job))).count();
            query.after = jobs[..fitting].last().map(|job| order.by.place(job)).or(query.after);
            if page.is_full() || jobs.len() < query.limit as usize {
                break;
            }
        }
        let last = query.after.filter(|_| page.is_full()).map(|place| listing.token(&write_place(&place)));
        Ok(v1::ListJobsResponse { next_page_token: last.unwrap_or_default(), jobs: page.into_items() })
    }
}

/// What both the list of states and the filter allow.
fn read_filter(mut states: Option<Vec<JobState>>, mut filter: Filter) -> Result<JobFilter, FieldError> {
    if let Some(only) = filter.value("state", STATES, job_state_from_name)? {
        let allowed = |state: &JobState| states.as_ref().is_none_or(|states| states.contains(state));
        states = Some(stored_state(only).into_iter().filter(allowed).collect());
    }
    let read = JobFilter {
        states,
        name: filter.text("name"),
        owner: filter.text("owner"),
        priority: filter.value("priority", "0 to 1000", |text| text.parse().ok())?,
        kind: filter.value("kind", &JobKind::allowed(), |text| text.parse().ok())?,
        sweep: filter.value("sweep", "a sweep's id", |text| text.parse().ok())?,
        labels: filter.labels()?,
    };
    filter.finish(FIELDS)?;
    Ok(read)
}

/// Only jobs that the caller reaches.
pub(in crate::grpc) fn within_reach(call: &Call, mut filter: JobFilter) -> JobFilter {
    if let Some(only) = call.only_of() {
        // In the name of another one there is nothing.
        if filter.owner.as_deref().is_some_and(|owner| owner != only) {
            filter.states = Some(Vec::new());
        }
        filter.owner = Some(only.to_owned());
    }
    filter
}

/// The states to list, each once; none for all.
fn listed_states(wire: &[i32]) -> Result<Option<Vec<JobState>>, FieldError> {
    let mut states = Vec::new();
    for given in wire {
        match v1::JobState::try_from(*given) {
            Ok(v1::JobState::Unspecified) | Err(_) => {
                let problem = format!("got {given}; allowed: 1 (QUEUED) to 7 (CANCELLED)");
                return Err(FieldError::new("states", problem));
            }
            Ok(state) => states.extend(stored_state(state)),
        }
    }
    states.sort_unstable();
    states.dedup();
    Ok((!wire.is_empty()).then_some(states))
}

/// None for UNSPECIFIED.
fn stored_state(wire: v1::JobState) -> Option<JobState> {
    match wire {
        v1::JobState::Queued => Some(JobState::Queued),
        v1::JobState::Preparing => Some(JobState::Preparing),
        v1::JobState::Running => Some(JobState::Running),
        v1::JobState::Succeeded => Some(JobState::Succeeded),
        v1::JobState::Failed => Some(JobState::Failed),
        v1::JobState::Cancelled => Some(JobState::Cancelled),
        v1::JobState::Paused => Some(JobState::Paused),
        v1::JobState::Unspecified => None,
    }
}

/// A place as a page token keeps it.
fn write_place(place: &JobPlace) -> String {
    match &place.key {
        JobKey::Creation => place.number.to_string(),
        JobKey::Priority(priority) => format!("{} {priority}", place.number),
        JobKey::Name(name) => format!("{} {name}", place.number),
    }
}

fn read_place(order: JobOrder, text: &str) -> Option<JobPlace> {
    let (number, key) = text.split_once(' ').unwrap_or((text, ""));
    let key = match order {
        JobOrder::Creation => JobKey::Creation,
        JobOrder::Priority => JobKey::Priority(key.parse().ok()?),
        JobOrder::Name => JobKey::Name(key.to_owned()),
    };
    Some(JobPlace { key, number: number.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_back() {
        for (order, key) in [
            (JobOrder::Creation, JobKey::Creation),
            (JobOrder::Priority, JobKey::Priority(7)),
            (JobOrder::Name, JobKey::Name("a \n b".to_owned())),
            (JobOrder::Name, JobKey::Name(String::new())),
        ] {
            let place = JobPlace { key, number: 17 };
            assert_eq!(read_place(order, &write_place(&place)), Some(place));
        }
        assert_eq!(read_place(JobOrder::Priority, "17"), None);
        assert_eq!(read_place(JobOrder::Creation, "x"), None);
    }

    #[test]
    fn a_filter_names_what_it_cannot_be() {
        let problem = |text: &str| read_filter(None, Filter::parse(text).unwrap()).unwrap_err().problem;
        assert_eq!(problem("state=odd"), format!("state: got \"odd\"; allowed: {STATES}"));
        assert_eq!(problem("priority=-1"), "priority: got \"-1\"; allowed: 0 to 1000");
        assert!(problem("kind=other").starts_with("kind: got \"other\"; allowed: textual_inversion, "));
        assert_eq!(problem("colour=red"), format!("there is no field \"colour\" here; allowed: {FIELDS}"));
    }

    #[test]
    fn states_of_the_list_and_of_the_filter_are_both_required() {
        let states = |wire: &[i32], text: &str| {
            read_filter(listed_states(wire).unwrap(), Filter::parse(text).unwrap()).unwrap().states
        };
        let (queued, running) = (v1::JobState::Queued as i32, v1::JobState::Running as i32);
        assert_eq!(states(&[], ""), None);
        assert_eq!(states(&[running, queued, queued], ""), Some(vec![JobState::Queued, JobState::Running]));
        assert_eq!(states(&[running, queued], "state=running"), Some(vec![JobState::Running]));
        assert_eq!(states(&[running], "state=queued"), Some(Vec::new()));
        assert_eq!(states(&[], "state=PAUSED"), Some(vec![JobState::Paused]));
        assert_eq!(listed_states(&[0]).unwrap_err().field, "states");
    }
}

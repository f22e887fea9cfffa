//! ListWorkers.

use ringtune_proto::convert::{FieldError, worker_state_from_name};
use ringtune_proto::v1;
use ringtune_shared::ids::{JobId, WorkerId};

use super::filter::Filter;
use super::order::Order;
use super::pages::{self, Listing};
use crate::access::Call;
use crate::core::Worker;
use crate::grpc::cluster::Cluster;
use crate::grpc::outbound;
use crate::grpc::reach::sees;
use crate::grpc::status::FailedRequest;

/// Workers on a page, by default and at most.
const PAGE: (u32, u32) = (100, 500);
const FIELDS: &str = "state, host_name, numerics_class, job_id";
const ORDERS: [(&str, By); 3] =
    [("worker_id", By::Id), ("host_name", By::HostName), ("connect_time", By::ConnectTime)];
const BY_ID: Order<By> = Order { by: By::Id, descending: false };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Id,
    HostName,
    ConnectTime,
}

/// What a worker is ordered by; those that are equal in it are in the order of their ids.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Id(WorkerId),
    HostName(String),
    ConnectTime(i64),
}

impl Cluster {
    pub(in crate::grpc) fn page_of_workers(
        &self,
        call: &Call,
        request: &v1::ListWorkersRequest,
    ) -> Result<v1::ListWorkersResponse, FailedRequest> {
        let size = pages::size(request.page_size, PAGE.0, PAGE.1)?;
        let order = Order::parse(&request.order_by, &ORDERS, BY_ID)?;
        let filter = Filter::parse(&request.filter)?;
        let listing = Listing::new("workers", &format!("{} {order:?}", filter.canonical()));
        let after = listing.last(&request.page_token, |text| read_place(order.by, text))?;
        let wanted = read_filter(filter)?;
        let compare = |one: &(Key, WorkerId), other: &(Key, WorkerId)| {
            let keys = one.0.cmp(&other.0);
            if order.descending { keys.reverse() } else { keys }.then(one.1.cmp(&other.1))
        };
        let cluster = self.0.handle.cluster();
        let mut found: Vec<_> = cluster
            .workers()
            .filter(|worker| wanted.accepts(call, &cluster, worker))
            .map(|worker| (order.by.place(worker), worker))
            .filter(|(place, _)| after.as_ref().is_none_or(|after| compare(place, after).is_gt()))
            .collect();
        found.sort_by(|(one, _), (other, _)| compare(one, other));
        let (workers, last) = pages::fill(&found, size, |(_, worker)| self.shown(call, &cluster, worker));
        let last = last.map(|(place, _)| listing.token(&write_place(place)));
        Ok(v1::ListWorkersResponse { next_page_token: last.unwrap_or_default(), workers })
    }
}

/// Which workers; all of it must be true.
#[derive(Debug)]
struct WorkerFilter {
    state: Option<v1::WorkerState>,
    host_name: Option<String>,
    numerics_class: Option<String>,
    job: Option<JobId>,
}

fn read_filter(mut filter: Filter) -> Result<WorkerFilter, FieldError> {
    let wanted = WorkerFilter {
        state: filter.value("state", "IDLE, BUSY, LOST", worker_state_from_name)?,
        host_name: filter.text("host_name"),
        numerics_class: filter.text("numerics_class"),
        job: filter.value("job_id", "a UUID", |text| text.parse().ok())?,
    };
    filter.finish(FIELDS)?;
    Ok(wanted)
}

impl WorkerFilter {
    fn accepts(&self, call: &Call, cluster: &crate::core::Cluster, worker: &Worker) -> bool {
        let class = &worker.capabilities.numerics_class;
        self.state.is_none_or(|state| state == outbound::worker_state(cluster.worker_state(worker)))
            && self.host_name.as_ref().is_none_or(|name| *name == worker.host_name)
            && self.numerics_class.as_ref().is_none_or(|wanted| wanted == class)
            && self.job.is_none_or(|job| {
                cluster.place_of(worker.id).is_some_and(|place| place.job() == job)
                    && sees(call, cluster, job)
            })
    }
}

impl By {
    fn place(self, worker: &Worker) -> (Key, WorkerId) {
        let key = match self {
            Self::Id => Key::Id(worker.id),
            Self::HostName => Key::HostName(worker.host_name.clone()),
            Self::ConnectTime => Key::ConnectTime(worker.connected.0),
        };
        (key, worker.id)
    }
}

/// A place as a page token keeps it.
fn write_place((key, id): &(Key, WorkerId)) -> String {
    match key {
        Key::Id(_) => id.to_string(),
        Key::HostName(name) => format!("{id} {name}"),
        Key::ConnectTime(time) => format!("{id} {time}"),
    }
}

fn read_place(by: By, text: &str) -> Option<(Key, WorkerId)> {
    let (id, key) = text.split_once(' ').unwrap_or((text, ""));
    let id: WorkerId = id.parse().ok()?;
    let key = match by {
        By::Id => Key::Id(id),
        By::HostName => Key::HostName(key.to_owned()),
        By::ConnectTime => Key::ConnectTime(key.parse().ok()?),
    };
    Some((key, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_back() {
        let id = WorkerId::new();
        for (by, key) in [
            (By::Id, Key::Id(id)),
            (By::HostName, Key::HostName("a host".to_owned())),
            (By::ConnectTime, Key::ConnectTime(-5)),
        ] {
            assert_eq!(read_place(by, &write_place(&(key.clone(), id))), Some((key, id)));
        }
        assert_eq!(read_place(By::Id, "x"), None);
        assert_eq!(read_place(By::ConnectTime, &id.to_string()), None);
    }

    #[test]
    fn a_filter_names_what_it_cannot_be() {
        let problem = |text: &str| read_filter(Filter::parse(text).unwrap()).unwrap_err().problem;
        assert_eq!(problem("state=QUEUED"), "state: got \"QUEUED\"; allowed: IDLE, BUSY, LOST");
        assert_eq!(problem("job_id=7"), "job_id: got \"7\"; allowed: a UUID");
        assert_eq!(problem("labels.a=b"), format!("there is no field \"labels.a\" here; allowed: {FIELDS}"));
    }
}

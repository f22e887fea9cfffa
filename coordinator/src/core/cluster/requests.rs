//! Which request made which job.

use ringtune_shared::ids::{ContentHash, JobId};

use crate::core::SharedMap;
use crate::core::job::{Job, RequestKey};

/// Ended jobs whose requests are remembered. Whoever looked a request up in the store before it was there finds it here:
/// that many jobs do not end within one call.
const ENDED_REQUESTS: usize = 10_000;

/// Which request made which job: of all jobs that have not ended, and of the last ones that have.
#[derive(Debug, Clone, Default)]
pub(in crate::core) struct Requests {
    by_id: SharedMap<String, (JobId, ContentHash)>,
    /// Those of ended jobs, in the order in which they ended.
    ended: SharedMap<u64, (String, JobId)>,
    next: u64,
}

impl Requests {
    /// The job of a request, and whether that was the same request.
    pub(in crate::core) fn find(&self, wanted: &RequestKey) -> Option<(JobId, bool)> {
        let (job, fingerprint) = self.by_id.get(&wanted.id)?;
        Some((*job, *fingerprint == wanted.fingerprint))
    }

    pub(super) fn insert(&mut self, job: &Job) {
        if let Some(request) = &job.request {
            self.by_id.insert_mut(request.id.clone(), (job.id, request.fingerprint));
        }
    }

    pub(super) fn ended(&mut self, job: &Job) {
        let Some(request) = &job.request else { return };
        self.ended.insert_mut(self.next, (request.id.clone(), job.id));
        self.next += 1;
        if self.ended.size() > ENDED_REQUESTS
            && let Some((oldest, (request, job))) =
                self.ended.first().map(|(key, ended)| (*key, ended.clone()))
        {
            self.ended.remove_mut(&oldest);
            self.forget(&request, job);
        }
    }

    /// The name may be used again, if it is still this job's.
    pub(super) fn forget(&mut self, request: &str, job: JobId) {
        if self.by_id.get(request).is_some_and(|(known, _)| *known == job) {
            self.by_id.remove_mut(request);
        }
    }
}

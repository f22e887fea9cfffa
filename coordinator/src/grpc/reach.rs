//! Which jobs a call reaches. For a call, jobs out of reach do not exist.

use ringtune_shared::ids::JobId;

use super::Api;
use super::status::FailedRequest;
use crate::access::{Call, Denied, Reach, Reason};
use crate::core::{Cluster, Job};
use crate::service::Error;

impl Api {
    /// A job that a call reaches.
    ///
    /// # Errors
    /// There is none, as far as the caller is concerned; the store's.
    pub(super) async fn job(&self, call: &Call, id: JobId) -> Result<Job, FailedRequest> {
        let mut job = self.handle.job(id).await?;
        let reached = match call.reach() {
            Reach::All => true,
            Reach::Owner(name) => job.queue.owner == name,
            Reach::Worker(worker) => {
                self.handle.cluster().place_of(worker).is_some_and(|place| place.job() == id)
            }
            Reach::Nothing => false,
        };
        if !reached {
            return Err(Error::NoSuchJob(id).into());
        }
        redact_for(call, &mut job);
        Ok(job)
    }

    /// Checks that a call reaches a job; asks the store only where that decides something.
    ///
    /// # Errors
    /// There is none, as far as the caller is concerned; the store's.
    pub(super) async fn check_reach(&self, call: &Call, id: JobId) -> Result<(), FailedRequest> {
        match call.reach() {
            Reach::All => Ok(()),
            Reach::Owner(name)
                if self.handle.cluster().job(id).is_some_and(|job| job.queue.owner == name) =>
            {
                Ok(())
            }
            _ => self.job(call, id).await.map(drop),
        }
    }

    /// Checks that a call may send or remove a file of a job. A worker needs a place in the job's ring.
    ///
    /// # Errors
    /// See [`Self::check_reach`]; a worker is told that it has none.
    pub(super) async fn check_files(&self, call: &Call, id: JobId) -> Result<(), FailedRequest> {
        let Reach::Worker(worker) = call.reach() else { return self.check_reach(call, id).await };
        if self.handle.cluster().place_of(worker).is_some_and(|place| place.job() == id) {
            return Ok(());
        }
        let text = format!("worker {worker} has no place in the ring of job {id}");
        Err(self.deny(Denied::new(Reason::Worker, text)))
    }
}

/// Whether a call reaches an active job.
pub(super) fn sees(call: &Call, cluster: &Cluster, id: JobId) -> bool {
    call.only_of().is_none_or(|only| cluster.job(id).is_some_and(|job| job.queue.owner == only))
}

/// Redacts what a job says of jobs that the call does not reach.
pub(super) fn redact_for(call: &Call, job: &mut Job) {
    if job.waits_behind && call.only_of().is_some() {
        job.reason = crate::core::BEHIND_ANOTHER.to_owned();
        job.wait.iter_mut().for_each(|wait| wait.behind = None);
    }
}

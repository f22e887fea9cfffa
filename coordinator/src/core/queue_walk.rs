//! Which queued job is the next to get workers, and which it leaves to those behind it.
//!
//! The order is that of [`super::precedence::Precedence`]. A job that has to wait, but could run if nobody had a rank, keeps the
//! free workers that could serve it of every class that has enough of them, so that large jobs do not starve; those behind it get
//! others only.

use std::collections::BTreeSet;

use ringtune_shared::ids::JobId;

use super::cluster::Cluster;
use super::job::Job;
use super::needs::Needs;
use super::pool::Kept;
use super::scheduler::FreeWorkers as _;

/// Jobs that may wait for others than the free workers of their class, as those refused them: so many are looked at, so that
/// one walk takes no longer, however many there are.
const MOST_PASSED: usize = 100;

/// One way along the queue.
#[derive(Debug, Default)]
pub(super) struct QueueWalk {
    kept: Kept,
    /// Jobs that were looked at.
    looked_at: BTreeSet<JobId>,
    /// Of those that wait, how many keep nothing.
    passed: usize,
}

impl QueueWalk {
    /// The next job that could get free workers that nobody keeps, if no worker of their class had a rank. Afterwards it has
    /// got them, or waits ([`Self::keep`]).
    ///
    /// A job that is passed over fits into no class that is left, nor later, as workers only become fewer on the way. So
    /// whatever the length of the queue, a walk looks at the jobs that get workers, at one job for each class and each of the needs
    /// that jobs have, and at most `MOST_PASSED` others.
    pub(super) fn next(&mut self, cluster: &Cluster) -> Option<JobId> {
        if self.passed >= MOST_PASSED {
            return None;
        }
        let is_left = |class: &str, needs: &Needs| {
            let kept = self.kept.keys().filter(|(of, _)| of == class).map(|(_, needs)| needs);
            cluster.pool.has_free(class, needs, kept)
        };
        let room = |owner: &str| cluster.room_of(owner);
        let next = cluster.queue.first_fitting(&cluster.pool, is_left, room, &self.looked_at)?;
        self.looked_at.insert(next);
        Some(next)
    }

    /// A job has to wait: it keeps the free workers that it could use.
    pub(super) fn keep(&mut self, cluster: &Cluster, job: &Job) {
        let (_, needed) = job.ranks();
        let open = cluster.open_to(job);
        let is_kept =
            |class: &str| self.kept.keys().any(|(of, needs)| of == class && open.needs().include(needs));
        let serve = |class: &str| {
            job.bound_to().is_none_or(|bound| bound == class)
                && open.usable_of(class) >= needed as usize
                && !is_kept(class)
        };
        let classes = open.classes().map(|(class, _)| class).filter(|class| serve(class));
        let kept: Vec<(String, Needs)> =
            classes.map(|class| (class.to_owned(), open.needs().clone())).collect();
        self.passed += usize::from(kept.is_empty());
        let precedence = cluster.precedence_of(job);
        self.kept.extend(kept.into_iter().map(|kept| (kept, (precedence, job.id))));
    }

    /// What is kept so far.
    pub(super) fn kept(&self) -> &Kept {
        &self.kept
    }
}

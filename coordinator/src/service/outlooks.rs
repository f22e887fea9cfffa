//! How many jobs are before one, and when workers are free: for large clusters not found out anew for each question.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::core::{Cluster, Outlook, Waiting};

/// Up to so many jobs in the queue and workers everything is as of the newest commit.
const SMALL: usize = 500;
/// Beyond that it may be so old: each answer has a job's waiting, and to look at all jobs for each costs more than all else.
const AGE: Duration = Duration::from_secs(1);

/// Cheap to clone; all clones have the same.
#[derive(Clone, Default)]
pub(super) struct Outlooks {
    newest: Arc<Mutex<Option<Kept>>>,
}

#[derive(Clone)]
struct Kept {
    since: Instant,
    outlook: Arc<Outlook>,
}

impl Outlooks {
    /// Why jobs wait in this state of the cluster.
    pub(super) fn waiting<'a>(&self, cluster: &'a Cluster) -> Waiting<'a> {
        if cluster.size() <= SMALL {
            return cluster.waiting();
        }
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = newest
            .take_if(|kept| kept.since.elapsed() < AGE)
            .unwrap_or_else(|| Kept { since: Instant::now(), outlook: Arc::new(Outlook::of(cluster)) });
        *newest = Some(kept.clone());
        cluster.waiting_by(kept.outlook)
    }
}

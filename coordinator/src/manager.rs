//! What the service manager hears of the coordinator.

use std::{sync::Arc, time::Duration};

use ringtune_shared::daemon::notify::Notifier;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::core::{Cluster, JobState, WorkerState};

/// Nobody reads it more often.
const PAUSE: Duration = Duration::from_secs(1);

/// Says what the coordinator does, whenever that changes, until `end`; and then that it ends.
pub(crate) async fn tell(
    notifier: Notifier,
    mut snapshots: watch::Receiver<Arc<Cluster>>,
    end: CancellationToken,
) {
    let telling = async {
        loop {
            let text = status(&snapshots.borrow_and_update());
            notifier.status(&text);
            tokio::time::sleep(PAUSE).await;
            if snapshots.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = telling => end.cancelled().await,
        () = end.cancelled() => {}
    }
    notifier.stopping();
    notifier.status("ending: calls under way are finished");
}

/// "3 jobs run, 2 wait, 8 workers".
fn status(cluster: &Cluster) -> String {
    let running = cluster.count_jobs(JobState::Preparing) + cluster.count_jobs(JobState::Running);
    let waiting = cluster.count_jobs(JobState::Queued);
    let workers: usize =
        [WorkerState::Idle, WorkerState::Busy].into_iter().map(|state| cluster.count_workers(state)).sum();
    let (job, run) = if running == 1 { ("job", "runs") } else { ("jobs", "run") };
    let wait = if waiting == 1 { "waits" } else { "wait" };
    let worker = if workers == 1 { "worker" } else { "workers" };
    format!("{running} {job} {run}, {waiting} {wait}, {workers} {worker}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Options, Recovered, Time};
    use crate::store::conformance::queued_job;

    #[test]
    fn the_status_counts_jobs_and_workers() {
        let recovered = |jobs| Recovered { jobs, ..Recovered::default() };
        let of = |recovered| status(&Cluster::recover(Options::default(), recovered, Time(0)));
        assert_eq!(of(Recovered::default()), "0 jobs run, 0 wait, 0 workers");
        assert_eq!(of(recovered(vec![(*queued_job(1)).clone()])), "0 jobs run, 1 waits, 0 workers");
    }
}

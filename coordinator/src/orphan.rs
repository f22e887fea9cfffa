//! A coordinator whose parent process is gone ends, but not before its workers: what they have would have nowhere to go.

use std::{sync::Arc, time::Duration};

use ringtune_shared::daemon::lifecycle::Shutdown;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::core::{Cluster, WorkerState};

/// How long workers may take: for a step, and for the files of a rank (30 s), and a moment to say so.
const WORKERS_LIMIT: Duration = Duration::from_secs(32);

/// Once nobody holds the lifeline any more: waits until the workers, which the same parent started, have left, and then asks
/// the coordinator to end.
pub(crate) async fn end_without_workers(mut snapshots: watch::Receiver<Arc<Cluster>>, shutdown: Shutdown) {
    shutdown.orphaned.cancelled().await;
    info!("nobody holds the lifeline any more: ending once the workers have left");
    let left = snapshots.wait_for(|cluster| !has_workers(cluster));
    tokio::select! {
        _ = left => (),
        () = shutdown.soft.cancelled() => (),
        () = tokio::time::sleep(WORKERS_LIMIT) => {
            warn!("workers are still connected after {} s", WORKERS_LIMIT.as_secs());
        }
    }
    shutdown.soft.cancel();
}

fn has_workers(cluster: &Cluster) -> bool {
    [WorkerState::Idle, WorkerState::Busy].into_iter().any(|state| cluster.count_workers(state) > 0)
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::core::{Input, Sender, SessionId, Time, testing};

    /// A cluster with one worker.
    fn cluster() -> (Cluster, Sender) {
        let mut cluster = testing::cluster();
        let (session, hello) = (SessionId(1), testing::hello(1));
        let worker = hello.worker;
        cluster.apply(Input::Hello { session, hello }, Time(1)).unwrap();
        (cluster, Sender { worker, session })
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_once_the_workers_have_left_or_their_time_is_over() {
        for leaves in [true, false] {
            let (mut cluster, worker) = cluster();
            let (sender, snapshots) = watch::channel(Arc::new(cluster.clone()));
            let shutdown = Shutdown::default();
            let ending = tokio::spawn(end_without_workers(snapshots, shutdown.clone()));
            let ends = || timeout(WORKERS_LIMIT / 2, shutdown.soft.cancelled());
            assert!(ends().await.is_err(), "somebody holds the lifeline");
            shutdown.orphaned.cancel();
            assert!(ends().await.is_err(), "a worker is there");
            if leaves {
                cluster.apply(Input::SessionEnded(worker), Time(2)).unwrap();
                sender.send_replace(Arc::new(cluster));
                tokio::time::timeout(Duration::from_millis(1), shutdown.soft.cancelled()).await.unwrap();
            }
            ending.await.unwrap();
            assert!(shutdown.soft.is_cancelled());
        }
    }
}

//! Whether other workers are reached: those of a ring that is being formed, as long as that takes, and any that somebody
//! asks about.

use std::time::Duration;

use ringtune_shared::{ids::WorkerId, ring::Member, tasks};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Error, Rings,
    lines::{Line, Why},
};

/// A worker that is not reached for so long is not reached, when somebody asks.
const LOOK: Duration = Duration::from_millis(1_500);
/// As much is sent to find out: some ways are too narrow for packets of full size.
const LOOK_BYTES: usize = 32 << 10;
/// A ring is mostly formed by then, and nobody has to be looked at.
const FIRST_LOOK: Duration = Duration::from_millis(250);
/// Between two signs of life that are asked for.
const PULSE: Duration = Duration::from_millis(500);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// A worker listens from before it is given a rank for as long as it lives. So if nobody does for so long, it is gone.
const NOBODY_LISTENS: Duration = Duration::from_secs(1);

impl Rings {
    /// Whether a worker can be reached from here: tried for a second and a half, unless no waiting mends it.
    ///
    /// # Errors
    /// It cannot, and why.
    pub async fn look_at(&self, worker: WorkerId, address: &str) -> Result<(), String> {
        let line = self.lines().to(worker, address)?;
        let looking = async move {
            let mut reason = format!("it did not answer within {} s", LOOK.as_secs_f64());
            let looked = timeout(LOOK, async {
                loop {
                    match line.reach(LOOK_BYTES).await {
                        Ok(_) => return true,
                        Err(none) => {
                            reason = none.reason;
                            if none.why == Why::Hopeless {
                                return false;
                            }
                        }
                    }
                    sleep(PAUSE).await;
                }
            });
            if looked.await == Ok(true) { Ok(()) } else { Err(reason) }
        };
        let looked = AbortOnDropHandle::new(tasks::spawn_on(&self.runtime(), looking)).await;
        looked.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Keeps an eye on neighbours, each with its rank.
    ///
    /// # Errors
    /// An address is none.
    pub(super) fn watch(&self, neighbours: &[(usize, &Member)]) -> Result<Vigil, Error> {
        let (sender, failed) = mpsc::channel(neighbours.len().max(1));
        let patience = self.options().peer_timeout + PULSE;
        let watch = |(rank, member): &(usize, &Member)| {
            let (rank, address) = (*rank, member.address.clone());
            let unreachable = |reason| Error::Unreachable { rank, address: member.address.clone(), reason };
            let line = self.lines().to(member.worker, &address).map_err(unreachable)?;
            let sender = sender.clone();
            let watching = async move {
                let reason = lost(&line, patience).await;
                // The receiver may be gone.
                let _ = sender.send(Error::Unreachable { rank, address, reason }).await;
            };
            Ok(AbortOnDropHandle::new(tasks::spawn_on(&self.runtime(), watching)))
        };
        let watching = neighbours.iter().map(watch).collect::<Result<_, Error>>()?;
        Ok(Vigil { failed, _watching: watching })
    }
}

/// An eye on the neighbours of a ring that is being formed: a neighbour that answers is waited for, however long it takes
/// to come.
#[derive(Debug)]
pub(super) struct Vigil {
    failed: mpsc::Receiver<Error>,
    _watching: Vec<AbortOnDropHandle<()>>,
}

impl Vigil {
    /// Ends when a neighbour gives no sign of life for the lease.
    pub(super) async fn failed(&mut self) -> Error {
        match self.failed.recv().await {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }
}

/// Waits until a worker gives no sign of life for so long, or cannot be reached whatever one waits for; and why.
async fn lost(line: &Line, patience: Duration) -> String {
    let mut heard = Instant::now();
    let mut reason = format!("it gave no sign of life for {} s", patience.as_secs_f64());
    sleep(FIRST_LOOK).await;
    loop {
        match timeout_at(heard + patience, line.reach(0)).await {
            Err(_) => return reason,
            Ok(Ok(connection)) => (heard, reason) = connection.stands(PULSE, patience).await,
            Ok(Err(none)) => {
                reason = none.reason;
                let over = none.why == Why::NobodyListens && heard.elapsed() >= NOBODY_LISTENS;
                if over || none.why == Why::Hopeless {
                    return reason;
                }
            }
        }
        if heard.elapsed() >= patience {
            return reason;
        }
        sleep(PAUSE).await;
    }
}

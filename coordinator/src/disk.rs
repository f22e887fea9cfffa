//! Watches how much is free on the disk of the state folder, and says so before it is full.

use std::{io, path::PathBuf, time::Duration};

use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

use crate::metrics::Metrics;

/// A disk fills over minutes, not over seconds.
const PAUSE: Duration = Duration::from_secs(10);

/// What is to be said once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Less is free than is to stay free.
    Low,
    /// As much is free again.
    Enough,
}

/// Whether there is something new. `least`: bytes that are to stay free; 0: a full disk alone is too little.
fn change(free: u64, least: u64, was_low: bool) -> Option<Change> {
    match (free < least.max(1), was_low) {
        (true, false) => Some(Change::Low),
        (false, true) => Some(Change::Enough),
        _ => None,
    }
}

/// Shows what is free on the disk of `folder` in the metrics, and logs when it gets to be less than `least` bytes and when
/// it is enough again.
pub(crate) async fn watch(folder: PathBuf, least: u64, metrics: Metrics, over: CancellationToken) {
    let mut ticker = tokio::time::interval(PAUSE);
    ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut low = false;
    loop {
        tokio::select! {
            () = over.cancelled() => return,
            _ = ticker.tick() => {}
        }
        let asked = folder.clone();
        let (free, size) = match tokio::task::spawn_blocking(move || bytes_of(&asked)).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => {
                debug!(%error, folder = %folder.display(), "cannot see how much of the disk is free");
                continue;
            }
            Err(_) => return,
        };
        match change(free, least, low) {
            Some(Change::Low) => error!(
                free,
                storage.free_bytes = least,
                folder = %folder.display(),
                "the disk is nearly full: new files are refused, and jobs too once it is full; free some of it"
            ),
            Some(Change::Enough) => info!(free, folder = %folder.display(), "the disk has room again"),
            None => {}
        }
        low = free < least.max(1);
        metrics.set_disk((free, size), low);
    }
}

/// What is free on its disk, and the disk's size.
fn bytes_of(folder: &std::path::Path) -> io::Result<(u64, u64)> {
    let about = rustix::fs::statvfs(folder)?;
    let [free, size] = [about.f_bavail, about.f_blocks].map(|blocks| blocks.saturating_mul(about.f_frsize));
    Ok((free, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_said_once() {
        assert_eq!(change(99, 100, false), Some(Change::Low));
        assert_eq!(change(98, 100, true), None);
        assert_eq!(change(100, 100, true), Some(Change::Enough));
        assert_eq!(change(101, 100, false), None);
        // Without a limit a disk with nothing free is still an alarm.
        assert_eq!(change(0, 0, false), Some(Change::Low));
        assert_eq!(change(1, 0, false), None);
    }
}

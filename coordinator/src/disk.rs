//! Watches how much is free on the disk of the state folder, and says so before it is full.

use std::{
    io,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::{contents::Contents, metrics::Metrics};

/// A disk fills over minutes, not over seconds.
const PAUSE: Duration = Duration::from_secs(10);

/// A change of the alarm, to be logged once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Less is free than is to stay free.
    Low,
    /// As much is free again.
    Enough,
}

/// The change of the alarm, if any. `least`: bytes that are to stay free; 0: a full disk alone is too little.
fn change(free: u64, least: u64, was_low: bool) -> Option<Change> {
    match (free < least.max(1), was_low) {
        (true, false) => Some(Change::Low),
        (false, true) => Some(Change::Enough),
        _ => None,
    }
}

/// The disk of a folder, what is to stay free on it, and where what was seen is shown.
pub(crate) struct Disk {
    /// Whose trash makes room.
    contents: Contents,
    folder: PathBuf,
    /// Bytes.
    least: u64,
    low: bool,
    /// Bytes, at the last look.
    lacking: u64,
    metrics: Metrics,
}

impl Disk {
    /// The disk of `folder`, looked at once: from here on the metrics tell of it. Of the first look a scrape must not see a
    /// half (what is free, and not yet that it is too little), so that it comes before the ports answer.
    pub(crate) async fn look(contents: Contents, folder: PathBuf, least: u64, metrics: Metrics) -> Self {
        let mut disk = Self { contents, folder, least, low: false, lacking: 0, metrics };
        disk.look_again().await;
        disk
    }

    /// Looks again every ten seconds until it is `over`.
    pub(crate) async fn watch(mut self, over: CancellationToken) {
        let mut ticker = tokio::time::interval_at(Instant::now() + PAUSE, PAUSE);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = over.cancelled() => return,
                _ = ticker.tick() => {
                    self.look_again().await;
                    self.make_room().await;
                }
            }
        }
    }

    /// The trash goes where the disk gets to be full, whoever fills it.
    async fn make_room(&self) {
        let lacking = self.lacking;
        if lacking == 0 {
            return;
        }
        let contents = self.contents.clone();
        let freed = tokio::task::spawn_blocking(move || contents.make_room(lacking, SystemTime::now())).await;
        if let Ok(Err(error)) = freed {
            warn!(%error, "cannot empty the trash");
        }
    }

    /// Shows what is free in the metrics, and logs when it gets to be less than is to stay free and when it is enough again.
    async fn look_again(&mut self) {
        let asked = self.folder.clone();
        let folder = self.folder.display();
        let (free, size) = match tokio::task::spawn_blocking(move || bytes_of(&asked)).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => {
                debug!(%error, %folder, "cannot see how much of the disk is free");
                return;
            }
            // The process ends.
            Err(_) => return,
        };
        match change(free, self.least, self.low) {
            Some(Change::Low) => error!(
                free,
                storage.free_bytes = self.least,
                %folder,
                "the disk is nearly full: new files are refused, and jobs too once it is full; free some of it"
            ),
            Some(Change::Enough) => info!(free, %folder, "the disk has room again"),
            None => {}
        }
        self.lacking = self.least.max(1).saturating_sub(free);
        self.low = free < self.least.max(1);
        self.metrics.set_disk(free, size, self.low);
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

//! How far a download is.

use tokio::sync::watch;

/// Bytes of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DownloadProgress {
    /// That are here.
    pub done: u64,
    /// In all; 0 while it is not known.
    pub total: u64,
}

/// Where progress is written. Only the newest is kept: a slow reader slows nothing down.
#[derive(Clone, Debug)]
pub struct ProgressSender(watch::Sender<DownloadProgress>);

/// A fresh pair, at 0 of 0.
pub fn progress_channel() -> (ProgressSender, watch::Receiver<DownloadProgress>) {
    let (sender, receiver) = watch::channel(DownloadProgress::default());
    (ProgressSender(sender), receiver)
}

impl ProgressSender {
    /// Says how far it is.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.0.send_if_modified(|progress| {
            let now = DownloadProgress { done, total };
            std::mem::replace(progress, now) != now
        });
    }
}

/// One file's part of the whole.
#[derive(Clone, Debug)]
pub(crate) struct FileProgress {
    sender: ProgressSender,
    before: u64,
    total: u64,
}

impl FileProgress {
    /// `before`: bytes of the files that are done; `total`: bytes of all.
    pub(crate) fn new(sender: &ProgressSender, before: u64, total: u64) -> Self {
        Self { sender: sender.clone(), before, total }
    }

    pub(crate) fn set(&self, done: u64) {
        self.sender.set(self.before + done, self.total);
    }
}

//! Progress of a download.

use tokio::sync::watch;

/// Bytes of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DownloadProgress {
    /// Bytes received.
    pub done: u64,
    /// In all; 0 while it is not known.
    pub total: u64,
}

/// Writes progress. Only the newest is kept: a slow reader slows nothing down.
#[derive(Clone, Debug)]
pub struct ProgressSender {
    progress: watch::Sender<DownloadProgress>,
    remarks: watch::Sender<Option<String>>,
}

/// A fresh pair, at 0 of 0.
pub fn progress_channel() -> (ProgressSender, watch::Receiver<DownloadProgress>) {
    let (sender, receiver) = watch::channel(DownloadProgress::default());
    (ProgressSender { progress: sender, remarks: watch::Sender::new(None) }, receiver)
}

impl ProgressSender {
    /// Remarks for users who wait: an unreachable server, and the number of tries. Only the newest is kept.
    pub fn remarks(&self) -> watch::Receiver<Option<String>> {
        self.remarks.subscribe()
    }

    pub(crate) fn remark(&self, text: String) {
        self.remarks.send_replace(Some(text));
    }

    /// Says how far it is.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.progress.send_if_modified(|progress| {
            let now = DownloadProgress { done, total };
            std::mem::replace(progress, now) != now
        });
    }
}

/// A file's part of the total.
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

    /// For what else there is to say.
    pub(crate) fn of_all(&self) -> &ProgressSender {
        &self.sender
    }

    pub(crate) fn set(&self, done: u64) {
        self.sender.set(self.before + done, self.total);
    }
}

//! Progress of a run, and the request to stop it: shared by the working threads and their observers.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The current stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The inputs are looked for, and what an earlier run has left is checked.
    Looking,
    /// Texts become tokens.
    Tokenizing,
    /// Tokens are put in order and written.
    Writing,
}

/// Counters of a run. Cheap to read at any time.
#[derive(Debug, Default)]
pub struct Progress {
    stop: AtomicBool,
    stage: AtomicU8,
    documents: AtomicU64,
    tokens: AtomicU64,
    bytes: AtomicU64,
    total_bytes: AtomicU64,
    kept_bytes: AtomicU64,
}

/// A moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The current stage.
    pub stage: Stage,
    /// Tokenized documents, those of earlier runs included.
    pub documents: u64,
    /// Of those documents.
    pub tokens: u64,
    /// Done, in this stage: of texts while tokens are made, of files while they are written.
    pub bytes: u64,
    /// Of the stage; 0 while it is not known.
    pub total_bytes: u64,
    /// Of `bytes`, those of earlier runs.
    pub kept_bytes: u64,
}

impl Progress {
    /// Has the run end soon, with [`crate::Error::Stopped`].
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether somebody wants it to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The current progress.
    pub fn snapshot(&self) -> Snapshot {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            stage: match self.stage.load(Ordering::Relaxed) {
                0 => Stage::Looking,
                1 => Stage::Tokenizing,
                _ => Stage::Writing,
            },
            documents: number(&self.documents),
            tokens: number(&self.tokens),
            bytes: number(&self.bytes),
            total_bytes: number(&self.total_bytes),
            kept_bytes: number(&self.kept_bytes),
        }
    }

    pub(crate) fn enter(&self, stage: Stage, total_bytes: u64, kept_bytes: u64) {
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
        self.bytes.store(kept_bytes, Ordering::Relaxed);
        self.kept_bytes.store(kept_bytes, Ordering::Relaxed);
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_documents(&self, documents: u64, tokens: u64) {
        self.documents.fetch_add(documents, Ordering::Relaxed);
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
    }
}

//! What workers and coordinators of earlier releases said to each other, word for word: sessions that were recorded from
//! the released programs, to be replayed to this build's. For tests alone.
//!
//! `tests/src/recorder.rs` makes them; `tests/coordinator/api/recorded.rs` and `tests/worker/daemon/recorded.rs` play them.

mod release;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use prost::Message as _;
use ringtune_proto::v1::{self, session_request::Message as Up, session_response::Message as Down};

pub use release::Release;

/// One worker's sessions over one job, in the order in which things were seen between it and its coordinator.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Recording {
    /// Entries in order.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
}

/// An entry.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entry {
    /// The event.
    #[prost(oneof = "Happened", tags = "1, 2, 3, 4, 5, 6")]
    pub happened: Option<Happened>,
}

/// An event between a worker and its coordinator.
#[expect(clippy::large_enum_variant, reason = "a recording has a few dozen of them")]
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Happened {
    /// The worker opened a session.
    #[prost(message, tag = "1")]
    Opened(Nothing),
    /// The session broke, for no fault of either side.
    #[prost(message, tag = "2")]
    Broke(Nothing),
    /// The worker said something.
    #[prost(message, tag = "3")]
    Up(v1::SessionRequest),
    /// The coordinator said something.
    #[prost(message, tag = "4")]
    Down(v1::SessionResponse),
    /// The worker began to upload a file of the job.
    #[prost(message, tag = "5")]
    Uploaded(v1::UploadHeader),
    /// The user cancelled the job.
    #[prost(message, tag = "6")]
    Cancelled(Nothing),
}

/// An entry that says all by being there.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Nothing {}

/// A folder of tests/fixtures: "0.2.0" has what that release left.
pub fn folder(release: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(release)
}

impl Recording {
    /// Path of a recording of a release.
    pub fn path(release: &str, name: &str) -> PathBuf {
        folder(release).join("sessions").join(format!("{name}.bin"))
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is not there, or it is damaged.
    pub fn read(release: &str, name: &str) -> Result<Self> {
        let path = Self::path(release, name);
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        Self::decode(bytes.as_slice()).with_context(|| path.display().to_string())
    }

    /// Writes it where [`Recording::read`] finds it.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn write(&self, release: &str, name: &str) -> Result<()> {
        let path = Self::path(release, name);
        std::fs::create_dir_all(path.parent().context("a folder")?)?;
        std::fs::write(&path, self.encode_to_vec()).with_context(|| path.display().to_string())
    }

    /// Entries in order.
    pub fn happened(&self) -> impl Iterator<Item = &Happened> {
        self.entries.iter().filter_map(|entry| entry.happened.as_ref())
    }

    /// Adds what happened. A heartbeat right after one that says the same is left out.
    pub fn add(&mut self, happened: Happened) {
        if heartbeat(&happened).is_some() && self.happened().last() == Some(&happened) {
            return;
        }
        self.entries.push(Entry { happened: Some(happened) });
    }

    /// The coordinator's messages.
    pub fn heard(&self) -> impl Iterator<Item = &Down> {
        self.happened().filter_map(|happened| match happened {
            Happened::Down(response) => response.message.as_ref(),
            _ => None,
        })
    }

    /// The worker's messages.
    pub fn said(&self) -> impl Iterator<Item = &Up> {
        self.happened().filter_map(|happened| match happened {
            Happened::Up(request) => request.message.as_ref(),
            _ => None,
        })
    }

    /// The first rank that the worker was given.
    ///
    /// # Errors
    /// It was given none.
    pub fn assignment(&self) -> Result<&v1::Assignment> {
        let mut assignments = self.heard().filter_map(|heard| match heard {
            Down::Assignment(assignment) => Some(assignment),
            _ => None,
        });
        assignments.next().context("the recording has no assignment")
    }
}

fn heartbeat(happened: &Happened) -> Option<&v1::Heartbeat> {
    match happened {
        Happened::Up(v1::SessionRequest { message: Some(Up::Heartbeat(beat)) }) => Some(beat),
        _ => None,
    }
}

/// The pictures that every recorded job learns from, by their names.
///
/// # Errors
/// They are not there.
pub fn pictures() -> Result<Vec<(String, Vec<u8>)>> {
    let folder = folder("concepts/green-star");
    let mut pictures = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        pictures.push((entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?));
    }
    pictures.sort();
    Ok(pictures)
}

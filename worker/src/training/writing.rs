//! A file of the state after a step, that is written while the next steps are computed.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use ringtune_shared::{
    checkpoint::About,
    state::{State, StateError, StateSource, TensorList},
};
use ringtune_traces::Open;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};

use crate::{output, rank::Error, rank_state::RankState};

/// What is to be written.
#[derive(Debug)]
pub(super) struct StateFile {
    pub(super) path: PathBuf,
    /// What it says of the state.
    pub(super) about: About,
    /// Lasts until the file is there.
    pub(super) span: Option<Open>,
}

/// A file on its way to the disk. Dropped before its end, it is given up, and no file of its name is there.
#[derive(Debug)]
pub(super) struct Writing {
    /// How long it took.
    task: AbortOnDropHandle<Result<Duration, Error>>,
    _wanted: DropGuard,
}

impl Writing {
    /// Holds the state as it is, so that steps may go on, and begins. The state is let go of as soon as the system has all of
    /// it, before that is on the disk and read back.
    ///
    /// # Errors
    /// Whoever has the state does not give it.
    pub(super) async fn begin(file: StateFile, state: RankState) -> Result<Self, Error> {
        let held = ringtune_shared::tasks::spawn_blocking(move || state.hold()).await??;
        let wanted = CancellationToken::new();
        let still = wanted.clone();
        let task = ringtune_shared::tasks::spawn_blocking(move || {
            let StateFile { path, about, mut span } = file;
            let began = Instant::now();
            let written = write(&path, &about, held, &still);
            if let (Some(span), Err(_)) = (&mut span, &written) {
                span.fail();
            }
            written.map(|()| began.elapsed()).map_err(Error::from)
        });
        Ok(Self { task: AbortOnDropHandle::new(task), _wanted: wanted.drop_guard() })
    }

    /// Waits until the file is there and reads back as it was written; how long that took. May be asked again, as long as it
    /// did not answer.
    ///
    /// # Errors
    /// The state cannot be read; the file cannot be written, or holds something else than was written.
    pub(super) async fn outcome(&mut self) -> Result<Duration, Error> {
        (&mut self.task).await?
    }
}

/// Blocks.
fn write(
    path: &Path,
    about: &About,
    held: RankState,
    still: &CancellationToken,
) -> Result<(), output::Error> {
    let numbers = held.numbers().clone();
    let filled = output::checkpoint::fill(path, about, &numbers, &Wanted { state: &held, still })?;
    // The system has all of it; that the disk has, no step waits for.
    drop(held);
    output::checkpoint::end(path, about, &numbers, filled)
}

/// A state as long as somebody wants it.
struct Wanted<'a> {
    state: &'a RankState,
    still: &'a CancellationToken,
}

struct WantedSource<'a> {
    source: Box<dyn StateSource + 'a>,
    still: &'a CancellationToken,
}

impl State for Wanted<'_> {
    fn source(&self) -> Result<Box<dyn StateSource + '_>, StateError> {
        Ok(Box::new(WantedSource { source: self.state.source()?, still: self.still }))
    }
}

impl StateSource for WantedSource<'_> {
    fn list(&self) -> &TensorList {
        self.source.list()
    }

    fn next_chunk(&mut self) -> Result<Option<&[u8]>, StateError> {
        if self.still.is_cancelled() {
            return Err(StateError::refused("nobody wants it any more"));
        }
        self.source.next_chunk()
    }
}

//! What a fake engine is told to do.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::compute_for;

/// Where a [`FakeEngine`](crate::FakeEngine) is to fail, and what it stands for. Gradients are counted from 1.
#[derive(Clone, Debug, Default)]
pub struct FakeScript {
    /// `load` answers this error.
    pub fail_load: Option<String>,
    /// The gradient at which to answer an error.
    pub fail_on_gradient: Option<u64>,
    /// The gradient at which to panic.
    pub panic_on_gradient: Option<u64>,
    /// Gradients from the first to the last of these are not finite.
    pub not_finite: Option<(u64, u64)>,
    /// Rows of the token table are not finite, as in a model that was saved after its training broke down.
    pub token_rows_not_finite: bool,
    /// How long one gradient takes.
    pub gradient_takes: Duration,
    /// What kind of machine it stands for.
    pub machine: FakeMachine,
    /// Pictures are not done before nobody wants them any more.
    pub endless_pictures: bool,
    /// Counts the pictures that were encoded, by all engines that share it.
    pub encoded: Arc<AtomicU64>,
    /// Counts how often the VAE was dropped, by all engines that share it.
    pub dropped: Arc<AtomicU64>,
    /// Counts the gradients that were begun, by all engines that share it.
    pub gradients: Arc<AtomicU64>,
    /// Counts the losses of held-out tokens that were begun, by all engines that share it.
    pub losses: Arc<AtomicU64>,
}

/// How a language model's state is read by whoever holds it; shared by all engines of a script.
#[derive(Clone, Debug, Default)]
pub struct HeldReads {
    /// How long one read takes.
    pub take: Duration,
    /// The read, from 1, that fails, and all after it.
    pub fail_from: Option<usize>,
    /// Of each read that there was, how many gradients the engine had begun by then.
    pub seen: Arc<Mutex<Vec<u64>>>,
}

/// Calls of one kind to one engine, one of which may be held up.
#[derive(Clone, Debug, Default)]
pub struct HeldCalls {
    /// How many were begun.
    pub begun: Arc<AtomicU64>,
    /// The one, counted from 1, that is not done before [`Self::let_go`].
    pub held: Option<u64>,
    /// Ends the waiting.
    pub let_go: Arc<AtomicBool>,
}

impl HeldCalls {
    /// Counts one more, and waits where it is held. Blocks.
    pub(crate) fn pass(&self) {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        while self.held == Some(number) && !self.let_go.load(Ordering::Relaxed) {
            compute_for(Duration::from_millis(1));
        }
    }
}

/// What one engine does with a language model that ranks have together.
#[derive(Clone, Debug, Default)]
pub struct SharesScript {
    /// Squares of gradients: a step's last word to others before it is taken.
    pub squares: HeldCalls,
    /// How often parts were updated with them.
    pub updates: Arc<AtomicU64>,
    /// How often moments of others were forgotten.
    pub forgets: HeldCalls,
}

/// How slow and large a machine is, and whether it hangs.
#[derive(Clone, Debug, Default)]
pub struct FakeMachine {
    /// The gradient that is never done.
    pub hang_on_gradient: Option<u64>,
    /// One gradient that takes another time.
    pub slow_gradient: Option<(u64, Duration)>,
    /// How long `load` takes.
    pub load_takes: Duration,
    /// How long one picture takes to encode.
    pub encoding_takes: Duration,
    /// How long one loss of held-out samples takes.
    pub loss_takes: Duration,
    /// The update of a language model after which one bit of its parameters is another one, as in memory that fails.
    pub wrong_update: Option<u64>,
    /// How a language model's state is read by whoever holds it.
    pub held_reads: HeldReads,
    /// A language model that ranks have together.
    pub shares: SharesScript,
    /// Writes into a language model's state.
    pub writes: HeldCalls,
    /// How long one request for pictures takes.
    pub pictures_take: Duration,
    /// What the engine says of its kernels: engines that differ in it are of different numerics classes.
    pub kernels_revision: u32,
    /// Floats of a token row, which decides how large the state of a job is; none: [`FakeEngine::TEXT_WIDTH`].
    ///
    /// [`FakeEngine::TEXT_WIDTH`]: crate::FakeEngine::TEXT_WIDTH
    pub text_width: Option<usize>,
}

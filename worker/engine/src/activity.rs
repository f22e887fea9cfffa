//! Whether the engine's thread gives signs of life.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// So long one work may go without a sign of progress, whatever it is.
pub const LONGEST_SILENCE: Duration = Duration::from_secs(300);

/// What the engine's thread does, as everybody may see it. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Activity(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// The last sign of the work under way; none: there is none.
    sign: Option<Instant>,
    longest: Duration,
    /// Work that takes longer by itself.
    allowed: Duration,
}

impl Default for State {
    fn default() -> Self {
        Self { sign: None, longest: LONGEST_SILENCE, allowed: Duration::ZERO }
    }
}

impl Activity {
    /// Whether the thread has nothing to do, or gave a sign of progress not too long ago.
    pub fn is_alive(&self) -> bool {
        let state = self.state();
        is_alive(state.sign.map(|sign| sign.elapsed()), state.longest.max(state.allowed))
    }

    /// Another bound than [`LONGEST_SILENCE`], for an engine whose works are short.
    pub fn set_longest_silence(&self, longest: Duration) {
        self.state().longest = longest;
    }

    /// Work of the kind that is under way may be silent for so long from now on, if that is longer than
    /// [`LONGEST_SILENCE`].
    pub fn allow_silence(&self, silence: Duration) {
        self.state().allowed = silence;
    }

    /// The work under way made progress, or begins.
    pub(crate) fn progressed(&self) {
        self.state().sign = Some(Instant::now());
    }

    /// The work under way is done.
    pub(crate) fn done(&self) {
        self.state().sign = None;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `silence`: since the last sign of the work under way.
fn is_alive(silence: Option<Duration>, longest: Duration) -> bool {
    silence.is_none_or(|silence| silence < longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_alive_and_long_silence_is_not() {
        let seconds = Duration::from_secs;
        assert!(is_alive(None, Duration::ZERO));
        assert!(is_alive(Some(seconds(299)), LONGEST_SILENCE));
        assert!(!is_alive(Some(seconds(300)), LONGEST_SILENCE));
    }

    #[test]
    fn work_that_takes_long_by_itself_may_and_no_work_is_hurried() {
        let activity = Activity::default();
        activity.set_longest_silence(Duration::ZERO);
        assert!(activity.is_alive(), "idle");
        activity.progressed();
        assert!(!activity.is_alive());
        activity.allow_silence(Duration::from_secs(900));
        assert!(activity.is_alive());
        activity.allow_silence(Duration::ZERO);
        activity.set_longest_silence(LONGEST_SILENCE);
        assert!(activity.is_alive());
    }

    #[test]
    fn a_sign_counts_until_the_work_is_done() {
        let activity = Activity::default();
        activity.progressed();
        assert!(activity.state().sign.is_some());
        activity.done();
        assert!(activity.state().sign.is_none());
    }
}

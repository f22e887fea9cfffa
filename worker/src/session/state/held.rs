//! A rank that a worker holds.

use std::collections::VecDeque;

use super::window::Window;
use crate::{
    fault::Fault,
    ring::Trouble,
    session::types::{Assignment, Phase, RankKey, StepSummary},
};

/// Step reports kept for a coordinator that is away; the oldest go first. metrics.csv has them all.
const MOST_UNSTORED_STEPS: usize = 200_000;

/// A rank as hello, heartbeats and reports show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRank {
    /// The job and the epoch of the ring that it has now, or is to enter.
    pub key: RankKey,
    /// The place in that ring. None: it prepares to join a later one.
    pub rank: Option<usize>,
    /// Its phase.
    pub phase: Phase,
    /// The last step done.
    pub step: u64,
    /// Why it failed.
    pub reason: String,
    /// It failed only because a neighbour was lost.
    pub neighbour_lost: bool,
    /// The fault, if it failed.
    pub fault: Option<Fault>,
    /// The trouble that broke its ring, as long as it waits for the next one.
    pub trouble: Option<Trouble>,
    /// The worker is to end: the ring is to go on without it.
    pub leaving: bool,
}

impl HeldRank {
    /// A rank that begins to prepare.
    pub(in crate::session) fn new(key: RankKey, rank: Option<usize>) -> Self {
        Self {
            key,
            rank,
            phase: Phase::Preparing,
            step: 0,
            reason: String::new(),
            neighbour_lost: false,
            fault: None,
            trouble: None,
            leaving: false,
        }
    }
}

/// A job that a worker holds, through all rings of one life.
#[derive(Debug)]
pub(super) struct Held {
    /// Under which the life was begun: what it says comes under this key, whatever ring it has.
    pub(super) life: RankKey,
    pub(super) shown: HeldRank,
    /// Waits for the work that runs to end.
    pub(super) waiting: Option<Box<Assignment>>,
    /// Rank 0 sends them; the others keep them in case they are to be rank 0, or end with what they have.
    pub(super) unstored: VecDeque<StepSummary>,
    /// Durations of its steps since its last report.
    pub(super) window: Window,
    /// It became rank 0 with a ring that it has not entered yet: then it sends them all, in their order.
    pub(super) is_new_first: bool,
    /// It was asked to end with what it has, its steps included: whoever has them may be gone.
    pub(super) tells_all: bool,
    /// The coordinator gives a running job another ring.
    pub(super) re_forms: bool,
    /// It was told to work: it does not only prepare.
    pub(super) begun: bool,
    /// Its job goes on without it: nobody asks for it once it has ended.
    pub(super) let_go: bool,
}

impl Held {
    pub(super) fn new(key: RankKey, rank: Option<usize>) -> Self {
        Self {
            life: key,
            shown: HeldRank::new(key, rank),
            waiting: None,
            unstored: VecDeque::new(),
            window: Window::default(),
            is_new_first: false,
            tells_all: false,
            re_forms: false,
            begun: false,
            let_go: false,
        }
    }

    /// Writes the files, and sends the steps.
    pub(super) fn is_first(&self) -> bool {
        self.shown.rank == Some(0)
    }

    /// Whether the steps are its to send, as soon as it has them.
    pub(super) fn sends_steps(&self) -> bool {
        self.tells_all || (self.is_first() && !self.is_new_first)
    }

    /// Takes a step in, and says whether it is to be sent now.
    pub(super) fn take_step(&mut self, step: StepSummary) -> bool {
        self.shown.step = step.step;
        if !self.is_first() && !self.re_forms {
            return false;
        }
        if self.unstored.len() >= MOST_UNSTORED_STEPS {
            self.unstored.pop_front();
        }
        self.unstored.push_back(step);
        self.sends_steps()
    }

    /// Forgets the steps up to this one.
    pub(super) fn trim(&mut self, stored: u64) {
        while self.unstored.front().is_some_and(|first| first.step <= stored) {
            self.unstored.pop_front();
        }
    }

    /// The rank as a hello shows it. A rank whose steps are not all stored yet is not shown as ended: it ends, for the coordinator,
    /// after the steps that follow the hello.
    pub(super) fn for_hello(&self) -> HeldRank {
        let mut shown = self.shown.clone();
        if (self.is_first() || self.tells_all) && shown.phase.is_terminal() && !self.unstored.is_empty() {
            shown.phase = Phase::Training;
        }
        shown
    }
}

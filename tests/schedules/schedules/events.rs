//! Future events, in order.

use std::{cmp::Reverse, collections::BinaryHeap};

use ringtune_coordinator::core::LookAtLinks;
use ringtune_shared::ids::{Epoch, JobId};

use crate::script::Mishap;

/// A ring: a job's, of one epoch.
pub(crate) type RingKey = (JobId, Epoch);

/// Something that happens at its time. Workers by their number; `life` is the number of a rank's life.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The next message of a worker's session arrives.
    Up(u64),
    /// The coordinator's next message arrives.
    Down(u64),
    /// The coordinator sees that a session is over.
    SessionOver(u64),
    /// A worker sees it.
    LinkDown { worker: usize, session: u64 },
    /// The coordinator stores what has arrived.
    Commit,
    /// It looks at its deadlines.
    Tick,
    /// It starts.
    CoordinatorStarts,
    /// A worker tries to reach the coordinator.
    Dial { worker: usize, start: u64 },
    /// It says that it lives.
    Beat { worker: usize, session: u64 },
    /// A worker has looked whom it reaches, and is to say so.
    Looked { worker: usize, session: u64, question: LookAtLinks },
    /// The next word of a rank's life reaches the worker's session.
    Say { worker: usize, start: u64 },
    /// A life's wait is over. `clock` numbers its waits.
    Clock { worker: usize, life: u64, clock: u64 },
    /// Both neighbours are there.
    Connected { worker: usize, life: u64, ring: RingKey },
    /// A rank has everybody's rows.
    Gathered { worker: usize, life: u64, ring: RingKey, number: usize },
    /// A neighbour's connection ended. `refused`: it knows a newer ring only.
    Closed { worker: usize, life: u64, ring: RingKey, by: usize, refused: bool },
    /// A neighbour may have been silent for too long.
    Lease { worker: usize, life: u64, ring: RingKey, of: usize },
    /// A life sends the next of its files.
    Upload { worker: usize, life: u64 },
    /// Outcome of an upload: stored, or the reason of its refusal.
    Answer { worker: usize, life: u64, answer: Answer },
    /// The time for leaving, or the one after it, is over.
    Drained { worker: usize, start: u64, over: bool },
    /// A worker's process is started.
    Starts { worker: usize },
    /// Something goes wrong, or right again, or a user wants something.
    Mishap(Mishap),
}

/// The coordinator's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is done, and stored.
    Done,
    /// No answer.
    Away,
    /// It is refused.
    Refused,
}

#[derive(Debug)]
struct Due(i64, u64, Event);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// Events that are due, the first one first; of the same moment, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    due: BinaryHeap<Reverse<Due>>,
    count: u64,
}

impl Agenda {
    pub(crate) fn add(&mut self, at: i64, event: Event) {
        self.count += 1;
        self.due.push(Reverse(Due(at, self.count, event)));
    }

    pub(crate) fn next(&mut self) -> Option<(i64, Event)> {
        self.due.pop().map(|Reverse(Due(at, _, event))| (at, event))
    }
}

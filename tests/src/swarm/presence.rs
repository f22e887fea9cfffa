//! Who has a session with the coordinator as it runs now, and which sessions its restarts explain.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Counts the sessions of each life of the coordinator.
#[derive(Debug)]
pub(super) struct Presence {
    now: Mutex<Now>,
    life: watch::Sender<Life>,
}

#[derive(Debug, Default)]
struct Now {
    life: Life,
    connected: usize,
}

/// A time between two changes of the coordinator: it runs in the even ones and is being killed in the odd ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Life(u64);

impl Default for Presence {
    fn default() -> Self {
        Self { now: Mutex::default(), life: watch::Sender::new(Life::default()) }
    }
}

impl Presence {
    /// Sees changes of the coordinator.
    pub(super) fn subscribe(&self) -> watch::Receiver<Life> {
        self.life.subscribe()
    }

    /// A session was opened by an attempt that began in `life`.
    pub(super) fn arrive(&self, life: Life) {
        let mut now = self.now();
        if now.life == life {
            now.connected += 1;
        }
    }

    /// That session ended. Whether a change of the coordinator explains it.
    pub(super) fn leave(&self, life: Life) -> bool {
        let mut now = self.now();
        if now.life != life {
            return true;
        }
        now.connected -= 1;
        life.0 % 2 == 1
    }

    pub(super) fn connected(&self) -> usize {
        self.now().connected
    }

    /// It is about to be killed.
    pub(super) fn coordinator_goes(&self) {
        self.change(|life| if life % 2 == 0 { life + 1 } else { life });
    }

    /// It is about to be started again.
    pub(super) fn coordinator_comes(&self) {
        self.change(|life| if life % 2 == 1 { life + 1 } else { life });
    }

    fn change(&self, next: impl Fn(u64) -> u64) {
        let mut now = self.now();
        *now = Now { life: Life(next(now.life.0)), connected: 0 };
        self.life.send_replace(now.life);
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sessions_of_a_coordinator_that_stays_are_lost() {
        let presence = Presence::default();
        let life = *presence.subscribe().borrow();
        presence.arrive(life);
        presence.arrive(life);
        assert!(!presence.leave(life));
        presence.coordinator_goes();
        assert!(presence.leave(life));
        // One that dialled before it was killed.
        let late = *presence.subscribe().borrow();
        presence.arrive(late);
        assert!(presence.leave(late));
        presence.coordinator_comes();
        assert_eq!(presence.connected(), 0);
        presence.arrive(life);
        assert_eq!(presence.connected(), 0);
    }
}

//! Ctrl-C, SIGTERM and a closed terminal: the first wish asks a command to end well, the second ends it at once.

use std::{
    io,
    time::{Duration, Instant},
};

use ringtune_shared::daemon::end_signals::{EndSignal, EndSignals};
use tokio::sync::watch;

/// Signals closer together than this are one wish: some programs signal their child and then its whole
/// process group.
const SAME_WISH: Duration = Duration::from_millis(200);

/// What this process was asked for by signals.
#[derive(Debug, Clone)]
pub struct Interrupts {
    wishes: watch::Receiver<Wishes>,
}

/// State machine over the signals so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Wishes {
    /// The first signal: end well.
    first: Option<EndSignal>,
    /// When somebody last asked in person.
    asked: Option<Instant>,
    /// Somebody asked again: end at once.
    at_once: bool,
}

impl Wishes {
    /// A closed terminal sends its signal as often as shells and the system pass it on, and whoever closed it wants nothing
    /// lost: it never ends a command at once.
    fn take(&mut self, signal: EndSignal, now: Instant) {
        self.first.get_or_insert(signal);
        if signal == EndSignal::Hangup {
            return;
        }
        self.at_once |= self.asked.is_some_and(|asked| now.duration_since(asked) > SAME_WISH);
        self.asked = Some(now);
    }
}

impl Interrupts {
    /// Takes over SIGINT, SIGTERM and SIGHUP. Must be called on the runtime.
    pub fn install() -> io::Result<Self> {
        let mut signals = EndSignals::of_command()?;
        let (sender, wishes) = watch::channel(Wishes::default());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    signal = signals.next() => sender.send_modify(|wishes| wishes.take(signal, Instant::now())),
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Self { wishes })
    }

    /// Returns once there was an interrupt.
    pub async fn first(&self) {
        self.until(|wishes| wishes.first.is_some()).await;
    }

    /// Returns once there were two.
    pub async fn second(&self) {
        self.until(|wishes| wishes.at_once).await;
    }

    /// What the first one was, for people.
    pub fn cause(&self) -> &'static str {
        match self.wishes.borrow().first {
            None | Some(EndSignal::Interrupt) => "Ctrl-C",
            Some(EndSignal::Terminate) => "SIGTERM",
            Some(EndSignal::Hangup) => "SIGHUP, as its terminal was closed",
            // Which only daemons take.
            Some(signal @ EndSignal::Notice) => signal.name(),
        }
    }

    async fn until(&self, reached: impl Fn(&Wishes) -> bool) {
        if self.wishes.clone().wait_for(|wishes| reached(wishes)).await.is_err() {
            // The task that takes signals in is gone: the runtime is ending.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that came, each with its time in milliseconds; whether that is all that ends a command well, or at once.
    #[test]
    fn who_asks_twice_wants_an_end_at_once_and_a_closed_terminal_never_does() {
        use EndSignal::{Hangup, Interrupt, Terminate};
        let start = Instant::now();
        for (signals, at_once) in [
            (&[(Interrupt, 0)][..], false),
            (&[(Interrupt, 0), (Interrupt, 150)], false),
            (&[(Interrupt, 0), (Interrupt, 500)], true),
            (&[(Interrupt, 0), (Terminate, 500)], true),
            (&[(Hangup, 0), (Hangup, 500), (Hangup, 5000)], false),
            (&[(Hangup, 0), (Terminate, 500)], false),
            (&[(Terminate, 0), (Hangup, 500)], false),
            (&[(Hangup, 0), (Terminate, 500), (Terminate, 1000)], true),
        ] {
            let mut wishes = Wishes::default();
            for (signal, milliseconds) in signals {
                wishes.take(*signal, start + Duration::from_millis(*milliseconds));
            }
            assert_eq!((wishes.first, wishes.at_once), (Some(signals[0].0), at_once), "{signals:?}");
        }
    }
}

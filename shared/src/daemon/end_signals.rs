//! The signals by which somebody asks a program to end.

use std::{fs, io};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Lists, among others, the signals that this process ignores.
const STATUS: &str = "/proc/self/status";
/// The line about them: a mask in hex.
const IGNORED: &str = "SigIgn:";

/// A signal that asks a program to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSignal {
    /// Ctrl-C.
    Interrupt,
    /// Sent by `kill` and service managers.
    Terminate,
    /// The terminal was closed, or the connection to it broke.
    Hangup,
    /// The machine will be taken away soon: a scheduler's warning (`sbatch --signal=USR1@120`), behind which SIGTERM may follow.
    Notice,
}

impl EndSignal {
    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
            Self::Notice => "SIGUSR1",
        }
    }
}

/// Catches these signals from now on, in place of their default actions.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
    notice: Option<Signal>,
}

impl EndSignals {
    /// For a daemon: SIGUSR1 too, and not SIGHUP, which says something else to it (`reload`). Must be called on a runtime.
    ///
    /// # Errors
    /// The system's.
    pub fn of_daemon() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: None,
            notice: Some(signal(SignalKind::user_defined1())?),
        })
    }

    /// For a command: SIGHUP too, unless whoever started it has it ignored (`nohup`). Must be called on a runtime.
    ///
    /// # Errors
    /// The system's.
    pub fn of_command() -> io::Result<Self> {
        let kind = SignalKind::hangup();
        // Without /proc nobody can say, and a command whose terminal is gone is to end.
        let status = fs::read_to_string(STATUS).unwrap_or_default();
        let hangup = if ignores(&status, kind.as_raw_value()) { None } else { Some(signal(kind)?) };
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hangup, notice: None })
    }

    /// The next one. Safe to drop in mid-wait.
    pub async fn next(&mut self) -> EndSignal {
        async fn of(signal: &mut Option<Signal>) {
            match signal {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            _ = self.interrupt.recv() => EndSignal::Interrupt,
            _ = self.terminate.recv() => EndSignal::Terminate,
            () = of(&mut self.hangup) => EndSignal::Hangup,
            () = of(&mut self.notice) => EndSignal::Notice,
        }
    }
}

/// Whether a process with this status ignores a signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix(IGNORED));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_has_ignored_stays_ignored() {
        let hangup = SignalKind::hangup().as_raw_value();
        let status =
            |mask| format!("Name:\tringtune\nSigBlk:\tffffffffffffffff\nSigIgn:\t{mask}\nSigCgt:\t0\n");
        assert!(ignores(&status("0000000000000001"), hangup));
        assert!(ignores(&status("0000000000001001"), hangup));
        assert!(!ignores(&status("0000000000001000"), hangup), "SIGPIPE is another one");
        assert!(!ignores("", hangup));
    }
}

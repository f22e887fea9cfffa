//! Notifies the service manager (systemd): the daemon is ready, its status, and signs of progress.
//!
//! The manager names a datagram socket in `NOTIFY_SOCKET`, and in `WATCHDOG_USEC` how long it waits for a sign of progress
//! before it ends the daemon. Signs come from the work itself ([`Notifier::progressed`]); nothing here sends one by a clock.
//! Without a manager nothing is sent.
//!
//! The socket never blocks: a manager that is busy gets what it missed with the next message.
//!
//! In the coordinator progress is a commit that went well, or a disk that was found to be full; in a worker a pass of
//! the session's loop while the engine is not silent (`activity.rs` of the engine's crate).

mod message;
mod socket;

use std::{
    ffi::OsString,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use tracing::warn;

use message::{News, NotifyState};
use socket::Socket;

/// Tells the service manager, if there is one. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Notifier(Option<Arc<Manager>>);

#[derive(Debug)]
struct Manager {
    /// None: `NOTIFY_SOCKET` names no usable socket, which was logged.
    socket: Option<Socket>,
    began: Instant,
    pace: Option<Duration>,
    told: Mutex<NotifyState>,
}

impl Notifier {
    /// As this process's service manager configured it.
    pub fn of_process() -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let watchdog = watchdog(number("WATCHDOG_USEC"), number("WATCHDOG_PID"), std::process::id().into());
        std::env::var_os("NOTIFY_SOCKET").map_or_else(Self::default, |address| Self::to(address, watchdog))
    }

    /// To this socket, whose manager waits so long for a sign of progress.
    pub fn to(address: impl Into<OsString>, watchdog: Option<Duration>) -> Self {
        let address = address.into();
        let socket = Socket::to(&address)
            .inspect_err(|error| {
                warn!(?address, %error, "NOTIFY_SOCKET cannot be used: the service manager hears nothing");
            })
            .ok();
        let pace = watchdog.map(|patience| patience / 4);
        Self(Some(Arc::new(Manager {
            socket,
            began: Instant::now(),
            pace,
            told: Mutex::new(NotifyState::new(pace)),
        })))
    }

    /// Interval of signs of progress; None if nobody expects them.
    pub fn pace(&self) -> Option<Duration> {
        self.0.as_ref()?.pace
    }

    /// The daemon serves.
    pub fn ready(&self) {
        self.say(News::Ready);
    }

    /// Sets the status line, if it changed.
    pub fn status(&self, text: &str) {
        self.say(News::Status(text));
    }

    /// It ends.
    pub fn stopping(&self) {
        self.say(News::Stopping);
    }

    /// It reads its settings again, until it is [ready](Self::ready).
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        self.say(News::Reloading {
            microseconds: now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1000,
        });
    }

    /// Its work goes on. May be called as often as it does.
    pub fn progressed(&self) {
        self.say(News::Progress);
    }

    fn say(&self, news: News<'_>) {
        let Some(manager) = &self.0 else { return };
        let Some(socket) = &manager.socket else { return };
        // Held while the datagram goes, which does not block, so that they arrive in their order.
        let mut told = manager.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(message) = told.message(news, manager.began.elapsed()) else { return };
        match socket.send(&message) {
            Ok(()) => told.went(),
            Err(error) => {
                if told.failed() {
                    warn!(%error, "the service manager does not hear this daemon: going on without");
                }
            }
        }
    }
}

/// The watchdog timeout of this process; None if there is none, or it is another process's.
fn watchdog(microseconds: Option<u64>, process: Option<u64>, own: u64) -> Option<Duration> {
    let meant = process.is_none_or(|process| process == own);
    microseconds.filter(|patience| *patience > 0 && meant).map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn heard(socket: &UnixDatagram) -> Vec<String> {
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0u8; 4096];
        std::iter::from_fn(|| socket.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec()))
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .collect()
    }

    #[test]
    fn a_watchdog_is_ours_or_nobodys() {
        let minute = Some(Duration::from_secs(60));
        assert_eq!(watchdog(Some(60_000_000), None, 7), minute);
        assert_eq!(watchdog(Some(60_000_000), Some(7), 7), minute);
        assert_eq!(watchdog(Some(60_000_000), Some(8), 7), None);
        assert_eq!([watchdog(Some(0), None, 7), watchdog(None, Some(7), 7)], [None, None]);
    }

    #[test]
    fn a_manager_hears_a_life_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::to(&path, Some(Duration::from_secs(3600)));
        notifier.status("starts");
        notifier.ready();
        for _ in 0..3 {
            notifier.progressed();
        }
        notifier.reloading();
        notifier.ready();
        notifier.stopping();
        let heard = heard(&manager);
        assert_eq!(heard[..3], ["STATUS=starts\n", "READY=1\n", "WATCHDOG=1\n"]);
        assert!(heard[3].starts_with("RELOADING=1\nMONOTONIC_USEC="), "{heard:?}");
        assert_eq!(heard[4..], ["READY=1\n", "STOPPING=1\n"]);
    }

    #[test]
    fn an_abstract_socket_does_too() {
        use std::os::linux::net::SocketAddrExt as _;
        let name = format!("ringtune-test-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        Notifier::to(format!("@{name}"), None).ready();
        assert_eq!(heard(&manager), ["READY=1\n"]);
    }

    #[test]
    fn a_manager_that_does_not_read_blocks_nobody_and_is_told_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::to(&path, None);
        for line in 0..10_000 {
            notifier.status(&format!("line {line}"));
        }
        notifier.ready();
        let first = heard(&manager);
        assert!(first.len() < 10_000 && !first.contains(&"READY=1\n".to_owned()), "{}", first.len());
        notifier.status("now");
        assert_eq!(heard(&manager), ["READY=1\nSTATUS=now\n"]);
    }

    #[test]
    fn a_socket_that_is_gone_or_wrong_harms_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::to(&path, None);
        drop(manager);
        std::fs::remove_file(&path).unwrap();
        notifier.ready();
        for wrong in ["", "relative", "/nonexistent/notify", &"/long".repeat(100)] {
            Notifier::to(wrong, Some(Duration::from_secs(1))).ready();
        }
        Notifier::default().ready();
    }
}

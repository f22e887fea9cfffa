//! When the process is to end: signals, and the lifeline of a parent process.

use std::io::Read as _;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::end_signals::{EndSignal, EndSignals};

/// How long a drain may take.
pub const DRAIN_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Requests to end, as they come: `soft` is cancelled by the first signal, `hard` by the second one that is no notice, `orphaned` by
/// the end of a parent process.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// Stop what runs, report it, and end.
    pub soft: CancellationToken,
    /// End now.
    pub hard: CancellationToken,
    /// The parent that held the other end of stdin is gone, however it ended, and with it whoever it had started.
    pub orphaned: CancellationToken,
}

impl Shutdown {
    /// Listens to SIGTERM, SIGINT and SIGUSR1 from now on. A SIGUSR1 is a notice: whoever sends it sends SIGTERM later, which is
    /// no second request.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let mut signals = EndSignals::of_daemon()?;
        let tokens = shutdown.clone();
        tokio::spawn(async move {
            let mut signal = signals.next().await;
            info!(signal = signal.name(), "stopping; a second signal exits at once");
            tokens.soft.cancel();
            let mut requests = 0;
            loop {
                requests += usize::from(signal != EndSignal::Notice);
                if requests == 2 {
                    break;
                }
                signal = signals.next().await;
            }
            warn!(signal = signal.name(), "a second signal: exiting at once");
            tokens.hard.cancel();
        });
        Ok(shutdown)
    }

    /// Says when stdin ends: [`Self::orphaned`]. What follows is the daemon's to say.
    ///
    /// The read blocks a thread of its own, which a runtime would wait for at its end.
    pub fn notice_the_end_of_stdin(&self) -> std::io::Result<()> {
        let orphaned = self.orphaned.clone();
        std::thread::Builder::new().name("lifeline".to_owned()).spawn(move || {
            let mut ignored = [0u8; 256];
            let mut stdin = std::io::stdin().lock();
            while !matches!(stdin.read(&mut ignored), Ok(0) | Err(_)) {}
            orphaned.cancel();
        })?;
        Ok(())
    }
}

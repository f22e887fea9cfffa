//! When the process is to end: signals, and the lifeline of a parent process.

use std::io::Read as _;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How long a drain may take.
pub const DRAIN_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Requests to end, as they come: `soft` is cancelled by the first signal (or the lifeline), `hard` by the
/// second signal.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// Stop what runs, report it, and end.
    pub soft: CancellationToken,
    /// End now.
    pub hard: CancellationToken,
}

impl Shutdown {
    /// Listens to SIGTERM and SIGINT from now on.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let tokens = shutdown.clone();
        tokio::spawn(async move {
            let name = either(&mut terminate, &mut interrupt).await;
            info!(signal = name, "stopping; a second signal exits at once");
            tokens.soft.cancel();
            let name = either(&mut terminate, &mut interrupt).await;
            warn!(signal = name, "a second signal: exiting at once");
            tokens.hard.cancel();
        });
        Ok(shutdown)
    }

    /// Ends softly when stdin ends: the parent that holds the other end is gone, however it ended.
    ///
    /// The read blocks a thread of its own, which a runtime would wait for at its end.
    pub fn end_with_stdin(&self) -> std::io::Result<()> {
        let soft = self.soft.clone();
        std::thread::Builder::new().name("lifeline".to_owned()).spawn(move || {
            let mut ignored = [0u8; 256];
            let mut stdin = std::io::stdin().lock();
            while !matches!(stdin.read(&mut ignored), Ok(0) | Err(_)) {}
            soft.cancel();
        })?;
        Ok(())
    }
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

//! Ctrl-C and SIGTERM: the first asks a command to end well, the second ends it at once.

use std::{
    io,
    time::{Duration, Instant},
};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// Signals closer together than this are one wish: some programs signal their child and then its whole
/// process group.
const SAME_WISH: Duration = Duration::from_millis(200);

/// Counts the interrupts that this process has received.
#[derive(Debug, Clone)]
pub struct Interrupts {
    count: watch::Receiver<u32>,
}

impl Interrupts {
    /// Takes over SIGINT and SIGTERM. Must be called on the runtime.
    pub fn install() -> io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let (sender, count) = watch::channel(0);
        tokio::spawn(async move {
            let mut last: Option<Instant> = None;
            loop {
                tokio::select! {
                    _ = interrupt.recv() => (),
                    _ = terminate.recv() => (),
                    () = sender.closed() => return,
                }
                let now = Instant::now();
                if last.is_none_or(|last| now.duration_since(last) > SAME_WISH) {
                    sender.send_modify(|count| *count += 1);
                }
                last = Some(now);
            }
        });
        Ok(Self { count })
    }

    /// Returns once there was an interrupt.
    pub async fn first(&self) {
        self.at_least(1).await;
    }

    /// Returns once there were two.
    pub async fn second(&self) {
        self.at_least(2).await;
    }

    async fn at_least(&self, wanted: u32) {
        if self.count.clone().wait_for(|count| *count >= wanted).await.is_err() {
            // The counting task is gone: the runtime is ending.
            std::future::pending::<()>().await;
        }
    }
}

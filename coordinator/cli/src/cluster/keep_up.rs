//! A daemon that ends is started again: the machine ran out of memory, somebody killed it, it has a defect.
//!
//! Its work is not lost with it: the coordinator finds its jobs in its folder, and a worker that comes back joins the ring
//! that lost it, or is free for the next rank.

use std::time::Duration;

use tokio::sync::mpsc;

use super::{ClusterError, daemon::Daemon};

/// How patiently a daemon is started again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// The wait before the first new start; doubled with each that did not last.
    shortest: Duration,
    /// No wait is longer.
    longest: Duration,
    /// A daemon that listened so long did last.
    lasted: Duration,
    /// Starts in a row that do not last before it gives up.
    most: u32,
}

/// What `up` and `run` have: some minutes in all.
pub(super) const PATIENCE: Patience = Patience {
    shortest: Duration::from_secs(1),
    longest: Duration::from_secs(30),
    lasted: Duration::from_secs(60),
    most: 8,
};

/// The ends in a row that came soon after a start.
#[derive(Debug, Default)]
struct Ends(u32);

impl Ends {
    /// After an end: how long to wait before the next start; none: it was the last. `age`: how long the daemon listened.
    fn wait(&mut self, age: Duration, patience: Patience) -> Option<Duration> {
        self.0 = if age >= patience.lasted { 1 } else { self.0 + 1 };
        if self.0 >= patience.most {
            return None;
        }
        let doubled = patience.shortest.saturating_mul(1_u32.checked_shl(self.0 - 1).unwrap_or(u32::MAX));
        Some(doubled.min(patience.longest))
    }
}

/// Starts the daemon again whenever it ends, and says so through `notes`; returns why that is given up. Safe to drop in
/// mid-wait.
pub(super) async fn keep_up(
    daemon: &mut Daemon,
    patience: Patience,
    notes: mpsc::Sender<String>,
) -> ClusterError {
    // Whoever does not listen to the notes needs none.
    let say = async |note: String| drop(notes.send(note).await);
    let label = daemon.label().to_owned();
    let mut ends = Ends::default();
    loop {
        let mut end = daemon.exited().await.into_error();
        let mut age = daemon.age();
        loop {
            let Some(wait) = ends.wait(age, patience) else {
                return ClusterError::KeepsEnding { label, times: ends.0, source: Box::new(end) };
            };
            say(format!("error: {end}\nstarting the {label} again in {} s", wait.as_secs_f64())).await;
            tokio::time::sleep(wait).await;
            match daemon.start_again().await {
                Ok(()) => break,
                Err(error) => (end, age) = (error, Duration::ZERO),
            }
        }
        say(format!("the {label} is back")).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::cluster::daemon::{DaemonCommand, Listen};

    #[test]
    fn waits_grow_until_a_daemon_lasts_or_is_given_up() {
        let (soon, long) = (Duration::from_secs(1), Duration::from_secs(60));
        let mut ends = Ends::default();
        let mut waits = || ends.wait(soon, PATIENCE).map(|wait| wait.as_secs());
        assert_eq!([waits(), waits(), waits()], [Some(1), Some(2), Some(4)]);
        // It lasted: whatever was before is forgotten.
        assert_eq!(ends.wait(long, PATIENCE), Some(soon));
        let rest: Vec<_> =
            std::iter::from_fn(|| ends.wait(soon, PATIENCE)).map(|wait| wait.as_secs()).collect();
        assert_eq!(rest, [2, 4, 8, 16, 30, 30]);
        assert_eq!(ends.0, PATIENCE.most);
    }

    const QUICK: Patience = Patience {
        shortest: Duration::from_millis(1),
        longest: Duration::from_millis(4),
        lasted: Duration::from_secs(3600),
        most: 4,
    };

    /// What a daemon does at its start.
    const LISTEN: &str = r#"echo said >&2; echo '{"grpc":"127.0.0.1:1","http":"127.0.0.1:2"}'"#;

    /// A daemon that writes down how it was started, and then does what the script says.
    fn command(folder: &Path, script: &str) -> DaemonCommand {
        let script = format!("cd {}; echo \"$@\" >> starts; {script}", folder.display());
        DaemonCommand {
            label: "worker-1".to_owned(),
            program: "/bin/sh".into(),
            arguments: ["-c", &script, "sh"].map(Into::into).into(),
            log: folder.join("worker-1.log"),
            listen: Listen::Default,
        }
    }

    #[tokio::test]
    async fn a_daemon_that_ends_is_started_again_where_it_was() {
        let folder = tempfile::tempdir().expect("folder");
        // The third one stays.
        let script = format!("{LISTEN}; [ $(wc -l < starts) -ge 3 ] && exec cat; kill -9 $$");
        let mut daemon = Daemon::start(command(folder.path(), &script)).await.expect("started");
        let starts = || fs::read_to_string(folder.path().join("starts")).expect("starts");
        let (notes, mut said) = mpsc::channel(16);
        let third = async {
            while starts().lines().count() < 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            error = keep_up(&mut daemon, QUICK, notes) => panic!("given up: {error}"),
            () = third => (),
        }
        let first = said.recv().await.expect("a note");
        assert!(
            first.contains("signal 9") && first.contains("starting the worker-1 again in 0.001 s"),
            "{first}"
        );
        assert_eq!(said.recv().await.as_deref(), Some("the worker-1 is back"));
        let again = "--listen 127.0.0.1:1 --http-listen 127.0.0.1:2";
        assert_eq!(starts().lines().collect::<Vec<_>>(), ["--free-ports", again, again]);
        let log = fs::read_to_string(folder.path().join("worker-1.log")).expect("log");
        assert!(log.matches("said").count() >= 2, "a new start keeps what the last one said: {log}");
        daemon.stop().await;
    }

    #[tokio::test]
    async fn one_that_never_stays_is_given_up_with_the_reason() {
        let ends_soon = format!("{LISTEN}; exit 7");
        let never_listens_again = format!("[ $(wc -l < starts) -ge 2 ] && echo said >&2 && exit 7; {LISTEN}");
        for script in [ends_soon, never_listens_again] {
            let folder = tempfile::tempdir().expect("folder");
            let mut daemon = Daemon::start(command(folder.path(), &script)).await.expect("started");
            // Nobody listens.
            let (notes, _) = mpsc::channel(1);
            let error = keep_up(&mut daemon, QUICK, notes).await;
            assert!(matches!(error, ClusterError::KeepsEnding { times: 4, .. }), "{error}");
            let text = error.to_string();
            assert!(["worker-1", "7", "said"].iter().all(|part| text.contains(part)), "{text}");
        }
    }
}

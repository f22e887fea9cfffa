//! A coordinator and workers as child processes of this command.

mod binaries;
mod daemon;
mod keep_up;
mod kept_run;
mod places;
mod state_folder;

use std::{io, path::PathBuf, time::Duration};

use futures::{
    StreamExt as _,
    future::{select_all, try_join_all},
    stream::FuturesUnordered,
};
use ringtune_proto::v1::WorkerState;
use tokio::sync::mpsc;

pub use binaries::{COORDINATOR, WORKER, find_program};
pub use daemon::Daemon;
use daemon::{Announcement, DaemonCommand};
pub use kept_run::{KeptRun, RunRecord};
pub use places::state_home;
pub use state_folder::{KeptFolder, RunFolder};

use crate::client::{Client, ClientError, CoordinatorUrl};

/// What the coordinator is called, its folder and its log.
const COORDINATOR_LABEL: &str = "coordinator";
/// What workers are called, with their numbers.
const WORKER_LABEL: &str = "worker-";
/// What is said of daemons that end, on its way to whoever shows it.
pub const NOTES: usize = 16;
/// How long the workers may take to join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(120);
/// Pause between two looks at the list of workers.
const JOIN_POLL: Duration = Duration::from_millis(100);

/// A daemon that could not be started, or did not stay.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// One of Ringtune's own programs is not there.
    #[error(
        "cannot find the program {name}: it is neither beside this one in {} nor in PATH; \
         build it with `make build`, or install the three programs in one folder", folder.display()
    )]
    ProgramMissing {
        /// The program.
        name: &'static str,
        /// Where this command is.
        folder: PathBuf,
    },
    /// A file or folder of its state.
    #[error("{doing} {}: {source}", path.display())]
    File {
        /// For example "cannot make".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system did not start it.
    #[error("cannot start {}: {source}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It started, but never listened.
    #[error("the {label} did not start to listen within {seconds} s; the end of its log:\n{log_tail}")]
    Silent {
        /// Which daemon.
        label: String,
        /// How long it was waited for.
        seconds: u64,
        /// The last lines of its log.
        log_tail: String,
    },
    /// It said something else than where it listens.
    #[error("the {label} announced itself with {line:?}; are all three programs of one version?")]
    Announcement {
        /// Which daemon.
        label: String,
        /// What it said.
        line: String,
    },
    /// It ended by itself.
    #[error("the {label} ended unexpectedly ({status}); the end of its log:\n{log_tail}")]
    Exited {
        /// Which daemon.
        label: String,
        /// Its exit status.
        status: String,
        /// The last lines of its log.
        log_tail: String,
    },
    /// It was started again, but never stayed.
    #[error("the {label} ended {times} times soon after its start; the last time: {source}")]
    KeepsEnding {
        /// Which daemon.
        label: String,
        /// In a row.
        times: u32,
        /// The last end.
        source: Box<ClusterError>,
    },
    /// Workers run, but the coordinator does not see them.
    #[error("{joined} of {wanted} workers joined within {seconds} s; the end of their logs:\n{log_tail}")]
    NotJoined {
        /// Workers seen.
        joined: usize,
        /// Workers started.
        wanted: usize,
        /// How long it was waited for.
        seconds: u64,
        /// The last lines of the missing workers' logs.
        log_tail: String,
    },
    /// Another command, or what it started, has the state folder.
    #[error(
        "another `ringtune up` (or `recover`), or daemons that are still ending, use {}; stop it first, or set XDG_STATE_HOME to another folder", folder.display()
    )]
    InUse {
        /// The state folder.
        folder: PathBuf,
    },
}

/// Which ports the daemons take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ports {
    /// Any that are free.
    Free,
    /// The default ones where they are free.
    Default,
}

/// What to start, and where its state goes.
#[derive(Debug, Clone)]
pub struct ClusterPlan {
    /// Existing folder for state and logs.
    pub folder: PathBuf,
    /// Workers to start; none where only the coordinator's files are wanted.
    pub workers: u32,
    /// Which ports they take.
    pub ports: Ports,
}

/// Running daemons. Dropping it kills them; [`LocalCluster::stop`] ends them well.
#[derive(Debug)]
pub struct LocalCluster {
    coordinator: Daemon,
    workers: Vec<Daemon>,
}

impl LocalCluster {
    /// Starts the coordinator, then all workers at once; returns when all of them listen.
    pub async fn start(plan: &ClusterPlan) -> Result<Self, ClusterError> {
        let (coordinator_program, worker_program) = (find_program(COORDINATOR)?, find_program(WORKER)?);
        let coordinator = Daemon::start(DaemonCommand::new(
            COORDINATOR_LABEL,
            coordinator_program,
            &plan.folder,
            plan.ports,
        ))
        .await?;
        let url = format!("http://{}", coordinator.announcement().grpc);
        let starts = (1..=plan.workers).map(|number| {
            let label = format!("{WORKER_LABEL}{number}");
            let mut command = DaemonCommand::new(&label, worker_program.clone(), &plan.folder, plan.ports);
            command.argument("--coordinator", &url);
            // They read the machine alike, so that no core is two workers'.
            command.argument("--share", format!("{number}/{}", plan.workers));
            command.flag("--allow-trace-dir");
            Daemon::start(command)
        });
        let workers = try_join_all(starts).await?;
        Ok(Self { coordinator, workers })
    }

    /// Where the coordinator listens.
    pub fn coordinator(&self) -> &Announcement {
        self.coordinator.announcement()
    }

    /// Where the workers listen.
    pub fn workers(&self) -> impl ExactSizeIterator<Item = &Announcement> {
        self.workers.iter().map(Daemon::announcement)
    }

    /// A client of the coordinator.
    pub fn client(&self) -> Result<Client, ClusterError> {
        let address = &self.coordinator.announcement().grpc;
        let url: CoordinatorUrl = address.parse().map_err(|_| ClusterError::Announcement {
            label: "coordinator".to_owned(),
            line: address.clone(),
        })?;
        Ok(Client::new(&url))
    }

    /// Waits until the coordinator lists every worker as idle; `joined` is told each new count.
    pub async fn wait_for_workers(
        &mut self,
        client: &Client,
        mut joined: impl FnMut(usize),
    ) -> Result<(), WaitError> {
        let ids: Vec<String> = self.workers().map(|worker| worker.id.clone()).collect();
        let mut count = 0;
        let all_there = async {
            loop {
                let listed = client.list_workers().await?;
                let now = ids
                    .iter()
                    .filter(|id| {
                        listed
                            .iter()
                            .any(|worker| worker.worker_id == **id && worker.state() == WorkerState::Idle)
                    })
                    .count();
                if now != count {
                    count = now;
                    joined(count);
                }
                if count == ids.len() {
                    return Ok(());
                }
                tokio::time::sleep(JOIN_POLL).await;
            }
        };
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(JOIN_TIMEOUT, all_there) => outcome,
            ended = self.next_exit() => return Err(WaitError::Cluster(ended)),
        };
        match outcome {
            Ok(joined) => joined.map_err(WaitError::Client),
            Err(_) => Err(WaitError::Cluster(ClusterError::NotJoined {
                joined: count,
                wanted: ids.len(),
                seconds: JOIN_TIMEOUT.as_secs(),
                log_tail: self.log_tails(),
            })),
        }
    }

    /// Waits until a daemon ends; safe to drop in mid-wait.
    async fn next_exit(&mut self) -> ClusterError {
        let daemons = std::iter::once(&mut self.coordinator).chain(&mut self.workers);
        let (exit, ..) = select_all(daemons.map(|daemon| Box::pin(daemon.exited()))).await;
        exit.into_error()
    }

    /// Starts every daemon again that ends, and says so through `notes`. A worker that does not stay, however often it is
    /// started, is given up; returns when the coordinator, or no worker, does stay. Safe to drop in mid-wait, which leaves
    /// a daemon that is just being started dead.
    pub async fn keep_up(&mut self, notes: mpsc::Sender<String>) -> ClusterError {
        let keep = |daemon| keep_up::keep_up(daemon, keep_up::PATIENCE, notes.clone());
        let mut coordinator = std::pin::pin!(keep(&mut self.coordinator));
        let mut workers: FuturesUnordered<_> = self.workers.iter_mut().map(keep).collect();
        loop {
            tokio::select! {
                error = &mut coordinator => return error,
                Some(error) = workers.next() => {
                    if workers.is_empty() {
                        return error;
                    }
                    // Whoever does not listen to the notes needs none.
                    let _ = notes.send(format!("error: {error}")).await;
                }
            }
        }
    }

    /// Whether a daemon has ended by itself, also one that was started again.
    pub fn lost_a_daemon(&self) -> bool {
        std::iter::once(&self.coordinator).chain(&self.workers).any(Daemon::has_ended)
    }

    /// The last lines of every daemon's log, each under its name.
    pub fn log_tails(&self) -> String {
        let daemons = std::iter::once(&self.coordinator).chain(&self.workers);
        daemons
            .map(|daemon| format!("[{}]\n{}", daemon.label(), daemon.log_tail()))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Ends the workers, then the coordinator, and kills what does not end in time.
    pub async fn stop(self) {
        futures::future::join_all(self.workers.into_iter().map(Daemon::stop)).await;
        self.coordinator.stop().await;
    }
}

/// Why the workers were not all there.
#[derive(Debug)]
pub enum WaitError {
    /// A daemon failed.
    Cluster(ClusterError),
    /// The coordinator did not answer.
    Client(ClientError),
}

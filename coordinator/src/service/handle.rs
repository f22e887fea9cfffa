//! The handle: what the rest of the coordinator may ask for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringtune_shared::ids::{ContentHash, Epoch, JobId};
use tokio::sync::{mpsc, oneshot, watch};

use super::clock::Clock;
use super::error::Error;
use super::watch::{Watch, Watchers};
use crate::core::{ArtifactRecord, Cluster, Down, Hello, Input, Job, NewJob, Sender, SessionId, Time};
use crate::store::Store;

/// The answer to a command, once what it did is stored.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// What a session's stream carries down.
#[derive(Debug)]
pub enum Out {
    /// Say this.
    Message(Down),
    /// End the stream; the text says why.
    End(String),
}

/// What the loop is told.
pub(super) enum Command {
    CreateJob(NewJob, Reply<Arc<Job>>),
    CancelJob(JobId, String, Reply<Arc<Job>>),
    DeleteJob(JobId, Reply<Vec<ContentHash>>),
    KeepArtifact(ArtifactRecord, Option<Epoch>, Reply<()>),
    DropArtifact(JobId, String, Option<Epoch>, Reply<Option<ContentHash>>),
    Hello(Box<Hello>, SessionId, mpsc::Sender<Out>, Reply<()>),
    /// Words of a worker.
    Said(Sender, Input),
    SessionEnded(Sender),
}

/// Cheap to clone. Changes go through the loop; reads go to the store or to the newest snapshot, both
/// of which hold only what is stored.
#[derive(Clone)]
pub struct Handle {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) snapshot: watch::Receiver<Arc<Cluster>>,
    pub(super) store: Arc<dyn Store>,
    pub(super) watchers: Watchers,
    pub(super) sessions: Arc<AtomicU64>,
    pub(super) clock: Clock,
}

impl Handle {
    /// Queues a job, or finds the one that the same request made before.
    pub async fn create_job(&self, new: NewJob) -> Result<Arc<Job>, Error> {
        self.ask(|reply| Command::CreateJob(new, reply)).await
    }

    /// Asks a job to stop; returns it as it is then. One that was cancelled before is returned as it is.
    pub async fn cancel_job(&self, job: JobId, reason: String) -> Result<Arc<Job>, Error> {
        self.ask(|reply| Command::CancelJob(job, reason, reply)).await
    }

    /// Forgets an ended job; returns the contents that no other job's artifacts refer to.
    pub async fn delete_job(&self, job: JobId) -> Result<Vec<ContentHash>, Error> {
        self.ask(|reply| Command::DeleteJob(job, reply)).await
    }

    /// Lists a complete file with an active job. `epoch`: of the ring that made it, where a rank did.
    pub async fn keep_artifact(&self, artifact: ArtifactRecord, epoch: Option<Epoch>) -> Result<(), Error> {
        self.ask(|reply| Command::KeepArtifact(artifact, epoch, reply)).await
    }

    /// Takes a file off an active job's list; returns its content, if it was there. `epoch`: as above.
    pub async fn drop_artifact(
        &self,
        job: JobId,
        name: String,
        epoch: Option<Epoch>,
    ) -> Result<Option<ContentHash>, Error> {
        self.ask(|reply| Command::DropArtifact(job, name, epoch, reply)).await
    }

    /// Opens a session for a worker; from then on `out` carries what it is told.
    pub async fn hello(&self, hello: Hello, out: mpsc::Sender<Out>) -> Result<Sender, Error> {
        let session = SessionId(self.sessions.fetch_add(1, Ordering::Relaxed));
        let sender = Sender { worker: hello.worker, session };
        self.ask(|reply| Command::Hello(Box::new(hello), session, out, reply)).await?;
        Ok(sender)
    }

    /// Passes on what a worker said; waits while the loop is busy.
    pub async fn said(&self, sender: Sender, input: Input) -> Result<(), Error> {
        self.commands.send(Command::Said(sender, input)).await.map_err(|_| Error::ShuttingDown)
    }

    /// Tells that a session ended.
    pub async fn session_ended(&self, sender: Sender) {
        // After the loop's end there is nobody left to know.
        let _ = self.commands.send(Command::SessionEnded(sender)).await;
    }

    /// A job as it is stored, with what is not.
    pub async fn job(&self, id: JobId) -> Result<Job, Error> {
        let job = self.store.job(id).await?.ok_or(Error::NoSuchJob(id))?;
        Ok(self.explained(vec![job]).remove(0))
    }

    /// Jobs as they were read from the store, with what is not stored: how far the ranks are.
    pub fn explained(&self, mut jobs: Vec<Job>) -> Vec<Job> {
        let cluster = self.cluster();
        for job in &mut jobs {
            let live = cluster.job(job.id).and_then(|live| live.ring.as_ref());
            if let (Some(ring), Some(live)) = (&mut job.ring, live)
                && ring.epoch == live.epoch
            {
                ring.clone_from(live);
            }
        }
        jobs
    }

    /// The events of a job after `after`: those stored first, then as they come. A slow reader slows
    /// down nobody: it reads from the store again. Ends after the event that ended the job.
    pub async fn watch_job(&self, id: JobId, after: u64) -> Result<Watch, Error> {
        // Subscribed before the job is read: no event falls between.
        let watch = Watch::new(self.store.clone(), self.watchers.subscribe(id), id, after);
        self.job(id).await?;
        Ok(watch)
    }

    /// The store, for reading.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// All jobs that have not ended and all workers, as of the last commit.
    pub fn cluster(&self) -> Arc<Cluster> {
        self.snapshot.borrow().clone()
    }

    /// When the coordinator started.
    pub fn started(&self) -> Time {
        self.clock.started()
    }

    /// Now, by the clock that inputs carry.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| Error::ShuttingDown)?;
        answer.await.map_err(|_| Error::ShuttingDown)?
    }
}

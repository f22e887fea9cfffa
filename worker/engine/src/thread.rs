//! The engine's own thread, and the handle that the async side holds.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::{Activity, EngineError, Wanted, WorkerEngine};

/// Works that may wait: the engine does one at a time, and nobody sends far ahead.
const QUEUED_WORKS: usize = 4;

/// What the thread is asked to do; it holds the place for its own answer.
type Task = Box<dyn FnOnce(&mut dyn WorkerEngine) + Send>;

/// A task, and who asks for it.
struct Work {
    task: Task,
    /// What log lines are about that are written meanwhile.
    span: Span,
}

impl Work {
    /// On behalf of whoever asks for it.
    fn new(task: impl FnOnce(&mut dyn WorkerEngine) + Send + 'static) -> Self {
        Self { task: Box::new(task), span: Span::current() }
    }
}

/// Sends work to the engine's thread. Cheap to clone; the thread ends with the last handle.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    works: mpsc::Sender<Work>,
    ended: CancellationToken,
    activity: Activity,
}

impl EngineHandle {
    /// Starts the thread; `make` builds the engine on it, so that what libtorch keeps per thread is there. Blocks until
    /// it is built.
    pub fn start<E, F>(make: F) -> Result<Self, EngineError>
    where
        E: WorkerEngine + 'static,
        F: FnOnce() -> Result<E, EngineError> + Send + 'static,
    {
        let (works, receiver) = mpsc::channel(QUEUED_WORKS);
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        let activity = Activity::default();
        let shown = activity.clone();
        std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || {
                let _ended = guard;
                match make() {
                    Ok(engine) => {
                        let _ = ready.send(Ok(()));
                        serve(engine, receiver, &shown);
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
            })
            .map_err(EngineError::Spawn)?;
        started.recv().map_err(|_| EngineError::Gone)??;
        Ok(Self { works, ended, activity })
    }

    /// Whether the thread gives signs of life.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Cancelled when the thread has ended: after the last handle is gone and the last work is done.
    pub fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Runs `work` on the engine's thread, behind what was sent before it, and gives its answer.
    ///
    /// Whoever asked may be gone: a stopped rank does not wait for its last gradient. What nobody waits for any more when
    /// its turn comes is not done, so that the next rank need not wait for it either. Work that takes long asks
    /// [`Wanted`] between its parts.
    ///
    /// # Errors
    /// What `work` answers. [`EngineError::Panicked`]: it panicked, and the engine goes on with the next work.
    /// [`EngineError::Gone`]: the thread has ended.
    pub async fn run<T, W>(&self, work: W) -> Result<T, EngineError>
    where
        T: Send + 'static,
        W: FnOnce(&mut dyn WorkerEngine, Wanted<'_>) -> Result<T, EngineError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let activity = self.activity.clone();
        let send = self.works.send(Work::new(move |engine| {
            if !reply.is_closed() {
                // Whoever asks whether it is still wanted is getting on.
                let asks = || {
                    activity.progressed();
                    !reply.is_closed()
                };
                let done = guarded(|| work(engine, Wanted::by(&asks)));
                let _ = reply.send(done);
            }
        }));
        send.await.map_err(|_| EngineError::Gone)?;
        answer.await.map_err(|_| EngineError::Gone)?
    }

    /// As [`EngineHandle::run`], but the work is also done when nobody waits for it any more: cheap work, whose effect on
    /// the engine is what counts.
    pub async fn run_anyway<T, W>(&self, work: W) -> Result<T, EngineError>
    where
        T: Send + 'static,
        W: FnOnce(&mut dyn WorkerEngine) -> Result<T, EngineError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let send = self.works.send(Work::new(move |engine| {
            let _ = reply.send(guarded(|| work(engine)));
        }));
        send.await.map_err(|_| EngineError::Gone)?;
        answer.await.map_err(|_| EngineError::Gone)?
    }

    /// As [`EngineHandle::run_anyway`], for a thread that may block.
    pub fn run_blocking<T, W>(&self, work: W) -> Result<T, EngineError>
    where
        T: Send + 'static,
        W: FnOnce(&mut dyn WorkerEngine) -> Result<T, EngineError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let send = self.works.blocking_send(Work::new(move |engine| {
            let _ = reply.send(guarded(|| work(engine)));
        }));
        send.map_err(|_| EngineError::Gone)?;
        answer.blocking_recv().map_err(|_| EngineError::Gone)?
    }
}

fn serve(mut engine: impl WorkerEngine, mut works: mpsc::Receiver<Work>, activity: &Activity) {
    while let Some(Work { task, span }) = works.blocking_recv() {
        activity.progressed();
        span.in_scope(|| task(&mut engine));
        activity.done();
    }
}

/// A panic (a C++ exception surfaces as one) is the answer to this work, not the end of the worker.
fn guarded<T>(work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(EngineError::Panicked(panic_message(panic.as_ref()))))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

//! The engine's own thread, and the handle that the async side holds.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Engine, EngineError, EngineIdentity, Gradient, ImageRequest, LoadModel, Microbatch, ModelInfo, Moments,
    Pixels, RgbImage,
};

/// Commands that may wait: the engine does one at a time, and nobody sends far ahead.
const QUEUED_COMMANDS: usize = 4;

type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

/// What the thread is asked to do. Each command carries the place for its answer.
enum Command {
    Identity(Reply<EngineIdentity>),
    Load(LoadModel, Reply<ModelInfo>),
    TokenRow(i64, Reply<Vec<f32>>),
    EncodeImage(Pixels, Reply<Moments>),
    DropVae(Reply<()>),
    Gradient(Box<Microbatch>, Reply<Gradient>),
    Loss(Box<Microbatch>, Reply<f32>),
    Generate(Box<ImageRequest>, Reply<Vec<RgbImage>>),
}

/// Sends commands to the engine's thread. Cheap to clone; the thread ends with the last handle.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: mpsc::Sender<Command>,
    ended: CancellationToken,
}

impl EngineHandle {
    /// Starts the thread; `make` builds the engine on it, so that what libtorch keeps per thread is there.
    pub fn start<E, F>(make: F) -> Result<Self, EngineError>
    where
        E: Engine + 'static,
        F: FnOnce() -> Result<E, EngineError> + Send + 'static,
    {
        let (commands, receiver) = mpsc::channel(QUEUED_COMMANDS);
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || {
                let _ended = guard;
                match make() {
                    Ok(engine) => {
                        let _ = ready.send(Ok(()));
                        serve(engine, receiver);
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
            })
            .map_err(EngineError::Spawn)?;
        started.recv().map_err(|_| EngineError::Gone)??;
        Ok(Self { commands, ended })
    }

    /// Cancelled when the thread has ended: after the last handle is gone and the last command is done.
    pub fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// See [`Engine::identity`].
    pub async fn identity(&self) -> Result<EngineIdentity, EngineError> {
        self.ask(Command::Identity).await
    }

    /// See [`Engine::load`].
    pub async fn load(&self, request: LoadModel) -> Result<ModelInfo, EngineError> {
        self.ask(|reply| Command::Load(request, reply)).await
    }

    /// See [`Engine::token_row`].
    pub async fn token_row(&self, id: i64) -> Result<Vec<f32>, EngineError> {
        self.ask(|reply| Command::TokenRow(id, reply)).await
    }

    /// See [`Engine::encode_image`].
    pub async fn encode_image(&self, pixels: Pixels) -> Result<Moments, EngineError> {
        self.ask(|reply| Command::EncodeImage(pixels, reply)).await
    }

    /// See [`Engine::drop_vae`].
    pub async fn drop_vae(&self) -> Result<(), EngineError> {
        self.ask(Command::DropVae).await
    }

    /// See [`Engine::gradient`].
    pub async fn gradient(&self, microbatch: Microbatch) -> Result<Gradient, EngineError> {
        self.ask(|reply| Command::Gradient(Box::new(microbatch), reply)).await
    }

    /// See [`Engine::loss`].
    pub async fn loss(&self, microbatch: Microbatch) -> Result<f32, EngineError> {
        self.ask(|reply| Command::Loss(Box::new(microbatch), reply)).await
    }

    /// See [`Engine::generate`].
    pub async fn generate(&self, request: ImageRequest) -> Result<Vec<RgbImage>, EngineError> {
        self.ask(|reply| Command::Generate(Box::new(request), reply)).await
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| EngineError::Gone)?;
        answer.await.map_err(|_| EngineError::Gone)?
    }
}

fn serve(mut engine: impl Engine, mut commands: mpsc::Receiver<Command>) {
    while let Some(command) = commands.blocking_recv() {
        let engine = &mut engine;
        match command {
            Command::Identity(reply) => answer(reply, || engine.identity()),
            Command::Load(request, reply) => answer(reply, || engine.load(&request)),
            Command::TokenRow(id, reply) => answer(reply, || engine.token_row(id)),
            Command::EncodeImage(pixels, reply) => answer(reply, || engine.encode_image(&pixels)),
            // Cheap, and what it lets go of is of no use to whoever comes next.
            Command::DropVae(reply) => {
                let _ = reply.send(guarded(|| {
                    engine.drop_vae();
                    Ok(())
                }));
            }
            Command::Gradient(microbatch, reply) => answer(reply, || engine.gradient(&microbatch)),
            Command::Loss(microbatch, reply) => answer(reply, || engine.loss(&microbatch)),
            Command::Generate(request, reply) if !reply.is_closed() => {
                let pictures = guarded(|| engine.generate(&request, &|| !reply.is_closed()));
                let _ = reply.send(pictures);
            }
            Command::Generate(..) => (),
        }
    }
}

/// Whoever asked may be gone: a stopped rank does not wait for its last gradient. What nobody waits for any more when
/// its turn comes is not computed, so that the next rank need not wait for it either.
fn answer<T>(reply: Reply<T>, work: impl FnOnce() -> Result<T, EngineError>) {
    if !reply.is_closed() {
        let _ = reply.send(guarded(work));
    }
}

/// A panic (a C++ exception surfaces as one) is the answer to this command, not the end of the worker.
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

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, atomic::Ordering},
        time::Duration,
    };

    use super::*;
    use crate::engine::{FakeEngine, FakeScript};

    #[tokio::test]
    async fn answers_come_back_and_a_panic_is_an_error_of_one_command() {
        let script = FakeScript { panic_on_gradient: Some(1), ..FakeScript::default() };
        let engine = EngineHandle::start(move || Ok(FakeEngine::new(script))).unwrap();
        assert!(matches!(engine.token_row(0).await, Err(EngineError::NothingLoaded)));
        engine.load(FakeEngine::any_model()).await.unwrap();
        assert_eq!(engine.token_row(3).await.unwrap().len(), FakeEngine::TEXT_WIDTH);
        let microbatch = FakeEngine::any_microbatch();
        assert!(matches!(engine.gradient(microbatch.clone()).await, Err(EngineError::Panicked(_))));
        assert!(engine.gradient(microbatch).await.unwrap().finite);
    }

    /// What draws would else keep the engine from whoever comes next.
    #[tokio::test]
    async fn pictures_that_nobody_waits_for_are_not_drawn_to_the_end() {
        let script = FakeScript { endless_pictures: true, ..FakeScript::default() };
        let engine = EngineHandle::start(move || Ok(FakeEngine::new(script))).unwrap();
        engine.load(FakeEngine::any_model()).await.unwrap();
        let drawing = engine.generate(FakeEngine::any_request());
        assert!(tokio::time::timeout(Duration::from_millis(20), drawing).await.is_err());
        assert_eq!(engine.token_row(3).await.unwrap().len(), FakeEngine::TEXT_WIDTH);
    }

    /// A command that waited behind another one, and whose asker left meanwhile.
    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_computed() {
        let script = FakeScript { endless_pictures: true, ..FakeScript::default() };
        let encoded = Arc::clone(&script.encoded);
        let engine = EngineHandle::start(move || Ok(FakeEngine::new(script))).unwrap();
        engine.load(FakeEngine::any_model()).await.unwrap();
        let pixels = || Pixels { height: 4, width: 4, data: vec![0.5; 48] };
        // 1. The engine is busy, and will be as long as somebody waits for its pictures.
        let mut drawing = Box::pin(engine.generate(FakeEngine::any_request()));
        assert!(tokio::time::timeout(Duration::ZERO, &mut drawing).await.is_err());
        // 2. Behind them stand one whose asker leaves, and one whose asker stays.
        assert!(tokio::time::timeout(Duration::ZERO, engine.encode_image(pixels())).await.is_err());
        let mut wanted = Box::pin(engine.encode_image(pixels()));
        assert!(tokio::time::timeout(Duration::ZERO, &mut wanted).await.is_err());
        drop(drawing);
        wanted.await.unwrap();
        assert_eq!(encoded.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_failure_to_build_the_engine_is_the_answer_to_start() {
        let started =
            EngineHandle::start(|| Err::<FakeEngine, _>(EngineError::Scripted("no libtorch".to_owned())));
        assert!(matches!(started, Err(EngineError::Scripted(reason)) if reason == "no libtorch"));
    }
}

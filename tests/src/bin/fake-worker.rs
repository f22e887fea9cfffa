//! A worker that computes with a few lines of arithmetic instead of libtorch, which it does not link: the daemon's flags
//! and settings, the real protocol, other numbers. For tests of everything around the engine.

use std::{sync::OnceLock, time::Duration};

use clap::{Args, Parser};
use ringtune_fake_engine::{FakeEngine, FakeMachine, FakeScript};
use ringtune_worker::{
    arguments::DaemonArguments,
    engine::{EngineError, EngineHandle, Threads},
    program,
};

/// A worker for tests, on an engine that only adds and multiplies.
#[derive(Parser, Debug)]
#[command(name = "fake-worker", version)]
struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,
    #[command(flatten)]
    engine: EngineArguments,
}

/// How slow and large the engine is, and where it fails. Gradients are counted from 1, over all jobs of this worker.
#[derive(Args, Clone, Debug, Default)]
struct EngineArguments {
    /// How long a gradient takes
    #[arg(long, value_name = "MS", default_value_t = 0)]
    gradient_takes: u64,
    /// One gradient that takes another time
    #[arg(long, value_name = "N", requires = "slow_gradient_takes")]
    slow_gradient: Option<u64>,
    /// How long that one takes
    #[arg(long, value_name = "MS", requires = "slow_gradient")]
    slow_gradient_takes: Option<u64>,
    /// How long loading a model takes
    #[arg(long, value_name = "MS", default_value_t = 0)]
    load_takes: u64,
    /// How long a loss of held-out samples takes
    #[arg(long, value_name = "MS", default_value_t = 0)]
    loss_takes: u64,
    /// How long drawing pictures takes
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pictures_take: u64,
    /// Floats of a token row: a job's state is num_vectors x width x 3 floats
    #[arg(long, value_name = "FLOATS")]
    text_width: Option<usize>,
    /// What it says of its kernels: workers that differ in it are of different numerics classes
    #[arg(long, value_name = "N", default_value_t = 0)]
    kernels_revision: u32,
    /// The gradient that is never done
    #[arg(long, value_name = "N")]
    hang_on_gradient: Option<u64>,
    /// How long its work may give no sign of progress before the service manager is not told of any
    #[arg(long, value_name = "MS")]
    longest_silence: Option<u64>,
    /// The gradient that is not finite
    #[arg(long, value_name = "N")]
    not_finite_on_gradient: Option<u64>,
}

impl EngineArguments {
    fn script(&self) -> FakeScript {
        let slow = self.slow_gradient.zip(self.slow_gradient_takes.map(Duration::from_millis));
        let machine = FakeMachine {
            slow_gradient: slow,
            load_takes: Duration::from_millis(self.load_takes),
            loss_takes: Duration::from_millis(self.loss_takes),
            pictures_take: Duration::from_millis(self.pictures_take),
            text_width: self.text_width,
            kernels_revision: self.kernels_revision,
            hang_on_gradient: self.hang_on_gradient,
            ..FakeMachine::default()
        };
        FakeScript {
            gradient_takes: Duration::from_millis(self.gradient_takes),
            not_finite: self.not_finite_on_gradient.map(|gradient| (gradient, gradient)),
            machine,
            ..FakeScript::default()
        }
    }
}

/// The worker's start takes a plain function, so what this process was told stands here.
static ENGINE: OnceLock<EngineArguments> = OnceLock::new();

fn main() {
    program::main(run)
}

fn run() -> u8 {
    let arguments = Arguments::parse();
    if let Err(code) = program::prepare(&arguments.daemon) {
        return code;
    }
    ENGINE.get_or_init(|| arguments.engine);
    program::run_daemon(&arguments.daemon, start)
}

/// Its arithmetic is too little to be shared among threads.
fn start(_threads: Threads) -> Result<EngineHandle, EngineError> {
    let arguments = ENGINE.get().cloned().unwrap_or_default();
    let script = arguments.script();
    let engine = EngineHandle::start(|| Ok(FakeEngine::new(script)))?;
    if let Some(silence) = arguments.longest_silence {
        engine.activity().set_longest_silence(Duration::from_millis(silence));
    }
    Ok(engine)
}

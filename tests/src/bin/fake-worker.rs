//! A worker that computes with a few lines of arithmetic instead of libtorch, which it does not link: the daemon's flags
//! and settings, the real protocol, other numbers. For tests of everything around the engine.

use std::process::ExitCode;

use clap::Parser;
use ringtune_fake_engine::{FakeEngine, FakeScript};
use ringtune_worker::{
    arguments::DaemonArguments,
    engine::{EngineError, EngineHandle},
    program,
};

/// A worker for tests, on an engine that only adds and multiplies.
#[derive(Parser, Debug)]
#[command(name = "fake-worker", version)]
struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,
}

fn main() -> ExitCode {
    program::run_daemon(&Arguments::parse().daemon, start)
}

/// Its arithmetic is too little to be shared among threads.
fn start(_threads: usize) -> Result<EngineHandle, EngineError> {
    EngineHandle::start(|| Ok(FakeEngine::new(FakeScript::default())))
}

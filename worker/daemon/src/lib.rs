//! The worker on libtorch: joins the worker, which links no library to compute with, and the model library, which knows
//! nothing of workers.

mod torch;

use std::path::Path;

use ringtune_engine::{EngineError, EngineHandle, ModelInfo, Threads};
use ringtune_worker::engine::Library;

use torch::{TorchEngine, engine_error};

/// libtorch, as the worker wants it.
pub const LIBTORCH: Library = Library { start, check_folder };

fn start(threads: Threads) -> Result<EngineHandle, EngineError> {
    EngineHandle::start(move || TorchEngine::new(&threads))
}

fn check_folder(folder: &Path) -> Result<ModelInfo, EngineError> {
    ringtune_model::check_folder(folder).map_err(engine_error)
}

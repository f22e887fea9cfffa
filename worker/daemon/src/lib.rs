//! The worker on libtorch: joins the worker, which links no library to compute with, and the model library, which knows
//! nothing of workers.

#![deny(clippy::disallowed_types)]

mod torch;

use std::path::Path;

use ringtune_engine::{
    EngineError, EngineHandle, MachineRates, ModelInfo, ModelOptions, Precision, Recording, Threads,
};
use ringtune_worker::engine::{Library, Meter};

use torch::{TorchEngine, engine_error};

/// libtorch, as the worker wants it.
pub const LIBTORCH: Library =
    Library { start, check_folder, meter: Meter { start_recording, stop_recording, machine_rates } };

fn start(threads: Threads) -> Result<EngineHandle, EngineError> {
    EngineHandle::start(move || TorchEngine::new(&threads))
}

fn check_folder(folder: &Path, options: &ModelOptions) -> Result<ModelInfo, EngineError> {
    ringtune_model::check_folder_with(folder, options).map_err(engine_error)
}

fn start_recording() -> Result<(), EngineError> {
    ringtune_model::profile::start().map_err(engine_error)
}

fn stop_recording() -> Result<Recording, EngineError> {
    ringtune_model::profile::stop().map_err(engine_error)
}

fn machine_rates(precision: Precision) -> Result<MachineRates, EngineError> {
    ringtune_model::machine_rates(precision).map_err(engine_error)
}

//! The engine computes; everything else in the worker moves plain data to it and from it.
//!
//! An [`Engine`] is synchronous and lives on one operating-system thread ([`EngineHandle::start`]):
//! libtorch's settings are per thread, and its calls last from milliseconds to minutes. The async side
//! holds an [`EngineHandle`], which sends one command at a time over a bounded channel and awaits the answer.

mod error;
mod fake;
mod thread;
mod torch;
mod types;

pub use error::EngineError;
pub use fake::{FakeEngine, FakeScript};
pub use thread::EngineHandle;
pub use torch::TorchEngine;
pub use types::{
    EngineIdentity, Gradient, ImageRequest, LoadModel, Microbatch, ModelInfo, ModelOptions, Moments, Pixels,
    Precision, PredictionType, RgbImage, SamplerKind, TrainingSize,
};

/// Computes moments, gradients and images on a loaded checkpoint. Equal inputs give equal bits on workers
/// of one numerics class with the same number of threads.
pub trait Engine: Send {
    /// What computes here, with the outcome of a small fixed probe step.
    fn identity(&mut self) -> Result<EngineIdentity, EngineError>;

    /// Loads a checkpoint, or keeps the loaded one when the request is the same and the files on disk are
    /// unchanged.
    fn load(&mut self, request: &LoadModel) -> Result<ModelInfo, EngineError>;

    /// The token table's row of token `id`: text_width floats.
    fn token_row(&mut self, id: i64) -> Result<Vec<f32>, EngineError>;

    /// The posterior of one picture. Loads the VAE when it is not in memory.
    fn encode_image(&mut self, pixels: &Pixels) -> Result<Moments, EngineError>;

    /// Lets go of the VAE: training does not need it.
    fn drop_vae(&mut self);

    /// Loss of a microbatch and its gradient with respect to the learned rows.
    fn gradient(&mut self, microbatch: &Microbatch) -> Result<Gradient, EngineError>;

    /// Loss of a microbatch alone.
    fn loss(&mut self, microbatch: &Microbatch) -> Result<f32, EngineError>;

    /// The pictures of one request, in order, with classifier-free guidance. They take long: between the network's
    /// predictions it asks whether they are still wanted, and gives [`EngineError::Unwanted`] if not.
    fn generate(
        &mut self,
        request: &ImageRequest,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<RgbImage>, EngineError>;
}

//! The engine on libtorch: an adapter over the model library.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use ringtune_model::{Runtime, StableDiffusion};

use super::{
    Engine, EngineError, EngineIdentity, Gradient, ImageRequest, LoadModel, Microbatch, ModelInfo, Moments,
    Pixels, RgbImage, TrainingSize,
};

/// Parts of a checkpoint folder whose files decide what is loaded.
const COMPONENTS: [&str; 5] = ["", "text_encoder", "unet", "vae", "scheduler"];

/// libtorch with at most one checkpoint loaded. Build it on the thread that it stays on.
#[derive(Debug)]
pub struct TorchEngine {
    loaded: Option<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    request: LoadModel,
    files: Vec<FileStamp>,
    model: StableDiffusion,
}

/// Tells a changed file without reading it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FileStamp {
    path: PathBuf,
    bytes: u64,
    changed: Option<SystemTime>,
}

impl TorchEngine {
    /// Sets libtorch up with `threads` compute threads; a job may change them later.
    pub fn new(threads: usize) -> Result<Self, EngineError> {
        Runtime::initialise(threads)?;
        Ok(Self { loaded: None })
    }

    fn model(&mut self) -> Result<&mut StableDiffusion, EngineError> {
        self.loaded.as_mut().map(|loaded| &mut loaded.model).ok_or(EngineError::NothingLoaded)
    }
}

impl Engine for TorchEngine {
    fn identity(&mut self) -> Result<EngineIdentity, EngineError> {
        let info = Runtime::info();
        // On one thread, so that workers with different defaults can be of one class: a job fixes the number.
        Runtime::set_threads(1)?;
        let probe = ringtune_model::probe();
        Runtime::set_threads(info.threads)?;
        Ok(EngineIdentity {
            library_version: info.libtorch_version,
            instruction_set: format!("{}+{}", info.cpu_capability, info.matrix_instructions),
            kernels_revision: ringtune_model::KERNELS_REVISION,
            probe: probe?,
        })
    }

    fn load(&mut self, request: &LoadModel) -> Result<ModelInfo, EngineError> {
        Runtime::set_threads(request.threads)?;
        let files = stamps(&request.folder);
        if let Some(loaded) = &self.loaded
            && loaded.request == *request
            && loaded.files == files
        {
            return Ok(loaded.model.info());
        }
        // The old one goes first: two checkpoints may not fit into memory.
        self.loaded = None;
        let model = StableDiffusion::open_with(&request.folder, request.precision, &request.options)?;
        let info = model.info();
        if let Some(TrainingSize { batch, resolution, bucketed: true }) = request.training {
            // Whether the resolution fits the checkpoint is asked by whoever knows the job's fields.
            let side = (resolution / info.vae_factor).max(1);
            model.lay_out(batch, side, side)?;
        }
        self.loaded = Some(Loaded { request: request.clone(), files, model });
        Ok(info)
    }

    fn token_row(&mut self, id: i64) -> Result<Vec<f32>, EngineError> {
        Ok(self.model()?.token_row(id)?)
    }

    fn encode_image(&mut self, pixels: &Pixels) -> Result<Moments, EngineError> {
        Ok(self.model()?.encode_image(pixels)?)
    }

    fn drop_vae(&mut self) {
        if let Some(loaded) = &mut self.loaded {
            loaded.model.drop_vae();
        }
    }

    fn gradient(&mut self, microbatch: &Microbatch) -> Result<Gradient, EngineError> {
        Ok(self.model()?.gradient(&microbatch.view())?)
    }

    fn loss(&mut self, microbatch: &Microbatch) -> Result<f32, EngineError> {
        Ok(self.model()?.loss(&microbatch.view())?)
    }

    fn generate(
        &mut self,
        request: &ImageRequest,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Vec<RgbImage>, EngineError> {
        self.model()?.generate(&request.view(), |_, _| is_wanted())?.ok_or(EngineError::Unwanted)
    }
}

/// Every file of the checkpoint with its size and time of change, in order of their names.
fn stamps(checkpoint: &Path) -> Vec<FileStamp> {
    let within = COMPONENTS
        .iter()
        .filter_map(|component| std::fs::read_dir(checkpoint.join(component)).ok())
        .flat_map(|entries| entries.flatten())
        .map(|entry| entry.path());
    let mut all: Vec<FileStamp> = within
        .chain([checkpoint.to_path_buf()])
        .filter_map(|path| {
            let about = std::fs::metadata(&path).ok().filter(|about| about.is_file())?;
            Some(FileStamp { path, bytes: about.len(), changed: about.modified().ok() })
        })
        .collect();
    all.sort();
    all
}

//! The engine on libtorch: an adapter over the model library.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use ringtune_engine::{
    AdaptLayers, AdaptableLayer, AlignedFloats, Applied, Buckets, DrawPictures, EmbeddingRows, EncodeImages,
    Engine, EngineError, EngineIdentity, FeedTokens, FixedAdapter, GenerateText, Gradient, HeldState,
    HoldParameters, ImageRequest, LanguageModelInfo, LoadModel, Microbatch, ModelInfo, ModelOptions, Moments,
    OpenAdapters, OpenLanguageModel, OpenTextModel, OpenUnet, OptimizerStep, OuterStep, ParametersInfo,
    PassSummary, Pixels, RgbImage, Shares, Shows, StateTensor, TextModelInfo, TextualInversion, Threads,
    TokenBatch, TrainLanguageModel, TrainPictures, TrainingSize, UnetTensor, Wanted,
};
use ringtune_model::{Error, Gpt2, Gpt2Text, Parameters, Runtime, StableDiffusion};
use ringtune_worker::fault::{Fault, of_path};

/// Parts of a model folder whose files decide what is loaded.
const COMPONENTS: [&str; 5] = ["", "text_encoder", "unet", "vae", "scheduler"];

/// libtorch with at most one model loaded. Build it on the thread that it stays on.
#[derive(Debug)]
pub(crate) struct TorchEngine {
    loaded: Option<Loaded>,
    language: Option<Gpt2>,
    text: Option<Gpt2Text>,
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
    /// Sets libtorch up with so many compute threads, in their places; a job may change their number later.
    pub(crate) fn new(threads: &Threads) -> Result<Self, EngineError> {
        Runtime::initialise(threads.count).map_err(engine_error)?;
        if let Err(error) = Runtime::place_threads(&threads.processors) {
            // Only slower.
            tracing::warn!(%error, "threads run wherever the system puts them");
        }
        Ok(Self { loaded: None, language: None, text: None })
    }

    /// Lets go of whatever there is, and of the memory that it leaves: two models may not fit.
    fn drop_all(&mut self) {
        (self.loaded, self.language, self.text) = (None, None, None);
        if let Err(error) = Runtime::release_memory() {
            // The next tensors take of it what they can.
            tracing::debug!(%error, "memory of the model before is kept");
        }
    }

    fn model(&mut self) -> Result<&mut StableDiffusion, EngineError> {
        settle_threads();
        self.loaded.as_mut().map(|loaded| &mut loaded.model).ok_or(EngineError::NothingLoaded)
    }

    fn language(&mut self) -> Result<&mut Gpt2, EngineError> {
        settle_threads();
        self.language.as_mut().ok_or(EngineError::NothingLoaded)
    }

    /// Those of the model that is open for training.
    fn parameters(&mut self) -> Result<&mut Parameters, EngineError> {
        if self.loaded.is_some() {
            return self.model()?.trained().map_err(engine_error);
        }
        Ok(&mut self.language()?.parameters)
    }
}

/// All that takes long begins here.
fn settle_threads() {
    if let Err(error) = Runtime::settle_threads() {
        tracing::debug!(%error, "threads run wherever the system puts them");
    }
}

impl Engine for TorchEngine {
    fn identity(&mut self) -> Result<EngineIdentity, EngineError> {
        let info = Runtime::info();
        // On one thread, so that workers with different defaults can be of one class: a job fixes the number.
        Runtime::set_threads(1).map_err(engine_error)?;
        let probe = ringtune_model::probe();
        Runtime::set_threads(info.threads).map_err(engine_error)?;
        Ok(EngineIdentity {
            library_version: info.libtorch_version,
            instruction_set: format!("{}+{}", info.cpu_capability, info.matrix_instructions),
            kernels_revision: ringtune_model::KERNELS_REVISION,
            probe: probe.map_err(engine_error)?,
        })
    }

    fn load(&mut self, request: &LoadModel) -> Result<ModelInfo, EngineError> {
        Runtime::set_threads(request.threads).map_err(engine_error)?;
        let files = stamps(&request.folder);
        if let Some(loaded) = &mut self.loaded
            && loaded.request == *request
            && loaded.files == files
            && !loaded.model.has_own_unet()
        {
            loaded.model.remove_adapters();
            return Ok(loaded.model.info());
        }
        self.drop_all();
        let model = StableDiffusion::open_with(&request.folder, request.precision, &request.options)
            .map_err(engine_error)?;
        let info = model.info();
        self.loaded = Some(Loaded { request: request.clone(), files, model });
        Ok(info)
    }
}

impl EncodeImages for TorchEngine {
    fn encode_image(&mut self, pixels: &Pixels) -> Result<Moments, EngineError> {
        self.model()?.encode_image(pixels).map_err(engine_error)
    }

    fn drop_vae(&mut self) {
        if let Some(loaded) = &mut self.loaded {
            loaded.model.drop_vae();
        }
    }
}

impl TextualInversion for TorchEngine {
    fn token_row(&mut self, id: i64) -> Result<Vec<f32>, EngineError> {
        self.model()?.token_row(id).map_err(engine_error)
    }

    fn lay_out(&mut self) -> Result<(), EngineError> {
        settle_threads();
        let Loaded { request, model, .. } = self.loaded.as_ref().ok_or(EngineError::NothingLoaded)?;
        let Some(TrainingSize { batch, resolution }) = request.training else { return Ok(()) };
        // Whether the resolution fits the model is asked by whoever knows the job's fields.
        let side = (resolution / model.info().vae_factor).max(1);
        model.lay_out(batch, side, side).map_err(engine_error)
    }

    fn gradient(&mut self, microbatch: &Microbatch) -> Result<Gradient, EngineError> {
        self.model()?.gradient(&microbatch.into()).map_err(engine_error)
    }

    fn loss(&mut self, microbatch: &Microbatch) -> Result<f32, EngineError> {
        self.model()?.loss(&microbatch.into()).map_err(engine_error)
    }
}

impl AdaptLayers for TorchEngine {
    fn adaptable_layers(&mut self) -> Result<Vec<AdaptableLayer>, EngineError> {
        Ok(self.model()?.adaptable_layers())
    }

    fn put_adapters(&mut self, adapters: Vec<FixedAdapter>) -> Result<(), EngineError> {
        self.model()?.put_adapters(&adapters).map_err(engine_error)
    }
}

impl TrainPictures for TorchEngine {
    fn open_adapters(&mut self, request: &OpenAdapters) -> Result<ParametersInfo, EngineError> {
        self.model()?.open_adapters(request).map_err(engine_error)
    }

    fn unet_tensors(
        &mut self,
        folder: &Path,
        options: &ModelOptions,
    ) -> Result<Vec<UnetTensor>, EngineError> {
        let tensors = ringtune_model::unet_tensors(folder, options).map_err(engine_error)?;
        Ok(tensors.into_iter().map(|(name, shape)| UnetTensor { name, shape }).collect())
    }

    fn open_unet(&mut self, request: &OpenUnet) -> Result<ParametersInfo, EngineError> {
        self.model()?.open_unet(request).map_err(engine_error)
    }

    fn picture_gradient(
        &mut self,
        microbatch: &Microbatch,
        add: bool,
        buckets: &mut dyn Buckets,
    ) -> Result<PassSummary, EngineError> {
        self.model()?.picture_gradient(&microbatch.into(), add, buckets).map_err(engine_error)
    }

    fn picture_loss(&mut self, microbatch: &Microbatch) -> Result<f32, EngineError> {
        self.model()?.picture_loss(&microbatch.into()).map_err(engine_error)
    }
}

impl DrawPictures for TorchEngine {
    fn generate(&mut self, request: &ImageRequest, wanted: Wanted<'_>) -> Result<Vec<RgbImage>, EngineError> {
        let drawn = self
            .model()?
            .generate(&request.into(), |done, all| wanted.done(done, all))
            .map_err(engine_error)?;
        drawn.ok_or(EngineError::Unwanted)
    }
}

impl TrainLanguageModel for TorchEngine {
    fn open_language_model(&mut self, request: &OpenLanguageModel) -> Result<LanguageModelInfo, EngineError> {
        Runtime::set_threads(request.threads).map_err(engine_error)?;
        // What was there goes first, as in `load`; a trained model is never the one that is asked for.
        self.drop_all();
        Ok(self.language.insert(Gpt2::open(request).map_err(engine_error)?).info())
    }

    fn language_gradient(
        &mut self,
        batch: &TokenBatch,
        buckets: &mut dyn Buckets,
    ) -> Result<PassSummary, EngineError> {
        self.text = None;
        self.language()?.gradient(batch, buckets).map_err(engine_error)
    }

    fn language_loss(&mut self, batch: &TokenBatch) -> Result<f32, EngineError> {
        self.language()?.loss(batch).map_err(engine_error)
    }
}

impl HoldParameters for TorchEngine {
    fn apply(
        &mut self,
        step: &OptimizerStep,
        looked_up: &EmbeddingRows,
        buckets: &mut [AlignedFloats],
    ) -> Result<Applied, EngineError> {
        self.parameters()?.apply(step, looked_up, buckets).map_err(engine_error)
    }

    fn squared_norm_parts(
        &mut self,
        looked_up: &EmbeddingRows,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Vec<f64>, EngineError> {
        self.parameters()?.squared_norm_parts(looked_up, buckets, shares).map_err(engine_error)
    }

    fn apply_share(
        &mut self,
        step: &OptimizerStep,
        squared_norm: f64,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Applied, EngineError> {
        self.parameters()?.apply_share(step, squared_norm, buckets, shares).map_err(engine_error)
    }

    fn take_parameters(
        &mut self,
        buckets: &[AlignedFloats],
        shares: &Shares,
        average_decay: Option<f64>,
    ) -> Result<(), EngineError> {
        self.parameters()?.take_parameters(buckets, shares, average_decay).map_err(engine_error)
    }

    fn keep_moments(&mut self, shares: &Shares) -> Result<(), EngineError> {
        self.parameters()?.keep_moments(shares).map_err(engine_error)
    }

    fn begin_round(&mut self) -> Result<(), EngineError> {
        self.parameters()?.begin_round().map_err(engine_error)
    }

    fn end_round(&mut self, buckets: &mut [AlignedFloats]) -> Result<(), EngineError> {
        self.parameters()?.end_round(buckets).map_err(engine_error)
    }

    fn apply_round(
        &mut self,
        step: &OuterStep,
        buckets: &mut [AlignedFloats],
    ) -> Result<Applied, EngineError> {
        self.parameters()?.apply_round(step, buckets).map_err(engine_error)
    }

    fn show(&mut self, shows: Shows) -> Result<(), EngineError> {
        self.parameters()?.show(shows).map_err(engine_error)
    }

    fn give_shown(&mut self, parameter: &str, offset: u64, bytes: &[u8]) -> Result<(), EngineError> {
        self.parameters()?.give_shown(parameter, offset, bytes).map_err(engine_error)
    }

    fn state_tensors(&mut self) -> Result<Vec<StateTensor>, EngineError> {
        Ok(self.parameters()?.state_tensors())
    }

    fn read_state(&mut self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<(), EngineError> {
        self.parameters()?.read_state(tensor, offset, into).map_err(engine_error)
    }

    fn write_state(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<(), EngineError> {
        self.parameters()?.write_state(tensor, offset, bytes).map_err(engine_error)
    }

    fn hold_state(&mut self) -> Result<Box<dyn HeldState>, EngineError> {
        Ok(Box::new(self.parameters()?.hold_state().map_err(engine_error)?))
    }
}

impl GenerateText for TorchEngine {
    fn open_text_model(&mut self, request: &OpenTextModel) -> Result<TextModelInfo, EngineError> {
        Runtime::set_threads(request.threads).map_err(engine_error)?;
        self.drop_all();
        Ok(self.text.insert(Gpt2Text::open(request).map_err(engine_error)?).info())
    }

    fn open_trained_text(&mut self) -> Result<TextModelInfo, EngineError> {
        let text = Gpt2Text::of_trained(self.language()?).map_err(engine_error)?;
        Ok(self.text.insert(text).info())
    }

    fn next_logits(&mut self, feed: &FeedTokens) -> Result<Vec<f32>, EngineError> {
        settle_threads();
        let text = self.text.as_mut().ok_or(EngineError::NothingLoaded)?;
        text.next_logits(feed).map_err(engine_error)
    }
}

/// Whose fault it is. libtorch lacks memory, most likely: shapes and values were checked before.
pub(crate) fn engine_error(error: Error) -> EngineError {
    match error {
        Error::Buckets(error) => error,
        Error::Held => EngineError::Held,
        Error::NothingTrained => EngineError::NothingLoaded,
        Error::Io { ref source, .. } => match of_path(source) {
            Fault::Job => EngineError::OfJob(Box::new(error)),
            Fault::Machine => EngineError::OfMachine(Box::new(error)),
            Fault::Node
            | Fault::Coordinator
            | Fault::Link
            | Fault::Nobody
            | Fault::Checkpoint
            | Fault::Access => EngineError::OfNode(Box::new(error)),
        },
        Error::Torch(_) => EngineError::OfNode(Box::new(error)),
        Error::NotAModel { .. }
        | Error::Json { .. }
        | Error::Config { .. }
        | Error::PickleOnly { .. }
        | Error::BadSafetensors { .. }
        | Error::MissingTensor { .. }
        | Error::ExtraTensors { .. }
        | Error::WrongShape { .. }
        | Error::WrongType { .. }
        | Error::NotFinite { .. }
        | Error::Argument { .. } => EngineError::OfJob(Box::new(error)),
    }
}

/// Every file of the model with its size and time of change, in order of their names.
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

#[cfg(test)]
mod tests {
    use ringtune_engine::{BucketSizes, LanguageModelSource, ModelOptions, NewLanguageModel, Precision};

    use super::*;

    /// Private memory of this process, in bytes.
    fn private_bytes() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    #[test]
    fn a_model_leaves_no_memory_to_one_of_another_kind() {
        let mut engine = TorchEngine::new(&Threads::anywhere(2)).unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/toy-sd");
        let model = LoadModel {
            folder,
            options: ModelOptions::default(),
            precision: if Runtime::info().has_bf16 { Precision::Bf16 } else { Precision::Fp32 },
            threads: 2,
            training: None,
        };
        // 1. A step large enough to take megabytes.
        let info = engine.load(&model).unwrap();
        let (before, side) = (private_bytes(), 96);
        let values = vec![0.5; info.latent_channels * side * side];
        let mut input_ids = vec![1; info.max_text_length];
        input_ids[4] = info.vocab_size as i64;
        let microbatch = Microbatch {
            batch: 1,
            latent_channels: info.latent_channels,
            latent_height: side,
            latent_width: side,
            latents: values.clone(),
            noise: values,
            timesteps: vec![300],
            input_ids,
            rows: std::sync::Arc::new(engine.token_row(1).unwrap()),
            snr_gamma: None,
            extras: ringtune_engine::Extras::default(),
        };
        assert!(engine.gradient(&microbatch).unwrap().finite);
        let taken = private_bytes() - before;
        assert!(taken > 64 << 20, "{taken} bytes");
        // 2. A language model takes far less.
        let new = NewLanguageModel {
            vocab_size: 23,
            n_positions: 16,
            n_layer: 1,
            n_head: 1,
            n_embd: 4,
            bias: true,
            seed: 1,
        };
        let language = OpenLanguageModel {
            source: LanguageModelSource::New(new),
            precision: Precision::Fp32,
            threads: 2,
            buckets: BucketSizes { first: 32, others: 128 },
        };
        engine.open_language_model(&language).unwrap();
        let kept = private_bytes().saturating_sub(before);
        assert!(kept < taken / 4, "{kept} bytes of {taken} are kept");
    }

    #[test]
    fn what_the_checkpoint_says_is_the_jobs_fault_and_what_the_disk_does_the_nodes() {
        let file = || PathBuf::from("unet/config.json");
        let job = engine_error(Error::Json { file: file(), reason: "ends too early".to_owned() });
        assert!(matches!(job, EngineError::OfJob(_)));
        assert_eq!(job.to_string(), "unet/config.json: ends too early");
        let node = engine_error(Error::Io { file: file(), source: std::io::Error::other("gone") });
        assert!(matches!(node, EngineError::OfNode(_)));
        assert_eq!(node.to_string(), "unet/config.json: gone");
    }
}

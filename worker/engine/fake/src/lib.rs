//! An engine of a few lines of arithmetic: equal inputs give equal outputs, and a script says where to fail.
//! Everything around the engine is tested with it.
//!
//! It is a crate, for tests alone, and no feature of the engine's crate: cargo gives a dependency the features that
//! anybody in the selection asks for, so that a test's feature would compile everything above the engine a second time
//! and leave the fake in the programs that are built beside the tests.

mod adapters;
mod language_model;
mod parameters;
mod script;
mod text;
mod wants;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use ringtune_engine::{
    AdaptLayers, AdaptableLayer, AlignedFloats, Applied, BucketSizes, Buckets, DrawPictures, EmbeddingRows,
    EncodeImages, Engine, EngineError, EngineIdentity, Extras, FeedTokens, FixedAdapter, GenerateText,
    Gradient, HeldState, HoldParameters, ImageRequest, LanguageModelInfo, LanguageModelSource, LoadModel,
    Microbatch, ModelInfo, ModelOptions, Moments, NewLanguageModel, OpenAdapters, OpenLanguageModel,
    OpenTextModel, OpenUnet, OptimizerStep, OuterStep, ParametersInfo, PassSummary, Pixels, Precision,
    PredictionType, RgbImage, SamplerKind, Shares, Shows, StateTensor, TextModelInfo, TextualInversion,
    TokenBatch, TrainLanguageModel, TrainPictures, UnetTensor, Wanted,
};

use adapters::FakeAdapters;
use language_model::FakeLanguageModel;
use parameters::{FakeParameters, wrong};
pub use script::{FakeMachine, FakeScript, HeldCalls, HeldReads, SharesScript};
use text::FakeTextModel;
use wants::{pulls, squares, wanted};

/// Deterministic and fast; see the module.
#[derive(Debug)]
pub struct FakeEngine {
    script: FakeScript,
    loaded: Option<LoadModel>,
    adapters: Option<FakeAdapters>,
    language: Option<FakeLanguageModel>,
    text: Option<FakeTextModel>,
    gradients: u64,
    updates: u64,
}

impl FakeEngine {
    /// Floats of a token row, unless the script says otherwise.
    pub const TEXT_WIDTH: usize = 8;
    /// Pixels per latent side.
    pub const VAE_FACTOR: usize = 4;
    /// Rows of the token table; CLIP's own number, so that real tokenizers fit.
    pub const VOCABULARY: usize = 49_408;

    /// An engine that follows `script`.
    pub fn new(script: FakeScript) -> Self {
        Self { script, loaded: None, adapters: None, language: None, text: None, gradients: 0, updates: 0 }
    }

    /// A load request that the fake takes.
    pub fn any_model() -> LoadModel {
        LoadModel {
            folder: PathBuf::from("any"),
            options: ModelOptions::default(),
            precision: Precision::Fp32,
            threads: 1,
            training: None,
        }
    }

    /// A small valid microbatch.
    pub fn any_microbatch() -> Microbatch {
        Microbatch {
            batch: 1,
            latent_channels: 4,
            latent_height: 1,
            latent_width: 1,
            latents: vec![0.5; 4],
            noise: vec![-0.25; 4],
            timesteps: vec![10],
            input_ids: vec![0; 77],
            rows: Arc::new(vec![0.125; Self::TEXT_WIDTH]),
            snr_gamma: None,
            extras: Extras::default(),
        }
    }

    /// A small valid request for one picture.
    pub fn any_request() -> ImageRequest {
        ImageRequest {
            batch: 1,
            height: Self::VAE_FACTOR,
            width: Self::VAE_FACTOR,
            prompt_ids: vec![0; 77],
            negative_ids: vec![0; 77],
            rows: Vec::new(),
            sampler: SamplerKind::Ddim,
            steps: 1,
            guidance: 7.5,
            noise: vec![0.5; 4],
            step_noise: Vec::new(),
        }
    }

    /// A small language model that the fake opens, in several buckets.
    pub fn any_language_model() -> OpenLanguageModel {
        let new = NewLanguageModel {
            vocab_size: 23,
            n_positions: 16,
            n_layer: 1,
            n_head: 1,
            n_embd: 4,
            bias: true,
            seed: 1,
        };
        OpenLanguageModel {
            source: LanguageModelSource::New(new),
            precision: Precision::Fp32,
            threads: 1,
            buckets: BucketSizes { first: 32, others: 128 },
        }
    }

    /// The same, to make text with.
    pub fn any_text_model() -> OpenTextModel {
        let OpenLanguageModel { source, precision, threads, .. } = Self::any_language_model();
        OpenTextModel { source, precision, threads }
    }

    fn language(&mut self) -> Result<&mut FakeLanguageModel, EngineError> {
        self.language.as_mut().ok_or(EngineError::NothingLoaded)
    }

    fn adapters(&mut self) -> Result<&mut FakeAdapters, EngineError> {
        self.adapters.as_mut().ok_or(EngineError::NothingLoaded)
    }

    /// Those of what is open for training.
    fn held(&mut self) -> Result<&mut FakeParameters, EngineError> {
        let adapters = self.adapters.as_mut().map(|adapters| &mut adapters.held);
        let language = self.language.as_mut().map(|language| &mut language.held);
        adapters.or(language).ok_or(EngineError::NothingLoaded)
    }

    /// After an update of parameters.
    fn updated(&mut self) -> Result<(), EngineError> {
        self.updates += 1;
        if self.script.machine.wrong_update == Some(self.updates) {
            self.held()?.spoil();
        }
        Ok(())
    }

    /// The next gradient, as the script has it: whether it is finite.
    fn next_gradient(&mut self) -> Result<bool, EngineError> {
        self.gradients += 1;
        self.script.gradients.fetch_add(1, Ordering::Relaxed);
        let count = self.gradients;
        if self.script.fail_on_gradient == Some(count) {
            return Err(EngineError::OfNode(format!("gradient {count} fails as scripted").into()));
        }
        assert!(self.script.panic_on_gradient != Some(count), "gradient {count} panics as scripted");
        while self.script.machine.hang_on_gradient == Some(count) {
            compute_for(Duration::from_secs(1));
        }
        let slow = self.script.machine.slow_gradient.filter(|(slow, _)| *slow == count);
        compute_for(slow.map_or(self.script.gradient_takes, |(_, takes)| takes));
        Ok(!self.script.not_finite.is_some_and(|(first, last)| (first..=last).contains(&count)))
    }

    fn loaded(&self) -> Result<&LoadModel, EngineError> {
        self.loaded.as_ref().ok_or(EngineError::NothingLoaded)
    }

    fn text_width(&self) -> usize {
        self.script.machine.text_width.unwrap_or(Self::TEXT_WIDTH)
    }
}

/// The engine's own thread stands in for a long computation.
fn compute_for(duration: Duration) {
    if !duration.is_zero() {
        #[allow(clippy::disallowed_methods)]
        std::thread::sleep(duration);
    }
}

impl Engine for FakeEngine {
    fn identity(&mut self) -> Result<EngineIdentity, EngineError> {
        Ok(EngineIdentity {
            library_version: "none".to_owned(),
            instruction_set: "fake".to_owned(),
            kernels_revision: self.script.machine.kernels_revision,
            probe: "0".repeat(16),
        })
    }

    fn load(&mut self, request: &LoadModel) -> Result<ModelInfo, EngineError> {
        if let Some(reason) = &self.script.fail_load {
            return Err(EngineError::OfNode(reason.clone().into()));
        }
        compute_for(self.script.machine.load_takes);
        (self.adapters, self.language, self.text) = (None, None, None);
        self.loaded = Some(request.clone());
        Ok(ModelInfo {
            vocab_size: Self::VOCABULARY,
            text_width: self.text_width(),
            max_text_length: 77,
            latent_channels: 4,
            vae_factor: Self::VAE_FACTOR,
            scaling_factor: 0.5,
            num_train_timesteps: 1000,
            prediction_type: PredictionType::Epsilon,
            sampler: SamplerKind::Ddim,
            unknown_scheduler: None,
            parameters: 1,
            native_resolution: None,
        })
    }
}

impl EncodeImages for FakeEngine {
    fn encode_image(&mut self, pixels: &Pixels) -> Result<Moments, EngineError> {
        self.loaded()?;
        self.script.encoded.fetch_add(1, Ordering::Relaxed);
        compute_for(self.script.machine.encoding_takes);
        let (height, width) = (pixels.height / Self::VAE_FACTOR, pixels.width / Self::VAE_FACTOR);
        let positions = height * width;
        let step = (pixels.data.len() / (4 * positions).max(1)).max(1);
        let mean = (0..4 * positions).map(|index| pixels.data[index * step % pixels.data.len()]).collect();
        Ok(Moments { channels: 4, height, width, mean, logvar: vec![-2.0; 4 * positions] })
    }

    fn drop_vae(&mut self) {
        self.script.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl TextualInversion for FakeEngine {
    fn token_row(&mut self, id: i64) -> Result<Vec<f32>, EngineError> {
        self.loaded()?;
        if self.script.token_rows_not_finite {
            return Ok(vec![f32::NAN; self.text_width()]);
        }
        Ok((0..self.text_width()).map(|column| ((id as usize % 97) * 31 + column) as f32 / 3007.0).collect())
    }

    fn lay_out(&mut self) -> Result<(), EngineError> {
        self.loaded().map(drop)
    }

    fn gradient(&mut self, microbatch: &Microbatch) -> Result<Gradient, EngineError> {
        self.loaded()?;
        let started = Instant::now();
        let finite = self.next_gradient()?;
        let grad = pulls(microbatch);
        let loss = if finite { squares(&grad) } else { f32::NAN };
        let forward_seconds = started.elapsed().as_secs_f64();
        Ok(Gradient { loss, grad, finite, forward_seconds, backward_seconds: 0.0 })
    }

    fn loss(&mut self, microbatch: &Microbatch) -> Result<f32, EngineError> {
        self.loaded()?;
        compute_for(self.script.machine.loss_takes);
        Ok(squares(&pulls(microbatch)))
    }
}

impl DrawPictures for FakeEngine {
    fn generate(&mut self, request: &ImageRequest, wanted: Wanted<'_>) -> Result<Vec<RgbImage>, EngineError> {
        self.loaded()?;
        if self.script.endless_pictures {
            while wanted.still() {
                std::thread::yield_now();
            }
            return Err(EngineError::Unwanted);
        }
        compute_for(self.script.machine.pictures_take);
        wanted.done(1, 1);
        let bytes = request.height * request.width * 3;
        let picture = |noise: &[f32]| {
            let tone = |index: usize| ((noise[index % noise.len()] * 32.0) as i32 + 128) as u8;
            RgbImage { height: request.height, width: request.width, data: (0..bytes).map(tone).collect() }
        };
        Ok(request.noise.chunks_exact(request.noise.len() / request.batch.max(1)).map(picture).collect())
    }
}

impl AdaptLayers for FakeEngine {
    fn adaptable_layers(&mut self) -> Result<Vec<AdaptableLayer>, EngineError> {
        self.loaded()?;
        Ok(adapters::layers(self.script.machine.text_width))
    }

    fn put_adapters(&mut self, adapters: Vec<FixedAdapter>) -> Result<(), EngineError> {
        self.loaded()?;
        let layers = adapters::layers(self.script.machine.text_width);
        let known = |adapter: &FixedAdapter| layers.iter().any(|layer| layer.name == adapter.layer);
        match adapters.iter().find(|adapter| !known(adapter)) {
            Some(adapter) => Err(wrong(format!("adapters: no layer {}", adapter.layer))),
            None => Ok(()),
        }
    }
}

impl TrainPictures for FakeEngine {
    fn open_adapters(&mut self, request: &OpenAdapters) -> Result<ParametersInfo, EngineError> {
        self.loaded()?;
        Ok(self.adapters.insert(FakeAdapters::open(request, self.script.machine.text_width)?).held.info())
    }

    fn unet_tensors(
        &mut self,
        _folder: &Path,
        _options: &ModelOptions,
    ) -> Result<Vec<UnetTensor>, EngineError> {
        Ok(adapters::unet_tensors())
    }

    fn open_unet(&mut self, request: &OpenUnet) -> Result<ParametersInfo, EngineError> {
        self.loaded()?;
        Ok(self.adapters.insert(FakeAdapters::open_unet(request)?).held.info())
    }

    fn picture_gradient(
        &mut self,
        microbatch: &Microbatch,
        add: bool,
        buckets: &mut dyn Buckets,
    ) -> Result<PassSummary, EngineError> {
        self.adapters()?;
        let finite = self.next_gradient()?;
        self.adapters()?.gradient(wanted(microbatch), finite, add, buckets)
    }

    fn picture_loss(&mut self, microbatch: &Microbatch) -> Result<f32, EngineError> {
        self.script.losses.fetch_add(1, Ordering::Relaxed);
        compute_for(self.script.machine.loss_takes);
        Ok(self.adapters()?.loss(wanted(microbatch)))
    }
}

impl TrainLanguageModel for FakeEngine {
    fn open_language_model(&mut self, request: &OpenLanguageModel) -> Result<LanguageModelInfo, EngineError> {
        if let Some(reason) = &self.script.fail_load {
            return Err(EngineError::OfNode(reason.clone().into()));
        }
        compute_for(self.script.machine.load_takes);
        (self.loaded, self.adapters, self.text) = (None, None, None);
        Ok(self.language.insert(FakeLanguageModel::open(request)).info())
    }

    fn language_gradient(
        &mut self,
        batch: &TokenBatch,
        buckets: &mut dyn Buckets,
    ) -> Result<PassSummary, EngineError> {
        self.language()?;
        self.text = None;
        let finite = self.next_gradient()?;
        self.language()?.gradient(batch, finite, buckets)
    }

    fn language_loss(&mut self, batch: &TokenBatch) -> Result<f32, EngineError> {
        self.script.losses.fetch_add(1, Ordering::Relaxed);
        compute_for(self.script.machine.loss_takes);
        self.language()?.loss(batch)
    }
}

impl HoldParameters for FakeEngine {
    fn apply(
        &mut self,
        step: &OptimizerStep,
        looked_up: &EmbeddingRows,
        buckets: &mut [AlignedFloats],
    ) -> Result<Applied, EngineError> {
        let applied = self.held()?.apply(step, looked_up, buckets)?;
        self.updated()?;
        Ok(applied)
    }

    fn squared_norm_parts(
        &mut self,
        looked_up: &EmbeddingRows,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Vec<f64>, EngineError> {
        self.script.machine.shares.squares.pass();
        self.held()?.squared_norm_parts(looked_up, buckets, shares)
    }

    fn apply_share(
        &mut self,
        step: &OptimizerStep,
        squared_norm: f64,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Applied, EngineError> {
        let applied = self.held()?.apply_share(step, squared_norm, buckets, shares)?;
        self.updated()?;
        self.script.machine.shares.updates.fetch_add(1, Ordering::Relaxed);
        Ok(applied)
    }

    fn take_parameters(
        &mut self,
        buckets: &[AlignedFloats],
        shares: &Shares,
        average_decay: Option<f64>,
    ) -> Result<(), EngineError> {
        self.held()?.take_parameters(buckets, shares, average_decay)
    }

    fn keep_moments(&mut self, shares: &Shares) -> Result<(), EngineError> {
        self.script.machine.shares.forgets.pass();
        self.held()?.keep_moments(shares)
    }

    fn begin_round(&mut self) -> Result<(), EngineError> {
        self.held()?.begin_round()
    }

    fn end_round(&mut self, buckets: &mut [AlignedFloats]) -> Result<(), EngineError> {
        self.held()?.end_round(buckets)
    }

    fn apply_round(
        &mut self,
        step: &OuterStep,
        buckets: &mut [AlignedFloats],
    ) -> Result<Applied, EngineError> {
        let applied = self.held()?.apply_round(step, buckets)?;
        self.updated()?;
        Ok(applied)
    }

    fn show(&mut self, shows: Shows) -> Result<(), EngineError> {
        self.held()?.show(shows)
    }

    fn give_shown(&mut self, parameter: &str, offset: u64, bytes: &[u8]) -> Result<(), EngineError> {
        self.held()?.give_shown(parameter, offset, bytes)
    }

    fn state_tensors(&mut self) -> Result<Vec<StateTensor>, EngineError> {
        Ok(self.held()?.tensors())
    }

    fn read_state(&mut self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<(), EngineError> {
        self.held()?.read(tensor, offset, into)
    }

    fn write_state(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<(), EngineError> {
        self.script.machine.writes.pass();
        self.held()?.write(tensor, offset, bytes)
    }

    fn hold_state(&mut self) -> Result<Box<dyn HeldState>, EngineError> {
        let (reads, gradients) = (self.script.machine.held_reads.clone(), Arc::clone(&self.script.gradients));
        Ok(Box::new(self.held()?.hold(reads, gradients)))
    }
}

impl GenerateText for FakeEngine {
    fn open_text_model(&mut self, request: &OpenTextModel) -> Result<TextModelInfo, EngineError> {
        if let Some(reason) = &self.script.fail_load {
            return Err(EngineError::OfNode(reason.clone().into()));
        }
        compute_for(self.script.machine.load_takes);
        (self.loaded, self.adapters, self.language) = (None, None, None);
        Ok(self.text.insert(FakeTextModel::open(request)).info())
    }

    fn open_trained_text(&mut self) -> Result<TextModelInfo, EngineError> {
        let text = FakeTextModel::of_trained(self.language()?);
        Ok(self.text.insert(text).info())
    }

    fn next_logits(&mut self, feed: &FeedTokens) -> Result<Vec<f32>, EngineError> {
        self.text.as_mut().ok_or(EngineError::NothingLoaded)?.next(feed)
    }
}

//! The engine's methods on its handle: [`EngineHandle::run`] with one call in it.

use std::path::PathBuf;

use crate::{
    Activity, AdaptableLayer, AlignedFloats, Applied, Buckets, EmbeddingRows, EngineError, EngineHandle,
    EngineIdentity, FeedTokens, FixedAdapter, Gradient, HeldState, ImageRequest, LanguageModelInfo,
    LoadModel, Microbatch, ModelInfo, ModelOptions, Moments, OpenAdapters, OpenLanguageModel, OpenTextModel,
    OpenUnet, OptimizerStep, OuterStep, ParametersInfo, PassSummary, Pixels, RgbImage, Shares, Shows,
    StateTensor, TextModelInfo, TokenBatch, UnetTensor,
};

/// What every engine does.
impl EngineHandle {
    /// See [`crate::Engine::identity`].
    pub async fn identity(&self) -> Result<EngineIdentity, EngineError> {
        self.run(|engine, _| engine.identity()).await
    }

    /// See [`crate::Engine::load`].
    pub async fn load(&self, request: LoadModel) -> Result<ModelInfo, EngineError> {
        self.run(move |engine, _| engine.load(&request)).await
    }
}

/// Encoding pictures.
impl EngineHandle {
    /// See [`crate::EncodeImages::encode_image`].
    pub async fn encode_image(&self, pixels: Pixels) -> Result<Moments, EngineError> {
        self.run(move |engine, _| engine.encode_image(&pixels)).await
    }

    /// See [`crate::EncodeImages::drop_vae`]. Done even when nobody waits for it any more: what it lets go of is of no
    /// use to whoever comes next.
    pub async fn drop_vae(&self) -> Result<(), EngineError> {
        self.run_anyway(|engine| {
            engine.drop_vae();
            Ok(())
        })
        .await
    }
}

/// Textual inversion.
impl EngineHandle {
    /// See [`crate::TextualInversion::token_row`].
    pub async fn token_row(&self, id: i64) -> Result<Vec<f32>, EngineError> {
        self.run(move |engine, _| engine.token_row(id)).await
    }

    /// See [`crate::TextualInversion::lay_out`].
    pub async fn lay_out(&self) -> Result<(), EngineError> {
        self.run(|engine, _| engine.lay_out()).await
    }

    /// See [`crate::TextualInversion::gradient`].
    pub async fn gradient(&self, microbatch: Microbatch) -> Result<Gradient, EngineError> {
        self.run(move |engine, _| engine.gradient(&microbatch)).await
    }

    /// See [`crate::TextualInversion::loss`].
    pub async fn loss(&self, microbatch: Microbatch) -> Result<f32, EngineError> {
        self.run(move |engine, _| engine.loss(&microbatch)).await
    }
}

/// Training a part of a model that draws pictures.
impl EngineHandle {
    /// See [`crate::TrainPictures::unet_tensors`].
    pub async fn unet_tensors(
        &self,
        folder: PathBuf,
        options: ModelOptions,
    ) -> Result<Vec<UnetTensor>, EngineError> {
        self.run(move |engine, _| engine.unet_tensors(&folder, &options)).await
    }

    /// See [`crate::TrainPictures::open_unet`].
    pub async fn open_unet(&self, request: OpenUnet) -> Result<ParametersInfo, EngineError> {
        self.run(move |engine, _| engine.open_unet(&request)).await
    }

    /// See [`crate::TrainPictures::open_adapters`].
    pub async fn open_adapters(&self, request: OpenAdapters) -> Result<ParametersInfo, EngineError> {
        self.run(move |engine, _| engine.open_adapters(&request)).await
    }

    /// See [`crate::TrainPictures::picture_gradient`]. The buckets come back; after an error they are gone.
    pub async fn picture_gradient<B: Buckets + Send + 'static>(
        &self,
        microbatch: Microbatch,
        add: bool,
        mut buckets: B,
    ) -> Result<(PassSummary, B), EngineError> {
        let activity = self.activity().clone();
        self.run(move |engine, _| {
            let mut signs = Signs { buckets: &mut buckets, activity: &activity };
            Ok((engine.picture_gradient(&microbatch, add, &mut signs)?, buckets))
        })
        .await
    }

    /// See [`crate::TrainPictures::picture_loss`].
    pub async fn picture_loss(&self, microbatch: Microbatch) -> Result<f32, EngineError> {
        self.run(move |engine, _| engine.picture_loss(&microbatch)).await
    }
}

/// Drawing pictures.
impl EngineHandle {
    /// See [`crate::AdaptLayers::adaptable_layers`].
    pub async fn adaptable_layers(&self) -> Result<Vec<AdaptableLayer>, EngineError> {
        self.run(|engine, _| engine.adaptable_layers()).await
    }

    /// See [`crate::AdaptLayers::put_adapters`].
    pub async fn put_adapters(&self, adapters: Vec<FixedAdapter>) -> Result<(), EngineError> {
        self.run(move |engine, _| engine.put_adapters(adapters)).await
    }

    /// See [`crate::DrawPictures::generate`].
    pub async fn generate(&self, request: ImageRequest) -> Result<Vec<RgbImage>, EngineError> {
        self.generate_telling(request, |_, _| ()).await
    }

    /// The same; `tell` hears on the engine's thread how many of how many of the network's predictions are done.
    pub async fn generate_telling(
        &self,
        request: ImageRequest,
        tell: impl Fn(usize, usize) + Send + 'static,
    ) -> Result<Vec<RgbImage>, EngineError> {
        self.run(move |engine, wanted| engine.generate(&request, wanted.telling(&tell))).await
    }
}

/// Text from language models.
impl EngineHandle {
    /// See [`crate::GenerateText::open_text_model`].
    pub async fn open_text_model(&self, request: OpenTextModel) -> Result<TextModelInfo, EngineError> {
        self.run(move |engine, _| engine.open_text_model(&request)).await
    }

    /// See [`crate::GenerateText::open_trained_text`].
    pub async fn open_trained_text(&self) -> Result<TextModelInfo, EngineError> {
        self.run(|engine, _| engine.open_trained_text()).await
    }

    /// See [`crate::GenerateText::next_logits`].
    pub async fn next_logits(&self, feed: FeedTokens) -> Result<Vec<f32>, EngineError> {
        self.run(move |engine, _| engine.next_logits(&feed)).await
    }
}

/// Training language models.
impl EngineHandle {
    /// See [`crate::TrainLanguageModel::open_language_model`].
    pub async fn open_language_model(
        &self,
        request: OpenLanguageModel,
    ) -> Result<LanguageModelInfo, EngineError> {
        self.run(move |engine, _| engine.open_language_model(&request)).await
    }

    /// See [`crate::TrainLanguageModel::language_gradient`]. The buckets come back; after an error they are gone.
    pub async fn language_gradient<B: Buckets + Send + 'static>(
        &self,
        batch: TokenBatch,
        mut buckets: B,
    ) -> Result<(PassSummary, B), EngineError> {
        let activity = self.activity().clone();
        self.run(move |engine, _| {
            let mut signs = Signs { buckets: &mut buckets, activity: &activity };
            Ok((engine.language_gradient(&batch, &mut signs)?, buckets))
        })
        .await
    }

    /// See [`crate::TrainLanguageModel::language_loss`].
    pub async fn language_loss(&self, batch: TokenBatch) -> Result<f32, EngineError> {
        self.run(move |engine, _| engine.language_loss(&batch)).await
    }
}

/// Parameters that are trained.
impl EngineHandle {
    /// See [`crate::HoldParameters::apply`]. The buckets come back; after an error they are gone. Done even when nobody
    /// waits for it any more: whoever asked has to know what the parameters are.
    pub async fn apply(
        &self,
        step: OptimizerStep,
        looked_up: EmbeddingRows,
        mut buckets: Vec<AlignedFloats>,
    ) -> Result<(Applied, Vec<AlignedFloats>), EngineError> {
        self.run_anyway(move |engine| Ok((engine.apply(&step, &looked_up, &mut buckets)?, buckets))).await
    }

    /// See [`crate::HoldParameters::squared_norm_parts`]. The buckets come back; after an error they are gone.
    pub async fn squared_norm_parts(
        &self,
        looked_up: EmbeddingRows,
        mut buckets: Vec<AlignedFloats>,
        shares: Shares,
    ) -> Result<(Vec<f64>, Vec<AlignedFloats>), EngineError> {
        self.run(move |engine, _| {
            Ok((engine.squared_norm_parts(&looked_up, &mut buckets, &shares)?, buckets))
        })
        .await
    }

    /// See [`crate::HoldParameters::apply_share`]. As [`EngineHandle::apply`].
    pub async fn apply_share(
        &self,
        step: OptimizerStep,
        squared_norm: f64,
        mut buckets: Vec<AlignedFloats>,
        shares: Shares,
    ) -> Result<(Applied, Vec<AlignedFloats>), EngineError> {
        self.run_anyway(move |engine| {
            Ok((engine.apply_share(&step, squared_norm, &mut buckets, &shares)?, buckets))
        })
        .await
    }

    /// See [`crate::HoldParameters::take_parameters`]. The buckets come back. Done even when nobody waits for it any more.
    pub async fn take_parameters(
        &self,
        buckets: Vec<AlignedFloats>,
        shares: Shares,
        average_decay: Option<f64>,
    ) -> Result<Vec<AlignedFloats>, EngineError> {
        self.run_anyway(move |engine| {
            engine.take_parameters(&buckets, &shares, average_decay)?;
            Ok(buckets)
        })
        .await
    }

    /// See [`crate::HoldParameters::keep_moments`].
    pub async fn keep_moments(&self, shares: Shares) -> Result<(), EngineError> {
        self.run_anyway(move |engine| engine.keep_moments(&shares)).await
    }

    /// See [`crate::HoldParameters::begin_round`]. Done even when nobody waits for it any more.
    pub async fn begin_round(&self) -> Result<(), EngineError> {
        self.run_anyway(|engine| engine.begin_round()).await
    }

    /// See [`crate::HoldParameters::end_round`]. As [`EngineHandle::apply`].
    pub async fn end_round(
        &self,
        mut buckets: Vec<AlignedFloats>,
    ) -> Result<Vec<AlignedFloats>, EngineError> {
        self.run_anyway(move |engine| {
            engine.end_round(&mut buckets)?;
            Ok(buckets)
        })
        .await
    }

    /// See [`crate::HoldParameters::apply_round`]. As [`EngineHandle::apply`].
    pub async fn apply_round(
        &self,
        step: OuterStep,
        mut buckets: Vec<AlignedFloats>,
    ) -> Result<(Applied, Vec<AlignedFloats>), EngineError> {
        self.run_anyway(move |engine| Ok((engine.apply_round(&step, &mut buckets)?, buckets))).await
    }

    /// See [`crate::HoldParameters::show`].
    pub async fn show(&self, shows: Shows) -> Result<(), EngineError> {
        self.run(move |engine, _| engine.show(shows)).await
    }

    /// See [`crate::HoldParameters::give_shown`]: gives the bytes back. Blocks.
    pub fn give_shown(&self, parameter: &str, offset: u64, bytes: Vec<u8>) -> Result<Vec<u8>, EngineError> {
        let parameter = parameter.to_owned();
        self.run_blocking(move |engine| {
            engine.give_shown(&parameter, offset, &bytes)?;
            Ok(bytes)
        })
    }

    /// See [`crate::HoldParameters::state_tensors`].
    pub async fn state_tensors(&self) -> Result<Vec<StateTensor>, EngineError> {
        self.run(|engine, _| engine.state_tensors()).await
    }

    /// See [`crate::HoldParameters::read_state`]: fills `into` and gives it back. Blocks.
    pub fn read_state(&self, tensor: &str, offset: u64, mut into: Vec<u8>) -> Result<Vec<u8>, EngineError> {
        let tensor = tensor.to_owned();
        self.run_blocking(move |engine| {
            engine.read_state(&tensor, offset, &mut into)?;
            Ok(into)
        })
    }

    /// See [`crate::HoldParameters::hold_state`]. Blocks.
    pub fn hold_state(&self) -> Result<Box<dyn HeldState>, EngineError> {
        self.run_blocking(|engine| engine.hold_state())
    }

    /// See [`crate::HoldParameters::write_state`]: gives the bytes back. Blocks.
    pub fn write_state(&self, tensor: &str, offset: u64, bytes: Vec<u8>) -> Result<Vec<u8>, EngineError> {
        let tensor = tensor.to_owned();
        self.run_blocking(move |engine| {
            engine.write_state(&tensor, offset, &bytes)?;
            Ok(bytes)
        })
    }
}

/// Buckets that go to and fro are signs of progress: the pass of a large model may take longer than silence is allowed.
struct Signs<'a, B> {
    buckets: &'a mut B,
    activity: &'a Activity,
}

impl<B: Buckets> Buckets for Signs<'_, B> {
    fn take(&mut self, bucket: usize) -> Result<AlignedFloats, EngineError> {
        self.activity.progressed();
        self.buckets.take(bucket)
    }

    fn give(&mut self, bucket: usize, memory: AlignedFloats) -> Result<(), EngineError> {
        self.activity.progressed();
        self.buckets.give(bucket, memory)
    }
}

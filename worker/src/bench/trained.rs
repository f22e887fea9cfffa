//! A step of what a model trains, a LoRA or its whole UNet: gradient and update.

use std::{mem, path::Path};

use super::{Error, UnetArguments};
use crate::{
    engine::{
        Adapter, AlignedFloats, BucketSizes, Buckets, EmbeddingRows, EngineError, EngineHandle, FirstValues,
        Gradient, Microbatch, ModelOptions, OpenAdapters, OpenUnet, OptimizerStep, ParametersInfo,
    },
    train::AdamWOptions,
};

/// The layers that diffusers' script adapts.
const TARGETS: [&str; 4] = [".to_q", ".to_k", ".to_v", ".to_out.0"];
/// The learning rate of diffusers' scripts.
const RATE: f64 = 1e-4;
/// The share of the average that a step keeps, of EMAModel at last.
const DECAY: f64 = 0.9999;

/// Parameters that are open, and the memory of their gradients.
#[derive(Debug)]
pub(super) struct TrainedSteps {
    buckets: Vec<AlignedFloats>,
    average: bool,
    taken: u64,
}

/// Buckets that are taken one by one and given back.
#[derive(Debug)]
struct Lent(Vec<AlignedFloats>);

impl Buckets for Lent {
    fn take(&mut self, bucket: usize) -> Result<AlignedFloats, EngineError> {
        Ok(self
            .0
            .get_mut(bucket)
            .map_or_else(|| AlignedFloats::zeros(0), |memory| mem::replace(memory, AlignedFloats::zeros(0))))
    }

    fn give(&mut self, bucket: usize, memory: AlignedFloats) -> Result<(), EngineError> {
        if let Some(place) = self.0.get_mut(bucket) {
            *place = memory;
        }
        Ok(())
    }
}

impl TrainedSteps {
    /// Of adapters of `rank` beside the loaded model's attention.
    ///
    /// # Errors
    /// The engine's.
    pub(super) async fn adapters(engine: &EngineHandle, rank: usize) -> Result<Self, Error> {
        let layers = engine.adaptable_layers().await?;
        let is_target =
            |name: &str| name.starts_with("unet.") && TARGETS.iter().any(|end| name.ends_with(end));
        let names = layers.into_iter().map(|layer| layer.name).filter(|name| is_target(name));
        let adapter = |layer| Adapter { layer, rank, alpha: rank as f64, dora: false, rate: 0 };
        let adapters = names.map(adapter).collect();
        let (buckets, average) = (BucketSizes::default(), false);
        let opening = OpenAdapters {
            adapters,
            seed: 0,
            buckets,
            average,
            shows_given: false,
            dropout: 0.0,
            rank_dropout: 0.0,
            rows: Vec::new(),
        };
        Ok(Self::of(&engine.open_adapters(opening).await?, average))
    }

    /// Of all weights of the loaded model's UNet, which are drawn.
    ///
    /// # Errors
    /// The engine's.
    pub(super) async fn unet(
        engine: &EngineHandle,
        folder: &Path,
        how: &UnetArguments,
    ) -> Result<Self, Error> {
        let options = ModelOptions { draws_unet: true, ..ModelOptions::default() };
        let tensors = engine.unet_tensors(folder.to_owned(), options).await?;
        let opening = OpenUnet {
            trained: tensors.into_iter().map(|tensor| tensor.name).collect(),
            first: FirstValues::Drawn { seed: 0 },
            buckets: BucketSizes::default(),
            average: how.ema,
            rounds: false,
            checkpointing: how.gradient_checkpointing,
            attention: how.attention.into(),
            folder: how.offload.clone(),
        };
        Ok(Self::of(&engine.open_unet(opening).await?, how.ema))
    }

    fn of(parameters: &ParametersInfo, average: bool) -> Self {
        let lengths = parameters.plan.buckets.iter().map(|bucket| bucket.length).chain([0]);
        Self { buckets: lengths.map(AlignedFloats::zeros).collect(), average, taken: 0 }
    }

    /// One step. The gradient itself stays in the engine's buckets.
    ///
    /// # Errors
    /// The engine's.
    pub(super) async fn step(
        &mut self,
        engine: &EngineHandle,
        microbatch: Microbatch,
    ) -> Result<Gradient, Error> {
        let lent = Lent(mem::take(&mut self.buckets));
        let (pass, Lent(buckets)) = engine.picture_gradient(microbatch, false, lent).await?;
        self.taken += 1;
        let AdamWOptions { beta1, beta2, epsilon, weight_decay } = AdamWOptions::default();
        let update = OptimizerStep {
            number: self.taken,
            learning_rate: RATE,
            other_rates: [0.0; 2],
            beta1,
            beta2,
            epsilon,
            weight_decay,
            max_grad_norm: Some(1.0),
            divide_by: 1,
            average_decay: self.average.then_some(DECAY),
        };
        self.buckets = engine.apply(update, EmbeddingRows::default(), buckets).await?.1;
        Ok(Gradient {
            loss: pass.loss,
            grad: Vec::new(),
            finite: pass.finite,
            forward_seconds: pass.forward_seconds,
            backward_seconds: pass.backward_seconds,
        })
    }
}

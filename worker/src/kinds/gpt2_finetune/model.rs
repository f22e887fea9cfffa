//! GPT-2, as a model whose parameters are trained.

use std::path::Path;

use ringtune_shared::job::{OrdersSpec, kinds::gpt2_finetune::Gpt2Spec};
use ringtune_text::Error as TextError;

use super::{
    super::texts::{Prompts, TextNumber, TextOptions, Texts},
    ahead::Ahead,
    batches::Batches,
    results::Results,
    schedule::{learning_rate, with_rate},
    tokens,
};
use crate::{
    engine::{EmbeddingRows, EngineError, EngineHandle, PassSummary, TokenBatch},
    parameters::{LearnedParameters, Model, Options, Outlet},
    rank::Error,
    ring::RankRing,
    session::Assignment,
    train::AdamWOptions,
    training::{Sampled, StepJudged, say_orders},
};

/// Added to the root of AdamW's second moment, as torch has it.
const EPSILON: f64 = 1e-8;

/// What a rank learns, and from what.
#[derive(Debug)]
pub(crate) struct Gpt2Model {
    pub(super) job: Gpt2Spec,
    pub(super) orders: OrdersSpec,
    pub(super) batches: Batches,
    pub(super) ahead: Ahead,
    pub(super) results: Results,
}

/// How the job's parameters are trained.
pub(super) fn options(job: &Gpt2Spec) -> Options {
    Options {
        exchange: job.exchange.into(),
        rounds: None,
        shard_optimizer: job.shard_optimizer,
        adamw: AdamWOptions {
            beta1: job.beta1,
            beta2: job.beta2,
            epsilon: EPSILON,
            weight_decay: job.weight_decay,
        },
        max_grad_norm: Some(job.grad_clip).filter(|clip| *clip > 0.0),
        compare_interval: job.compare_interval,
        early_stop_patience: job.early_stop_patience,
        select_best: job.select_best,
    }
}

impl Gpt2Model {
    /// Tokens are read from the disk: off the runtime's threads.
    async fn build(
        &self,
        build: impl FnOnce(&Batches) -> Result<TokenBatch, TextError> + Send + 'static,
    ) -> Result<TokenBatch, Error> {
        let batches = self.batches.clone();
        ringtune_shared::tasks::spawn_blocking(move || build(&batches)).await?.map_err(tokens::unusable)
    }
}

impl Model for Gpt2Model {
    const SECTION: &'static str = "gpt2";

    type Batch = TokenBatch;

    async fn embedding_rows(&mut self, step: u64, microbatches: u32) -> Result<EmbeddingRows, Error> {
        self.ahead.of_step(step, microbatches).await
    }

    async fn batch(&self, step: u64, microbatch: u32) -> Result<TokenBatch, Error> {
        self.build(move |batches| batches.of_step(step, microbatch)).await
    }

    async fn gradient(
        engine: &EngineHandle,
        batch: TokenBatch,
        looked_up: EmbeddingRows,
        outlet: Outlet,
    ) -> Result<PassSummary, EngineError> {
        let batch = TokenBatch { add: outlet.adds(), looked_up, ..batch };
        engine.language_gradient(batch, outlet).await.map(|(pass, _outlet)| pass)
    }

    async fn hold_out(&mut self, _ring: &mut RankRing) -> Result<u32, Error> {
        Ok(self.job.eval_iters)
    }

    async fn held_out(&self, microbatch: u32, _count: u32) -> Result<TokenBatch, Error> {
        self.build(move |batches| batches.held_out(microbatch)).await
    }

    async fn loss(engine: &EngineHandle, batch: TokenBatch) -> Result<f32, EngineError> {
        engine.language_loss(batch).await
    }

    fn learning_rate(&self, step: u64) -> f64 {
        let ordered = self.orders.rates().take_while(|(after, _)| *after < step).last();
        ordered.map_or_else(
            || learning_rate(&self.job, step),
            |(_, rate)| learning_rate(&with_rate(&self.job, rate), step),
        )
    }

    async fn sample(
        &mut self,
        prompt: &str,
        engine: &EngineHandle,
        ring: &mut RankRing,
    ) -> Result<Option<Sampled>, Error> {
        if ring.rank() != 0 {
            return Ok(None);
        }
        let prompts = Prompts::read(&self.results.tokenizer, vec![prompt.to_owned()]).await?;
        let info = engine.open_trained_text().await.map_err(Error::of_engine)?;
        let options = TextOptions { seed: self.job.seed, ..TextOptions::DEFAULT };
        let only = TextNumber { prompt: 0, sample: 0 };
        let made = Texts::new(prompts, options, info)?.make(engine, only).await?;
        Ok(Some(Sampled::Text(made)))
    }

    fn amend(&mut self, job: &Assignment) -> Result<(), Error> {
        self.orders = job.spec.common.orders.clone();
        say_orders(&mut self.results.facts["job"], &self.orders);
        Ok(())
    }

    fn is_validated_after(&self, step: u64, last: u64) -> bool {
        self.job.validation_is_due(step, last)
    }

    async fn write_results(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: LearnedParameters,
        names: &mut Vec<String>,
    ) -> Result<(), Error> {
        self.results.write(folder, last, learned, names).await
    }
}

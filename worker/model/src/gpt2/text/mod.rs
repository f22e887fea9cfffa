//! GPT-2, continuing a text: the parameters once, and the keys and values of all tokens so far.
//!
//! A prompt goes through all layers at once; then each token alone, whose products are with whole matrices that are read
//! once (`csrc/text_kernels.h`), and whose attention is over what is kept. In bf16 it rounds where the training's forward
//! pass does, but the logits, which are fp32.
//!
//! It is another model than the one that is trained: the parameters once, in the type that they are computed with,
//! matrices transposed so that a row gives one result. A prompt takes libtorch's products and the training's attention;
//! a single token takes kernels of our own, which read each weight once and in order.

mod native;
mod parameters;

use ringtune_engine::{FeedTokens, LanguageModelSource, OpenTextModel, TextModelInfo};
use tch::{Device, Tensor};

use super::config::Gpt2Config;
use super::layout::{Block, Layout, Pair};
use super::native::{self as language, Affine};
use super::{Configs, Gpt2, initial, opened_rows, read_configs, weights};
use crate::attention::AttentionKernel;
use crate::error::{Error, Result};
use crate::runtime;
use crate::stable_diffusion::to_vec;
use native::{Cache, Product, times_rows};
use parameters::{Intake, TextParameters};

/// A GPT-2 that makes text.
#[derive(Debug)]
pub struct Gpt2Text {
    parameters: TextParameters,
    /// Of each layer; empty before the first text.
    caches: Vec<Cache>,
    /// Tokens that they have.
    fed: usize,
}

impl Gpt2Text {
    /// Opens what `request` says; its threads are the runtime's affair.
    ///
    /// # Errors
    /// Files that are no GPT-2, or that are not as their config.json says; a field beyond its limits; bf16 on a processor
    /// without.
    pub fn open(request: &OpenTextModel) -> Result<Self> {
        runtime::check_precision(request.precision)?;
        let _no_gradient = tch::no_grad_guard();
        let intake = match &request.source {
            LanguageModelSource::Folder(folder) => {
                let Configs { saved, opened } = read_configs(folder)?;
                let mut intake = Intake::new(opened, request.precision);
                let layout = intake.layout.clone();
                weights::read_each(&weights::open(&folder.path)?, &Layout::new(&saved), |number, tensor| {
                    intake.take(&opened_rows(&layout, number, &tensor)?)
                })?;
                intake
            }
            LanguageModelSource::New(new) => {
                let mut intake = Intake::new(Gpt2Config::of_new(new)?, request.precision);
                for number in 0..intake.layout.parameters.len() {
                    let drawn = initial::tensor(&intake.config, &intake.layout, number, new.seed)?;
                    intake.take(&drawn)?;
                }
                intake
            }
        };
        Ok(Self::with(intake))
    }

    /// A copy of a model that is trained, with the values that its parameters have now.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn of_trained(model: &Gpt2) -> Result<Self> {
        let _no_gradient = tch::no_grad_guard();
        let mut intake = Intake::new(model.config.clone(), model.precision);
        for number in 0..intake.layout.parameters.len() {
            intake.take(model.parameters.master(number))?;
        }
        Ok(Self::with(intake))
    }

    fn with(intake: Intake) -> Self {
        Gpt2Text { parameters: intake.finish(), caches: Vec::new(), fed: 0 }
    }

    /// What whoever feeds it has to know.
    pub fn info(&self) -> TextModelInfo {
        let config = &self.parameters.config;
        TextModelInfo { vocab_size: config.vocab_size as usize, n_positions: config.n_positions as usize }
    }

    /// The logits of the token that follows: [`ringtune_engine::GenerateText::next_logits`] says how.
    ///
    /// # Errors
    /// A field beyond its limits.
    pub fn next_logits(&mut self, feed: &FeedTokens) -> Result<Vec<f32>> {
        self.check(feed)?;
        let _no_gradient = tch::no_grad_guard();
        self.lay_out()?;
        // What fails half-way leaves nothing that could be gone on from.
        self.fed = 0;
        let logits = self.forward(feed)?;
        self.fed = feed.keep + feed.tokens.len();
        Ok(logits)
    }

    fn check(&self, feed: &FeedTokens) -> Result<()> {
        let TextModelInfo { vocab_size, n_positions } = self.info();
        let FeedTokens { keep, tokens } = feed;
        if *keep > self.fed {
            let allowed = format!("up to {}, the tokens that were fed", self.fed);
            return Err(Error::argument("keep", keep, allowed));
        }
        // What was fed is within the positions.
        let most = n_positions - keep;
        if tokens.is_empty() || tokens.len() > most {
            let (given, allowed) = (format!("{} tokens", tokens.len()), format!("1 to {most} behind {keep}"));
            return Err(Error::argument("tokens", given, allowed));
        }
        if let Some(place) = tokens.iter().position(|id| !(0..vocab_size as i64).contains(id)) {
            let given = format!("{} at place {place}", tokens[place]);
            return Err(Error::argument("tokens", given, format!("ids from 0 to {}", vocab_size - 1)));
        }
        Ok(())
    }

    /// Takes the memory for all positions, once. What nobody writes to is no memory yet.
    fn lay_out(&mut self) -> Result<()> {
        let config = &self.parameters.config;
        let size = [config.n_head, config.n_positions, config.head_width()];
        let options = (self.parameters.kind(), Device::Cpu);
        while self.caches.len() < self.parameters.layout.blocks.len() {
            let (keys, values) = (Tensor::f_empty(size, options)?, Tensor::f_empty(size, options)?);
            self.caches.push(Cache { keys, values });
        }
        Ok(())
    }

    fn forward(&mut self, feed: &FeedTokens) -> Result<Vec<f32>> {
        let parameters = &self.parameters;
        let (config, layout) = (&parameters.config, &parameters.layout);
        let (past, tokens) = (feed.keep as i64, feed.tokens.len() as i64);
        let ids = Tensor::f_from_slice(&feed.tokens)?.f_view([1, tokens])?;
        let places = parameters.get(layout.wpe).f_narrow(0, past, tokens)?;
        let mut x = language::embed(parameters.get(layout.wte), &places, &ids)?;
        let mut added: Option<Tensor> = None;
        for (pairs, cache) in layout.blocks.iter().zip(&mut self.caches) {
            let Block { ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj } = *pairs;
            let [first, y] = norm(parameters, ln_1, &x, added.as_ref())?;
            let together =
                times(parameters, c_attn, &y)?.f_view([tokens, 3, config.n_head, config.head_width()])?;
            cache.remember(&together, past)?;
            let attended = if past == 0 && tokens > 1 {
                let [attended, _] =
                    language::causal_attention(&together.f_unsqueeze(0)?, None, AttentionKernel::best())?;
                attended.f_view([tokens, config.n_embd])?
            } else {
                cache.attend(&together, past)?
            };
            let projected = times(parameters, attn_proj, &attended)?;
            let [second, y] = norm(parameters, ln_2, &first, Some(&projected))?;
            let active = language::gelu(&times(parameters, c_fc, &y)?)?;
            added = Some(times(parameters, mlp_proj, &active)?);
            x = second;
        }
        // Of all that follows, the last token alone counts.
        let last = |tensor: &Tensor| tensor.f_narrow(0, tokens - 1, 1);
        let added = added.as_ref().map(last).transpose()?;
        let [_, hidden] = norm(parameters, layout.ln_f, &last(&x)?, added.as_ref())?;
        to_vec(&times_rows(&hidden, parameters.head(), None, Product::Floats)?)
    }
}

/// x + added, and its norm.
fn norm(parameters: &TextParameters, pair: Pair, x: &Tensor, added: Option<&Tensor>) -> Result<[Tensor; 2]> {
    let (weight, bias) = parameters.pair(pair);
    let affine = Affine { weight, bias, epsilon: parameters.config.layer_norm_epsilon };
    let [x, y, _] = language::add_and_norm(x, added, affine, parameters.is_low())?;
    Ok([x, y])
}

/// x Wᵀ + b.
fn times(parameters: &TextParameters, pair: Pair, x: &Tensor) -> Result<Tensor> {
    let (weight, bias) = parameters.pair(pair);
    if x.size2()?.0 == 1 {
        return times_rows(x, weight, bias, Product::Activation);
    }
    let weight = weight.f_tr()?;
    Ok(match bias {
        Some(bias) => bias.f_addmm(x, &weight)?,
        None => x.f_mm(&weight)?,
    })
}

//! The layers' forward pass, written out: karpathy/llm.c, train_gpt2.c, `gpt2_forward`; transformers, modeling_gpt2.py.
//!
//! The residual stream, norms and what they are made of are fp32; products and attention are of the model's precision,
//! as torch's CPU autocast has it.

use tch::Tensor;

use super::Gpt2;
use super::layout::{Block, Pair};
use super::native::{self, Affine};
use crate::attention::AttentionKernel;
use crate::dropout::{self, Masks, Site};
use crate::error::Result;

/// What the way back of one norm needs.
#[derive(Debug)]
pub(crate) struct Normed {
    /// The residual stream, [rows, n_embd] fp32.
    pub(crate) x: Tensor,
    /// The norm's result, an activation.
    pub(crate) y: Tensor,
    /// [rows, 2]
    pub(crate) statistics: Tensor,
}

/// What the way back of one layer needs. Rows are [batch * block].
#[derive(Debug)]
pub(crate) struct LayerActivations {
    pub(crate) first: Normed,
    /// Queries, keys and values, [batch, block, 3, n_head, head width].
    pub(crate) together: Tensor,
    /// [batch, block, n_head, head width], and what attention keeps.
    pub(crate) attended: [Tensor; 2],
    pub(crate) second: Normed,
    /// Before GELU, [rows, n_inner].
    pub(crate) inner: Tensor,
    /// Behind it.
    pub(crate) active: Tensor,
}

/// All that the forward pass leaves.
#[derive(Debug)]
pub(crate) struct Activations {
    /// Of each layer, the first one first; empty where no gradient is wanted.
    pub(crate) layers: Vec<LayerActivations>,
    /// The last norm, whose result the head takes.
    pub(crate) last: Normed,
}

/// Runs all layers on `ids` [batch, block].
pub(crate) fn forward(model: &Gpt2, ids: &Tensor, masks: Option<&Masks>, keep: bool) -> Result<Activations> {
    let config = &model.config;
    let (batch, block) = ids.size2()?;
    let mut layers = Vec::new();
    let layout = &model.layout;
    let mut x = native::embed(model.parameters.master(layout.wte), model.parameters.master(layout.wpe), ids)?;
    drop_of(masks, Site::Embedding, 0, &mut x)?;
    let mut added: Option<Tensor> = None;
    for (number, pairs) in layout.blocks.iter().enumerate() {
        let Block { ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj } = *pairs;
        let first = norm(model, ln_1, &x, added.as_ref())?;
        let together =
            times(model, c_attn, &first.y)?.f_view([batch, block, 3, config.n_head, config.head_width()])?;
        let mask = masks.map(|masks| masks.of(Site::Attention, number));
        let attended = native::causal_attention(&together, mask.as_ref(), AttentionKernel::best())?;
        let mut projected = times(model, attn_proj, &attended[0].f_view([-1, config.n_embd])?)?;
        drop_of(masks, Site::Projection, number, &mut projected)?;
        let second = norm(model, ln_2, &first.x, Some(&projected))?;
        let inner = times(model, c_fc, &second.y)?;
        let active = native::gelu(&inner)?;
        let mut fed = times(model, mlp_proj, &active)?;
        drop_of(masks, Site::FeedForward, number, &mut fed)?;
        added = Some(fed);
        x = second.x.f_detach()?;
        if keep {
            layers.push(LayerActivations { first, together, attended, second, inner, active });
        }
    }
    let last = norm(model, layout.ln_f, &x, added.as_ref())?;
    Ok(Activations { layers, last })
}

/// What is dropped of an activation's rows; the same for its gradient.
pub(super) fn drop_of(masks: Option<&Masks>, site: Site, layer: usize, x: &mut Tensor) -> Result<()> {
    masks.map_or(Ok(()), |masks| dropout::drop(x, &masks.of(site, layer)))
}

/// x + added, and its norm.
fn norm(model: &Gpt2, pair: Pair, x: &Tensor, added: Option<&Tensor>) -> Result<Normed> {
    let affine = Affine {
        weight: model.parameters.master(pair.weight),
        bias: pair.bias.map(|bias| model.parameters.master(bias)),
        epsilon: model.config.layer_norm_epsilon,
    };
    let [x, y, statistics] = native::add_and_norm(x, added, affine, model.is_low())?;
    Ok(Normed { x, y, statistics })
}

/// x W + b.
fn times(model: &Gpt2, pair: Pair, x: &Tensor) -> Result<Tensor> {
    native::times(
        x,
        model.parameters.factor(pair.weight),
        pair.bias.map(|bias| model.parameters.factor(bias)),
    )
}

//! The layers' way back, written out, so that gradients end one after the other and activations go as soon as they are
//! used: karpathy/llm.c, train_gpt2.c, `gpt2_backward`.

use ringtune_engine::TokenBatch;
use tch::{Kind, Tensor};

use super::Gpt2;
use super::forward::{Activations, LayerActivations, Normed, drop_of};
use super::layout::{Block, Pair};
use super::native::{self, NormGradient};
use crate::attention::AttentionKernel;
use crate::dropout::{Masks, Site};
use crate::error::Result;
use crate::parameters::Gradients;
use crate::parameters::native::finite;

/// All gradients but the head's. `gradient`: that of the last norm's result, as [`super::head`] gives it; `places`: of each input
/// among what the step looks up; the masks are those of the way forward.
pub(crate) fn backward(
    model: &Gpt2,
    (batch, places): (&TokenBatch, &Tensor),
    (activations, masks): (Activations, Option<&Masks>),
    gradient: &Tensor,
    gradients: &mut Gradients,
) -> Result<()> {
    let layout = &model.layout;
    let Activations { layers, last } = activations;
    // The residual stream's gradient: fp32, and as an activation.
    let mut residual = last.x.f_zeros_like()?;
    let mut slope = norm_back(model, layout.ln_f, &last, gradient, &mut residual, gradients)?;
    drop(last);
    for (number, layer) in layers.into_iter().enumerate().rev() {
        slope = layer_back(model, (number, masks), layer, slope, &mut residual, gradients)?;
    }
    drop_of(masks, Site::Embedding, 0, &mut residual)?;
    let (tokens, width) = (batch.block as i64, model.config.n_embd);
    let add = gradients.adds();
    gradients.each_piece(layout.wpe, |piece, target| {
        native::place_backward(&residual, tokens, piece.first as i64 / width, add, target)?;
        finite(target)
    })?;
    gradients.end(layout.wpe)?;
    // The head's part of the table's gradient has left long ago.
    gradients.put_looked_up(&residual, places, batch.looked_up.count())
}

/// Through layer `number`: `slope` is the gradient of what it adds last, and of the stream behind it.
pub(super) fn layer_back(
    model: &Gpt2,
    (number, masks): (usize, Option<&Masks>),
    layer: LayerActivations,
    slope: Tensor,
    residual: &mut Tensor,
    gradients: &mut Gradients,
) -> Result<Tensor> {
    let Block { ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj } = model.layout.blocks[number];
    let LayerActivations { first, together, attended, second, inner, active } = layer;
    // 1. The feed-forward layers.
    let slope = dropped(masks, Site::FeedForward, number, slope)?;
    let mut inside = times_back(model, mlp_proj, &active, (&slope, None), gradients)?;
    drop(active);
    let sums = native::gelu_backward(&inner, &mut inside)?;
    drop(inner);
    let normal = times_back(model, c_fc, &second.y, (&inside, Some(sums)), gradients)?;
    let slope = norm_back(model, ln_2, &second, &normal, residual, gradients)?;
    drop(second);
    // 2. Attention.
    let slope = dropped(masks, Site::Projection, number, slope)?;
    let width = model.config.n_embd;
    let of_output =
        times_back(model, attn_proj, &attended[0].f_view([-1, width])?, (&slope, None), gradients)?;
    let of_output = of_output.f_view_as(&attended[0])?;
    let [output, kept] = &attended;
    let mask = masks.map(|masks| masks.of(Site::Attention, number));
    let (mask, kernel) = (mask.as_ref(), AttentionKernel::best());
    let of_together = native::causal_attention_backward(&together, [output, kept], &of_output, mask, kernel)?;
    drop((together, attended));
    let of_together = of_together.f_view([-1, 3 * width])?;
    let normal = times_back(model, c_attn, &first.y, (&of_together, None), gradients)?;
    norm_back(model, ln_1, &first, &normal, residual, gradients)
}

/// The gradient of what was dropped of. In fp32 the slope is the residual stream's own gradient, of which nothing is dropped.
fn dropped(masks: Option<&Masks>, site: Site, layer: usize, slope: Tensor) -> Result<Tensor> {
    if masks.is_none() {
        return Ok(slope);
    }
    let mut own = if slope.f_kind()? == Kind::Float { slope.f_detach_copy()? } else { slope };
    drop_of(masks, site, layer, &mut own)?;
    Ok(own)
}

/// Through a product: puts the gradients of its parameters, and gives that of `x`. `sums`: those of `slope` over its rows, where they are
/// known.
fn times_back(
    model: &Gpt2,
    pair: Pair,
    x: &Tensor,
    (slope, sums): (&Tensor, Option<Tensor>),
    gradients: &mut Gradients,
) -> Result<Tensor> {
    match (pair.bias, sums) {
        (Some(bias), Some(sums)) => gradients.put_whole(bias, &sums)?,
        (Some(bias), None) => {
            let add = gradients.adds();
            gradients.each_piece(bias, |_, target| {
                native::column_sums(slope, add, target)?;
                finite(target)
            })?;
            gradients.end(bias)?;
        }
        (None, _) => {}
    }
    gradients.put_product(pair.weight, x, slope)?;
    native::times_turned(slope, model.parameters.factor(pair.weight))
}

/// Through a norm: adds to the residual stream's gradient, and gives that as an activation.
fn norm_back(
    model: &Gpt2,
    pair: Pair,
    normed: &Normed,
    gradient: &Tensor,
    residual: &mut Tensor,
    gradients: &mut Gradients,
) -> Result<Tensor> {
    let weight = model.parameters.master(pair.weight);
    let norm = NormGradient { gradient, x: &normed.x, statistics: &normed.statistics, weight };
    let [slope, sums] = native::norm_backward(norm, residual)?;
    debug_assert_eq!(sums.kind(), Kind::Float);
    if let Some(bias) = pair.bias {
        gradients.put_whole(bias, &sums.f_select(0, 1)?)?;
    }
    gradients.put_whole(pair.weight, &sums.f_select(0, 0)?)?;
    // In fp32 it is the stream's gradient itself, which goes on changing: what is put is read before that.
    Ok(slope)
}

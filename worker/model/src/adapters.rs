//! LoRA (Hu et al. 2021): beside a frozen layer stands the product of two small matrices, which are trained:
//! y = W x + b + alpha / rank · up (down x).
//!
//! With DoRA (Liu et al. 2024) the sum of both weights is brought to learned lengths m: y = s (W x + alpha / rank · up (down x)) + b,
//! with s = m / |W + alpha / rank · up · down| for each output, which counts as a constant in the gradient.
//!
//! A frozen layer is built with an empty [`Place`] for adapters, and names itself to its weights' list of [`Site`]s. So
//! whoever adapts a model fills places by name, and no network knows of adapters.
//!
//! Sources: PEFT, tuners/lora/layer.py and dora.py; kohya's scripts, networks/lora.py, `rank_dropout`.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringtune_engine::LayerShape;
use tch::{Device, Kind, Tensor};

use crate::dropout::{self, Mask, Masks};
use crate::error::Result;
use crate::parameters::Parameters;
use crate::tokens::{from_tokens, to_tokens};

/// What stands beside one layer.
#[derive(Debug)]
pub(crate) struct Adapter {
    /// [rank, inputs], of a convolution [rank, inputs, side, side], in the kind of the layer's input.
    pub(crate) down: Tensor,
    /// [outputs, rank], in the same kind.
    pub(crate) up: Tensor,
    /// alpha / rank.
    pub(crate) scale: f64,
    /// Of DoRA.
    pub(crate) lengths: Option<Lengths>,
    /// What is dropped of its input, and of its rows, while it is trained.
    pub(crate) dropping: Option<Dropping>,
}

/// The lengths of the sums of both weights' rows.
#[derive(Debug)]
pub(crate) struct Lengths {
    /// What they are brought to, [outputs] fp32.
    pub(crate) magnitude: Tensor,
    /// The squared lengths of the layer's own rows, [outputs] fp32.
    pub(crate) squares: Tensor,
}

/// What an adapter goes without.
#[derive(Clone, Debug)]
pub(crate) struct Dropping {
    /// The number of its layer.
    pub(crate) layer: usize,
    /// Of its input and of its rows, in the pass that is taken now; none: nothing is dropped.
    pub(crate) now: Arc<Mutex<[Option<Masks>; 2]>>,
}

impl Dropping {
    /// The masks of this adapter.
    fn masks(&self) -> [Option<Mask>; 2] {
        let [inputs, rows] = *self.now.lock().unwrap_or_else(PoisonError::into_inner);
        [
            inputs.map(|masks| masks.of_adapter(self.layer, false)),
            rows.map(|masks| masks.of_adapter(self.layer, true)),
        ]
    }
}

/// Where a layer's adapters are. Clones are the same place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place(Arc<Mutex<Vec<Adapter>>>);

impl Place {
    /// Adds one.
    pub(crate) fn put(&self, adapter: Adapter) {
        self.lock().push(adapter);
    }

    /// Takes all away.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Whether there is one.
    pub(crate) fn is_filled(&self) -> bool {
        !self.lock().is_empty()
    }

    fn has_lengths(&self) -> bool {
        self.lock().iter().any(|adapter| adapter.lengths.is_some())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Adapter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A frozen layer that an adapter can stand beside.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// Its name within its network, such as `mid_block.attentions.0.transformer_blocks.0.attn1.to_q`.
    pub(crate) name: String,
    pub(crate) inputs: i64,
    pub(crate) outputs: i64,
    /// Its weight's.
    pub(crate) shape: LayerShape,
    pub(crate) place: Place,
}

impl Site {
    /// The shapes of both factors of this rank.
    pub(crate) fn factors(&self, rank: i64) -> [Vec<i64>; 2] {
        let down = match self.shape {
            LayerShape::Convolution { side } if side > 1 => {
                vec![rank, self.inputs, side as i64, side as i64]
            }
            _ => vec![rank, self.inputs],
        };
        [down, vec![self.outputs, rank]]
    }

    /// The shape of its weight.
    pub(crate) fn weight(&self) -> Vec<i64> {
        match self.shape {
            LayerShape::Matrix => vec![self.outputs, self.inputs],
            LayerShape::Convolution { side } => vec![self.outputs, self.inputs, side as i64, side as i64],
        }
    }
}

/// All of a network's sites, in the order in which its layers are built, which is that of the forward pass.
pub(crate) type Sites = RefCell<Vec<Site>>;

/// Adapters that are trained.
#[derive(Debug)]
pub(crate) struct TrainedAdapters {
    /// Two for each: [rank, inputs] and [outputs, rank]; with DoRA [outputs] too. Behind them learned rows, where there are some.
    pub(crate) parameters: Parameters,
    /// What the backward pass ends at: the adapters' memory, or that of their copies.
    pub(crate) leaves: Vec<Tensor>,
    /// What captions mean changes: some of them are the text encoder's, or rows are learned.
    pub(crate) train_text: bool,
    /// Shares of the adapters' inputs and of their rows that a pass goes without.
    pub(crate) rates: [f64; 2],
    /// What is dropped now.
    pub(crate) dropped: Arc<Mutex<[Option<Masks>; 2]>>,
}

/// What the adapters of layers that take the same input and lie side by side add to their outputs: [.., the sum of `outputs`
/// each]; none where no layer has one. `x`: [batch, .., inputs].
pub(crate) fn added(places: &[Place], x: &Tensor, outputs: i64) -> Result<Option<Tensor>> {
    if !places.iter().any(Place::is_filled) {
        return Ok(None);
    }
    let mut parts = Vec::with_capacity(places.len());
    for place in places {
        let sum = sum_of(place, x, |x, down| Ok(x.f_linear(down, None::<&Tensor>)?))?;
        parts.push(sum.map_or_else(|| zeros_like(x, outputs), Ok)?);
    }
    side_by_side(parts).map(Some)
}

/// The outputs of layers some of which have lengths, without their bias: [.., the sum of `outputs` each]. `product`: of the frozen
/// weights of all, side by side, without their bias. `x`: [batch, .., inputs].
pub(crate) fn with_lengths(
    places: &[Place],
    x: &Tensor,
    outputs: i64,
    product: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    if !places.iter().any(Place::has_lengths) {
        return Ok(None);
    }
    let frozen = product(x)?;
    let mut parts = Vec::with_capacity(places.len());
    for (number, place) in places.iter().enumerate() {
        let own = |all: &Tensor| all.f_narrow(-1, number as i64 * outputs, outputs);
        let frozen = own(&frozen)?;
        let mut whole = frozen.shallow_clone();
        for adapter in &*place.lock() {
            let part = product_of(adapter, x, |x, down| Ok(x.f_linear(down, None::<&Tensor>)?))?;
            let Some(lengths) = &adapter.lengths else {
                whole = whole.f_add(&part)?;
                continue;
            };
            let gain = lengths.magnitude.f_div(&lengths_of_sums(adapter, lengths, &product, own)?)?;
            let moved = frozen.f_mul(&gain.f_sub_scalar(1.0)?)?.f_add(&part.f_mul(&gain)?)?;
            whole = whole.f_add(&moved.f_to_kind(frozen.kind())?)?;
        }
        parts.push(whole);
    }
    side_by_side(parts).map(Some)
}

/// |W + scale · up · down| of each output, [outputs] fp32, a constant: of its square's three parts the product of W with `down` costs
/// what a few more rows of input do.
fn lengths_of_sums(
    adapter: &Adapter,
    lengths: &Lengths,
    product: impl Fn(&Tensor) -> Result<Tensor>,
    own: impl Fn(&Tensor) -> std::result::Result<Tensor, tch::TchError>,
) -> Result<Tensor> {
    let _no_gradient = tch::no_grad_guard();
    let Adapter { down, up, scale, .. } = adapter;
    let crossed = own(&product(&down.f_detach()?)?)?.f_to_kind(Kind::Float)?;
    let (down, up) = (down.f_to_kind(Kind::Float)?, up.f_to_kind(Kind::Float)?);
    let both = up.f_matmul(&down.f_matmul(&down.f_transpose(0, 1)?)?)?;
    let twice = up.f_mul(&crossed.f_transpose(0, 1)?)?.f_mul_scalar(2.0 * scale)?;
    let parts = twice.f_add(&up.f_mul(&both)?.f_mul_scalar(scale * scale)?)?;
    let squares = lengths.squares.f_add(&parts.f_sum_dim_intlist(&[1i64][..], false, None)?)?;
    Ok(squares.f_clamp_min(0.0)?.f_sqrt()?)
}

/// What the adapters of a convolution add to its output, [batch, outputs, height', width'], channels-last; none where it has
/// none. `x`: [batch, inputs, height, width].
pub(crate) fn added_to_convolution(
    place: &Place,
    x: &Tensor,
    stride: i64,
    padding: i64,
) -> Result<Option<Tensor>> {
    if !place.is_filled() {
        return Ok(None);
    }
    let (_, _, high, wide) = x.size4()?;
    let (mut height, mut width) = (high, wide);
    let sum = sum_of(place, &to_tokens(x)?, |x, down| {
        let x = from_tokens(x, high, wide)?;
        let down =
            if down.dim() == 2 { down.f_view([down.size()[0], -1, 1, 1])? } else { down.shallow_clone() };
        let hidden = x.f_conv2d(&down, None::<&Tensor>, [stride, stride], [padding, padding], [1, 1], 1)?;
        (_, _, height, width) = hidden.size4()?;
        to_tokens(&hidden)
    })?;
    sum.map(|sum| from_tokens(&sum, height, width)).transpose()
}

/// The sum of what all of a place add; none where there is none. `product` is that of an input and a first factor.
fn sum_of(
    place: &Place,
    x: &Tensor,
    mut product: impl FnMut(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    let mut sum: Option<Tensor> = None;
    for adapter in &*place.lock() {
        let part = product_of(adapter, x, &mut product)?;
        sum = Some(sum.map_or(Ok(part.shallow_clone()), |sum| sum.f_add(&part))?);
    }
    Ok(sum)
}

/// What one adapter adds. `x`: [batch, .., inputs].
fn product_of(
    adapter: &Adapter,
    x: &Tensor,
    mut product: impl FnMut(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let Adapter { down, up, scale, dropping, .. } = adapter;
    let [of_inputs, of_rows] = dropping.as_ref().map_or([None, None], Dropping::masks);
    let hidden = match &of_inputs {
        Some(mask) => product(&x.f_mul(&factors(mask, &x.size(), x.kind())?)?, down)?,
        None => product(x, down)?,
    };
    let hidden = match &of_rows {
        Some(mask) => {
            // A sample goes without the same rows at all of its positions.
            let mut shape = vec![1; hidden.dim()];
            (shape[0], shape[hidden.dim() - 1]) = (hidden.size()[0], up.size()[1]);
            hidden.f_mul(&factors(mask, &shape, hidden.kind())?)?
        }
        None => hidden,
    };
    // A few numbers a row, so that the wide result is swept once.
    let hidden = if *scale == 1.0 { hidden } else { hidden.f_mul_scalar(*scale)? };
    Ok(hidden.f_linear(up, None::<&Tensor>)?)
}

/// What a mask multiplies numbers of this shape with, the first side of which are samples and the last numbers of a row.
fn factors(mask: &Mask, shape: &[i64], kind: Kind) -> Result<Tensor> {
    let width = shape.last().copied().unwrap_or(1).max(1);
    let rows = shape.iter().product::<i64>() / width;
    let mut factors = Tensor::f_ones([rows, width], (kind, Device::Cpu))?;
    dropout::drop(&mut factors, mask)?;
    Ok(factors.f_view(shape)?)
}

/// Zeros as the outputs of a layer.
fn zeros_like(x: &Tensor, outputs: i64) -> Result<Tensor> {
    let mut shape = x.size();
    if let Some(last) = shape.last_mut() {
        *last = outputs;
    }
    Ok(Tensor::f_zeros(&shape[..], (x.f_kind()?, x.device()))?)
}

fn side_by_side(parts: Vec<Tensor>) -> Result<Tensor> {
    match &parts[..] {
        [one] => Ok(one.shallow_clone()),
        several => Ok(Tensor::f_cat(several, -1)?),
    }
}

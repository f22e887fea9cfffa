//! The layers all three networks are built from; convolutions are in [`crate::convolution`].

use tch::{Kind, Tensor};

use crate::adapters::{self, Place};
use crate::error::{Error, Result};
use crate::mapped_file::Stored;
use crate::native;
pub use crate::native::Products;
use crate::packed_weights::{Packed, PackedWeights, Way};
pub use crate::tokens::{from_tokens, to_tokens};
use crate::trained::LayerTensor;
use crate::weights::Scope;

/// Shape of a fully connected layer.
#[derive(Debug, Clone, Copy)]
pub struct LinearConfig {
    /// Features in.
    pub inputs: i64,
    /// Features out.
    pub outputs: i64,
    /// Whether there is a bias vector.
    pub bias: bool,
}

/// Layers of more weights than this are not packed. That would save them 3 to 7% of their time, as the others, and take
/// the same memory again for the gradient: 160 MB in the six layers of SD 1.x that are so large.
const MOST_PACKED: i64 = 8 << 20;

/// Weights [outputs, inputs].
#[derive(Debug)]
enum LinearWeights {
    /// Row by row.
    Plain(Tensor),
    /// bf16, packed; of several layers of [rows, inputs] one after the other.
    Packed { stored: Vec<Stored>, packed: PackedWeights },
    /// Weights that change, or whose bias does; of several layers one after the other.
    Trained { parts: Vec<LayerTensor>, packed: PackedWeights, kind: Kind },
}

/// y = x Wᵀ + b over the last dimension, and what the layer's adapter adds, if it has one.
#[derive(Debug)]
pub struct Linear {
    weights: LinearWeights,
    bias: Option<LayerTensor>,
    /// Of each of the layers that are stacked here.
    adapters: Vec<Place>,
    /// Features in.
    inputs: i64,
    /// Features out, of each of the layers that are stacked here.
    outputs: i64,
    products: Products,
}

impl Linear {
    /// Reads `weight` [outputs, inputs] and `bias` [outputs].
    pub fn new(scope: &Scope, config: LinearConfig, kind: Kind) -> Result<Self> {
        Self::of(std::slice::from_ref(scope), &[config.outputs, config.inputs], config, kind)
    }

    /// In fp32, multiplied as `products` says.
    pub fn in_fp32(scope: &Scope, config: LinearConfig, products: Products) -> Result<Self> {
        Ok(Linear { products, ..Self::new(scope, config, Kind::Float)? })
    }

    /// Reads a 1x1 convolution's `weight` [outputs, inputs, 1, 1] and `bias`, which is the same thing on
    /// channels-last data.
    pub fn from_1x1_convolution(scope: &Scope, config: LinearConfig, kind: Kind) -> Result<Self> {
        Self::of(std::slice::from_ref(scope), &[config.outputs, config.inputs, 1, 1], config, kind)
    }

    /// Reads the `weight` [outputs, inputs] of each of these layers, which have no bias and take the same input, and makes
    /// one layer of them: its outputs are theirs, one after the other.
    pub fn stacked(scopes: &[Scope], config: LinearConfig, kind: Kind) -> Result<Self> {
        Self::of(scopes, &[config.outputs, config.inputs], LinearConfig { bias: false, ..config }, kind)
    }

    fn of(scopes: &[Scope], shape: &[i64], config: LinearConfig, kind: Kind) -> Result<Self> {
        let count = scopes.len() as i64 * config.outputs * config.inputs;
        let is_trained =
            |scope: &Scope| scope.is_trained("weight") || config.bias && scope.is_trained("bias");
        let weights = if scopes.iter().any(is_trained) {
            let parts = scopes.iter().map(|scope| scope.layer_tensor("weight", shape, kind));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            LinearWeights::Trained { parts, packed: PackedWeights::default(), kind }
        } else if kind == Kind::BFloat16 && count <= MOST_PACKED {
            let stored =
                scopes.iter().map(|scope| scope.stored("weight", shape)).collect::<Result<Vec<_>>>()?;
            LinearWeights::Packed { stored, packed: PackedWeights::default() }
        } else {
            let weights = scopes
                .iter()
                .map(|scope| scope.tensor_in_place("weight", shape, kind))
                .collect::<Result<Vec<_>>>()?;
            let dry = scopes.iter().any(Scope::is_dry);
            LinearWeights::Plain(if dry { Tensor::new() } else { joined(&weights, config.inputs)? })
        };
        let bias = match scopes {
            [scope] if config.bias => Some(scope.layer_tensor("bias", &[config.outputs], kind)?),
            _ => None,
        };
        let LinearConfig { inputs, outputs, .. } = config;
        let adapters = scopes.iter().map(|scope| scope.site(shape)).collect();
        Ok(Linear { weights, bias, adapters, inputs, outputs, products: Products::Exact })
    }

    /// `x`: [.., inputs]; returns [.., outputs].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.apply(x, None)
    }

    /// `forward(x)` + `residual` ([.., outputs]); in bf16 rounded once.
    pub fn forward_added(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.apply(x, Some(residual))
    }

    fn apply(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let product = |x: &Tensor| self.product(x, None, None);
        if let Some(mut y) = adapters::with_lengths(&self.adapters, x, self.outputs, product)? {
            for more in self.bias.as_ref().map(LayerTensor::plain).into_iter().chain(residual) {
                y = y.f_add(more)?;
            }
            return Ok(y);
        }
        let bias = self.bias.as_ref();
        match (adapters::added(&self.adapters, x, self.outputs)?, residual) {
            (None, residual) => self.product(x, bias, residual),
            (Some(added), None) => self.product(x, bias, Some(&added)),
            (Some(added), Some(residual)) => self.product(x, bias, Some(&added.f_add(residual)?)),
        }
    }

    /// That of the layer's own weights.
    fn product(&self, x: &Tensor, bias: Option<&LayerTensor>, residual: Option<&Tensor>) -> Result<Tensor> {
        let plus = |y: Tensor, residual: Option<&Tensor>| match residual {
            Some(residual) => Ok(y.f_add(residual)?),
            None => Ok(y),
        };
        match &self.weights {
            LinearWeights::Plain(weight) => {
                plus(native::linear(x, weight, bias.map(LayerTensor::plain), self.products)?, residual)
            }
            LinearWeights::Packed { stored, packed } => {
                let packed = self.packed(stored, packed, x.requires_grad())?;
                multiply_packed(x, &packed, bias.map(LayerTensor::plain), residual)
            }
            LinearWeights::Trained { parts, packed, kind } => {
                let is_low = *kind == Kind::BFloat16;
                let values = || parts.iter().map(|part| part.value(*kind)).collect::<Result<Vec<_>>>();
                let lay = |plain: &Tensor, way| {
                    if is_low {
                        native::pack_linear(plain, way == Way::Backward)
                    } else {
                        Ok(plain.shallow_clone())
                    }
                };
                let version = parts.iter().map(LayerTensor::version).max().unwrap_or_default();
                let laid = packed.get(version, x.requires_grad(), || joined(&values()?, self.inputs), lay)?;
                let own = bias.map(|bias| bias.value(*kind)).transpose()?;
                let (fused, added) = if is_low { (residual, None) } else { (None, residual) };
                let result = if is_low {
                    multiply_packed(x, &laid, own.as_ref(), fused)?
                } else {
                    native::linear(x, &laid.forward, own.as_ref(), self.products)?
                };
                let weights = parts.iter().map(LayerTensor::end).collect();
                let trained =
                    native::Trained { weights, bias: bias.and_then(LayerTensor::end), ..Default::default() };
                plus(native::with_weight_gradient(&result, x, &trained)?, added)
            }
        }
    }

    /// Packs the weights as [`Linear::forward`] does, for an input with a `gradient` or without. Returns whether the result
    /// has one.
    pub(crate) fn lay_out(&self, gradient: bool) -> Result<bool> {
        if let LinearWeights::Packed { stored, packed } = &self.weights {
            self.packed(stored, packed, gradient)?;
        }
        let is_trained = matches!(self.weights, LinearWeights::Trained { .. });
        Ok(gradient || is_trained || self.adapters.iter().any(Place::is_filled))
    }

    fn packed(&self, stored: &[Stored], packed: &PackedWeights, gradient: bool) -> Result<Packed> {
        let read = || {
            let parts = stored.iter().map(|part| part.tensor(Kind::BFloat16));
            joined(&parts.collect::<Result<Vec<_>>>()?, self.inputs)
        };
        packed.get(0, gradient, read, |plain, way| native::pack_linear(plain, way == Way::Backward))
    }
}

fn multiply_packed(
    x: &Tensor,
    packed: &Packed,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let (forward, backward) = (&packed.forward, packed.backward.as_ref());
    native::packed_linear(x, native::PackedLinear { forward, backward, bias }, residual)
}

/// Concatenates the rows: [.., inputs].
fn joined(weights: &[Tensor], inputs: i64) -> Result<Tensor> {
    match weights {
        [one] => Ok(one.f_view([-1, inputs])?),
        several => Ok(Tensor::f_cat(several, 0)?),
    }
}

/// Shape of a group normalisation.
#[derive(Debug, Clone, Copy)]
pub struct GroupNormConfig {
    /// Groups that share a mean and a variance.
    pub groups: i64,
    /// Channels; a multiple of `groups`.
    pub channels: i64,
    /// Added to the variance.
    pub epsilon: f64,
}

/// Group normalisation (Wu & He 2018) with scale and shift per channel. Statistics, scale and shift are fp32
/// whatever the input is: scales are near 1, where bf16 has steps of 1/128, and each error touches a whole channel.
#[derive(Debug)]
pub struct GroupNorm {
    weight: LayerTensor,
    bias: LayerTensor,
    groups: i64,
    epsilon: f64,
}

impl GroupNorm {
    /// Reads `weight` and `bias`, each [channels].
    pub fn new(scope: &Scope, config: GroupNormConfig) -> Result<Self> {
        let weight = scope.layer_tensor("weight", &[config.channels], Kind::Float)?;
        let bias = scope.layer_tensor("bias", &[config.channels], Kind::Float)?;
        Ok(GroupNorm { weight, bias, groups: config.groups, epsilon: config.epsilon })
    }

    /// `x`: [batch, channels, height, width]; returns the same shape, channels-last.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        native::group_norm(x, None, self.arguments(false))
    }

    /// Normalises, then applies x · sigmoid(x).
    pub fn forward_silu(&self, x: &Tensor) -> Result<Tensor> {
        native::group_norm(x, None, self.arguments(true))
    }

    /// Adds `added` ([batch, channels], which gets no gradient) to every position, normalises, then applies
    /// x · sigmoid(x).
    pub fn forward_added_silu(&self, x: &Tensor, added: &Tensor) -> Result<Tensor> {
        native::group_norm(x, Some(added), self.arguments(true))
    }

    /// [`GroupNorm::forward`], and `x` to go on with: both its gradients are then added up in one sweep.
    pub fn forward_keeping(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        native::group_norm_keeping(x, None, self.arguments(false))
    }

    /// [`GroupNorm::forward_silu`], and `x` to go on with.
    pub fn forward_silu_keeping(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        native::group_norm_keeping(x, None, self.arguments(true))
    }

    /// [`GroupNorm::forward_silu`] of the channels of `x` and then those of `skip`, which are never put together
    /// otherwise; and both to go on with.
    pub fn forward_silu_of_two(&self, x: &Tensor, skip: &Tensor) -> Result<[Tensor; 3]> {
        native::group_norm_of_two(x, skip, self.arguments(true))
    }

    fn arguments(&self, silu: bool) -> native::GroupNormArguments<'_> {
        let GroupNorm { weight, bias, groups, epsilon } = self;
        let (ends, groups, epsilon) = ([weight.end(), bias.end()], *groups, *epsilon);
        let (weight, bias) = (weight.plain(), bias.plain());
        native::GroupNormArguments { weight, bias, ends, groups, epsilon, silu }
    }
}

/// Layer normalisation over the last dimension; statistics, scale and shift in fp32, as in [`GroupNorm`].
#[derive(Debug)]
pub struct LayerNorm {
    weight: LayerTensor,
    bias: LayerTensor,
    epsilon: f64,
}

impl LayerNorm {
    /// Reads `weight` and `bias`, each [width].
    pub fn new(scope: &Scope, width: i64, epsilon: f64) -> Result<Self> {
        let weight = scope.layer_tensor("weight", &[width], Kind::Float)?;
        let bias = scope.layer_tensor("bias", &[width], Kind::Float)?;
        Ok(LayerNorm { weight, bias, epsilon })
    }

    /// `x`: [.., width]; returns the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [result, _] = self.forward_keeping(x)?;
        Ok(result)
    }

    /// [`LayerNorm::forward`], and `x` to go on with: both its gradients are then added up in one sweep.
    pub fn forward_keeping(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        let LayerNorm { weight, bias, epsilon } = self;
        native::layer_norm(x, [weight.plain(), bias.plain()], [weight.end(), bias.end()], *epsilon)
    }
}

/// Repeats `x` along dimension 0 until it is `batch`, a multiple of its length; channels-last data
/// stays so. Itself where there is nothing to repeat.
pub fn repeated(x: &Tensor, batch: i64) -> Result<Tensor> {
    let own = x.size().first().copied().unwrap_or_default();
    if own == batch {
        return Ok(x.shallow_clone());
    }
    if own < 1 || batch < own || batch % own != 0 {
        return Err(Error::argument("batch", batch, format!("a multiple of {own}")));
    }
    Ok(Tensor::f_cat(&vec![x; (batch / own) as usize], 0)?)
}

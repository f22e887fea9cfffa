//! Normalisations, of frozen and of trained weights.

use tch::Tensor;

use super::{ringtune_group_norm, ringtune_layer_norm, tensors_from};
use crate::error::Result;

/// Handles of a norm's scale and shift, where they are trained: csrc/weight_gradient.cpp.
pub(crate) type Ends<'a> = [Option<&'a Tensor>; 2];

/// Arguments of [`group_norm`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupNormArguments<'a> {
    /// Scale, [channels].
    pub(crate) weight: &'a Tensor,
    /// Shift, [channels].
    pub(crate) bias: &'a Tensor,
    /// Handles of scale and shift, where they are trained.
    pub(crate) ends: Ends<'a>,
    /// Groups of channels that share mean and variance.
    pub(crate) groups: i64,
    /// Added to the variance.
    pub(crate) epsilon: f64,
    /// Whether x · sigmoid(x) follows.
    pub(crate) silu: bool,
}

/// Group normalisation of `x` + `added`, with gradient for `x` and what is trained.
///
/// `x`: [batch, channels, height, width]; `added`: [batch, channels]; the weights must need no gradient.
pub(crate) fn group_norm(x: &Tensor, added: Option<&Tensor>, norm: GroupNormArguments) -> Result<Tensor> {
    let [result, _] = group_norm_keeping(x, added, norm)?;
    Ok(result)
}

/// [`group_norm`], and `x` itself: where the rest of a network goes on with that one, both gradients of `x` are made and
/// added up in one sweep, and in bf16 rounded once.
pub(crate) fn group_norm_keeping(
    x: &Tensor,
    added: Option<&Tensor>,
    norm: GroupNormArguments,
) -> Result<[Tensor; 2]> {
    normalise(x, None, added, norm)
}

/// [`group_norm_keeping`] of two inputs side by side, which are never put together: [batch, channels of `x`, …] and
/// [batch, channels of `skip`, …]. Returns the result, `x` and `skip`.
pub(crate) fn group_norm_of_two(x: &Tensor, skip: &Tensor, norm: GroupNormArguments) -> Result<[Tensor; 3]> {
    normalise(x, Some(skip), None, norm)
}

/// RESULTS: 2, and 3 with `skip`.
fn normalise<const RESULTS: usize>(
    x: &Tensor,
    skip: Option<&Tensor>,
    added: Option<&Tensor>,
    norm: GroupNormArguments,
) -> Result<[Tensor; RESULTS]> {
    debug_assert_eq!(RESULTS, 2 + usize::from(skip.is_some()));
    let or_null = |tensor: Option<&Tensor>| tensor.map_or(std::ptr::null(), Tensor::as_ptr);
    let (skip, added) = (or_null(skip), or_null(added));
    let GroupNormArguments { weight, bias, ends, groups, epsilon, silu } = norm;
    let [weight_end, bias_end] = ends.map(or_null);
    // SAFETY: live tensors (or null for none), which the shim only reads; it writes as many results as there are.
    tensors_from(|results| unsafe {
        ringtune_group_norm(
            x.as_ptr(),
            skip,
            added,
            groups,
            weight.as_ptr(),
            bias.as_ptr(),
            weight_end,
            bias_end,
            epsilon,
            silu,
            results,
        )
    })
}

/// Layer normalisation over the last dimension, with gradient for `x` and what is trained, and `x` itself as in
/// [`group_norm_keeping`].
///
/// `x`: [.., width]; `weight` and `bias`: [width].
pub(crate) fn layer_norm(
    x: &Tensor,
    [weight, bias]: [&Tensor; 2],
    ends: Ends,
    epsilon: f64,
) -> Result<[Tensor; 2]> {
    let [weight_end, bias_end] = ends.map(|end| end.map_or(std::ptr::null(), Tensor::as_ptr));
    // SAFETY: live tensors (or null for none), which the shim only reads; it writes two results.
    tensors_from(|results| unsafe {
        ringtune_layer_norm(
            x.as_ptr(),
            weight.as_ptr(),
            bias.as_ptr(),
            weight_end,
            bias_end,
            epsilon,
            results,
        )
    })
}

//! The boundary to `csrc/language*.cpp` and `csrc/causal_attention.cpp`. `csrc/language_shim.h` declares the same. Every
//! function checks kinds and shapes there.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ops::Deref;

use tch::{Kind, Tensor};
use torch_sys::C_tensor;

use super::dropout::{Mask, RawMask};
use crate::attention::AttentionKernel;
use crate::error::{Error, Result};
use crate::native::{done, last_error, tensor_from, tensor_over_raw, tensors_from};

unsafe extern "C" {
    fn ringtune_language_embed(
        wte: *const C_tensor,
        wpe: *const C_tensor,
        ids: *const C_tensor,
    ) -> *mut C_tensor;
    fn ringtune_language_put_rows(
        x: *const C_tensor,
        places: *const C_tensor,
        add: bool,
        target: *mut C_tensor,
    ) -> bool;
    fn ringtune_language_place_backward(
        gradient: *const C_tensor,
        tokens: i64,
        first: i64,
        add: bool,
        target: *mut C_tensor,
    ) -> bool;
    fn ringtune_language_norm(
        x: *const C_tensor,
        added: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        epsilon: f64,
        low: bool,
        results: *mut *mut C_tensor,
    ) -> bool;
    fn ringtune_language_norm_backward(
        gradient: *const C_tensor,
        x: *const C_tensor,
        statistics: *const C_tensor,
        weight: *const C_tensor,
        residual: *mut C_tensor,
        results: *mut *mut C_tensor,
    ) -> bool;
    fn ringtune_language_gelu(x: *const C_tensor) -> *mut C_tensor;
    fn ringtune_language_gelu_backward(x: *const C_tensor, gradient: *mut C_tensor) -> *mut C_tensor;
    fn ringtune_language_column_sums(x: *const C_tensor, add: bool, target: *mut C_tensor) -> bool;
    fn ringtune_language_cross_entropy(
        logits: *mut C_tensor,
        targets: *const C_tensor,
        gradient: bool,
        scale: f64,
    ) -> *mut C_tensor;
    fn ringtune_language_put(x: *const C_tensor, add: bool, target: *mut C_tensor) -> c_int;
    fn ringtune_language_times(
        x: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
    ) -> *mut C_tensor;
    fn ringtune_language_times_turned(x: *const C_tensor, weight: *const C_tensor) -> *mut C_tensor;
    fn ringtune_language_put_turned(x: *const C_tensor, add: bool, target: *mut C_tensor) -> c_int;
    fn ringtune_language_drop(x: *mut C_tensor, mask: *const RawMask) -> bool;
    fn ringtune_language_part() -> i64;
    fn ringtune_language_squares(x: *const C_tensor, parts: *mut f64) -> bool;
    fn ringtune_language_forget(x: *mut C_tensor) -> bool;
    fn ringtune_language_finite(x: *const C_tensor) -> c_int;
    fn ringtune_language_adamw(
        gradient: *const C_tensor,
        numbers: *const f64,
        parameter: *mut C_tensor,
        mean: *mut C_tensor,
        square: *mut C_tensor,
        low: *mut C_tensor,
    ) -> bool;
    fn ringtune_causal_attention(
        together: *const C_tensor,
        mask: *const RawMask,
        kernel: c_int,
        results: *mut *mut C_tensor,
    ) -> bool;
    fn ringtune_causal_attention_backward(
        together: *const C_tensor,
        output: *const C_tensor,
        kept: *const C_tensor,
        gradient: *const C_tensor,
        mask: *const RawMask,
        kernel: c_int,
    ) -> *mut C_tensor;
}

/// A tensor over memory that somebody else owns, as long as it is lent.
#[derive(Debug)]
pub(crate) struct Lent<'memory> {
    tensor: Tensor,
    memory: PhantomData<&'memory mut [f32]>,
}

impl<'memory> Lent<'memory> {
    /// All of `memory`, to write to, as fp32 of `shape`.
    ///
    /// # Errors
    /// A shape of another number of values.
    pub(crate) fn new(memory: &'memory mut [f32], shape: &[i64]) -> Result<Self> {
        check_length(memory.len(), shape)?;
        // SAFETY: valid for reads and writes of the whole tensor, by nobody else while this lives.
        let tensor = unsafe { tensor_over_raw(memory.as_mut_ptr().cast(), shape, Kind::Float) }?;
        Ok(Lent { tensor, memory: PhantomData })
    }

    /// For what writes to it.
    pub(crate) fn target(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
}

/// [`Lent`], to read alone.
#[derive(Debug)]
pub(crate) struct LentToRead<'memory> {
    tensor: Tensor,
    memory: PhantomData<&'memory [f32]>,
}

impl<'memory> LentToRead<'memory> {
    /// All of `memory`, to read, as fp32 of `shape`.
    ///
    /// # Errors
    /// A shape of another number of values.
    pub(crate) fn new(memory: &'memory [f32], shape: &[i64]) -> Result<Self> {
        check_length(memory.len(), shape)?;
        // SAFETY: valid for reads of the whole tensor while this lives; a `&Tensor` of it is given to what only reads.
        let tensor = unsafe { tensor_over_raw(memory.as_ptr().cast_mut().cast(), shape, Kind::Float) }?;
        Ok(LentToRead { tensor, memory: PhantomData })
    }
}

impl Deref for LentToRead<'_> {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

/// That memory has as many values as a shape.
fn check_length(length: usize, shape: &[i64]) -> Result<()> {
    let product = shape.iter().try_fold(1i64, |product, side| product.checked_mul(*side));
    if product.and_then(|product| usize::try_from(product).ok()) == Some(length) {
        return Ok(());
    }
    Err(Error::argument("memory", format!("of {length} values"), format!("as many as {shape:?} has")))
}

fn or_null(tensor: Option<&Tensor>) -> *const C_tensor {
    tensor.map_or(std::ptr::null(), Tensor::as_ptr)
}

fn yes_or_no(answer: c_int) -> Result<bool> {
    match answer {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(last_error()),
    }
}

fn or_null_mut(tensor: Option<&mut Tensor>) -> *mut C_tensor {
    tensor.map_or(std::ptr::null_mut(), Tensor::as_mut_ptr)
}

/// `wte`[ids] + `wpe`: [batch * tokens, width] fp32; `ids`: [batch, tokens], all of them rows of `wte`.
pub(crate) fn embed(wte: &Tensor, wpe: &Tensor, ids: &Tensor) -> Result<Tensor> {
    // SAFETY: live tensors that the shim only reads.
    tensor_from(unsafe { ringtune_language_embed(wte.as_ptr(), wpe.as_ptr(), ids.as_ptr()) })
}

/// The rows of `x` summed into those of `target` that `places` [rows] says, in their order; a row of `target` that is nobody's place
/// becomes zeros, with `add` it stays.
pub(crate) fn put_rows(x: &Tensor, places: &Tensor, add: bool, target: &mut Tensor) -> Result<()> {
    // SAFETY: live tensors; the shim writes to the one that is lent to be written.
    done(unsafe { ringtune_language_put_rows(x.as_ptr(), places.as_ptr(), add, target.as_mut_ptr()) })
}

/// The rows of `gradient`, [batch * tokens, width], summed over the batch: those of the places from `first` on.
pub(crate) fn place_backward(
    gradient: &Tensor,
    tokens: i64,
    first: i64,
    add: bool,
    target: &mut Tensor,
) -> Result<()> {
    // SAFETY: as above.
    done(unsafe {
        ringtune_language_place_backward(gradient.as_ptr(), tokens, first, add, target.as_mut_ptr())
    })
}

/// A layer norm's parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine<'a> {
    pub(crate) weight: &'a Tensor,
    pub(crate) bias: Option<&'a Tensor>,
    pub(crate) epsilon: f64,
}

/// The sum of `x` [rows, width] fp32 and `added` (`x` itself without), its layer norm as an activation, bf16 where `low`,
/// and what the way back needs, [rows, 2].
pub(crate) fn add_and_norm(
    x: &Tensor,
    added: Option<&Tensor>,
    affine: Affine,
    low: bool,
) -> Result<[Tensor; 3]> {
    let (weight, bias) = (affine.weight.as_ptr(), or_null(affine.bias));
    // SAFETY: live tensors (or null for none) that the shim only reads; it writes three results.
    tensors_from(|results| unsafe {
        ringtune_language_norm(x.as_ptr(), or_null(added), weight, bias, affine.epsilon, low, results)
    })
}

/// What a norm's way back begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormGradient<'a> {
    /// Of the norm's result.
    pub(crate) gradient: &'a Tensor,
    /// The norm's input, fp32.
    pub(crate) x: &'a Tensor,
    pub(crate) statistics: &'a Tensor,
    pub(crate) weight: &'a Tensor,
}

/// Adds the gradient of the norm's input to `residual`, in place. Gives it as an activation too, and the gradients of
/// weight and bias, [2, width].
pub(crate) fn norm_backward(norm: NormGradient, residual: &mut Tensor) -> Result<[Tensor; 2]> {
    let NormGradient { gradient, x, statistics, weight } = norm;
    // SAFETY: live tensors; the shim writes to the one that is lent to be written, and two results.
    tensors_from(|results| unsafe {
        ringtune_language_norm_backward(
            gradient.as_ptr(),
            x.as_ptr(),
            statistics.as_ptr(),
            weight.as_ptr(),
            residual.as_mut_ptr(),
            results,
        )
    })
}

/// GELU by tanh.
pub(crate) fn gelu(x: &Tensor) -> Result<Tensor> {
    // SAFETY: a live tensor that the shim only reads.
    tensor_from(unsafe { ringtune_language_gelu(x.as_ptr()) })
}

/// The gradient of [`gelu`]'s input, in place of that of its result, [rows, width]. Gives its sums over the rows, [width] fp32.
pub(crate) fn gelu_backward(x: &Tensor, gradient: &mut Tensor) -> Result<Tensor> {
    // SAFETY: live tensors; the shim writes to the one that is lent to be written.
    tensor_from(unsafe { ringtune_language_gelu_backward(x.as_ptr(), gradient.as_mut_ptr()) })
}

/// `target` [width]: the sums over the rows of `x` [rows, width].
pub(crate) fn column_sums(x: &Tensor, add: bool, target: &mut Tensor) -> Result<()> {
    // SAFETY: as above.
    done(unsafe { ringtune_language_column_sums(x.as_ptr(), add, target.as_mut_ptr()) })
}

/// The loss of each row, in nats; `logits` [rows, vocabulary], whose rows may lie apart, become its gradient times `scale`, where there is one.
pub(crate) fn cross_entropy(logits: &mut Tensor, targets: &Tensor, scale: Option<f64>) -> Result<Tensor> {
    let (gradient, scale) = (scale.is_some(), scale.unwrap_or(0.0));
    // SAFETY: as above.
    tensor_from(unsafe {
        ringtune_language_cross_entropy(logits.as_mut_ptr(), targets.as_ptr(), gradient, scale)
    })
}

/// x W + b of activations: `x` [rows, inputs], `weight` [inputs, outputs], `bias` [outputs].
pub(crate) fn times(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    // SAFETY: live tensors (or null for none) that the shim only reads.
    tensor_from(unsafe { ringtune_language_times(x.as_ptr(), weight.as_ptr(), or_null(bias)) })
}

/// x Wᵀ: `x` [rows, outputs], `weight` [inputs, outputs].
pub(crate) fn times_turned(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    // SAFETY: as above.
    tensor_from(unsafe { ringtune_language_times_turned(x.as_ptr(), weight.as_ptr()) })
}

/// `target` (+)= `x`; whether all of the target is finite then.
pub(crate) fn put(x: &Tensor, add: bool, target: &mut Tensor) -> Result<bool> {
    // SAFETY: live tensors; the shim writes to the one that is lent to be written.
    yes_or_no(unsafe { ringtune_language_put(x.as_ptr(), add, target.as_mut_ptr()) })
}

/// The same: `target` [rows, width] (+)= `x` [width, rows], whose rows may lie apart.
pub(crate) fn put_turned(x: &Tensor, add: bool, target: &mut Tensor) -> Result<bool> {
    // SAFETY: as above.
    yes_or_no(unsafe { ringtune_language_put_turned(x.as_ptr(), add, target.as_mut_ptr()) })
}

/// `x` [samples * tokens, width], an activation, times what `mask` says, in place; a token is a row.
pub(crate) fn drop(x: &mut Tensor, mask: &Mask) -> Result<()> {
    let raw = mask.raw();
    // SAFETY: a live tensor that is lent to be written, and a mask that lives longer than the call.
    done(unsafe { ringtune_language_drop(x.as_mut_ptr(), &raw) })
}

/// Numbers whose squares are added up by themselves.
pub(crate) fn part() -> usize {
    // SAFETY: it reads a constant.
    unsafe { ringtune_language_part() }.unsigned_abs() as usize
}

/// The sums of squares of so many numbers each ([`part`]), added up in double precision, in an order that their number alone decides.
pub(crate) fn squares(x: &Tensor) -> Result<Vec<f64>> {
    let mut parts = vec![0.0; x.numel().div_ceil(part())];
    // SAFETY: a live tensor that the shim only reads; it writes a number for each of its parts.
    done(unsafe { ringtune_language_squares(x.as_ptr(), parts.as_mut_ptr()) })?;
    Ok(parts)
}

/// Makes zeros of `x`, fp32 and contiguous, and gives its memory back to the system as far as whole pages go.
pub(crate) fn forget(x: &mut Tensor) -> Result<()> {
    // SAFETY: a live tensor that is lent to be written; its memory is private and no file's.
    done(unsafe { ringtune_language_forget(x.as_mut_ptr()) })
}

/// Whether all numbers are finite.
pub(crate) fn finite(x: &Tensor) -> Result<bool> {
    // SAFETY: as above.
    yes_or_no(unsafe { ringtune_language_finite(x.as_ptr()) })
}

/// What a step of the optimizer moves, all of one length.
#[derive(Debug)]
pub(crate) struct Moved<'a> {
    pub(crate) parameter: &'a mut Tensor,
    pub(crate) mean: &'a mut Tensor,
    pub(crate) square: &'a mut Tensor,
    /// The parameter's bf16 copy.
    pub(crate) low: Option<&'a mut Tensor>,
}

/// One step of AdamW; `numbers`: those of csrc/language_kernels.h's `AdamW`, in its order.
pub(crate) fn adamw(gradient: &Tensor, numbers: &[f64; 8], moved: Moved) -> Result<()> {
    let low = or_null_mut(moved.low);
    // SAFETY: live tensors (or null for none) and eight numbers; the shim writes to those that are lent to be written.
    done(unsafe {
        ringtune_language_adamw(
            gradient.as_ptr(),
            numbers.as_ptr(),
            moved.parameter.as_mut_ptr(),
            moved.mean.as_mut_ptr(),
            moved.square.as_mut_ptr(),
            low,
        )
    })
}

/// Numbers that a row's length in memory is a multiple of, so that each row begins with a cache line.
const ROW_MULTIPLE: i64 = 64;

/// Memory for `rows` of `width` numbers of `like`'s kind, each row at the beginning of a cache line. A vocabulary's width is odd, and
/// libtorch multiplies rows that begin anywhere up to a quarter slower.
///
/// The padding between the rows is zero. oneDNN's AMX kernels multiply bf16 numbers in pairs: of a row with an odd number of them they
/// also read the first number of the padding, times zero. Memory that was used before may hold a NaN there.
pub(crate) fn rows_apart(rows: i64, width: i64, like: &Tensor) -> Result<Tensor> {
    let stride = (width + ROW_MULTIPLE - 1) / ROW_MULTIPLE * ROW_MULTIPLE;
    let whole = Tensor::f_empty([rows, stride], (like.f_kind()?, like.device()))?;
    let _same = whole.f_narrow(1, width, stride - width)?.f_zero_()?;
    Ok(whole.f_narrow(1, 0, width)?)
}

/// Attention of each token to itself and those before it: `together` [batch, tokens, 3, heads, width]; `mask` drops of the
/// probabilities. Gives [batch, tokens, heads, width], and what the way back needs.
pub(crate) fn causal_attention(
    together: &Tensor,
    mask: Option<&Mask>,
    kernel: AttentionKernel,
) -> Result<[Tensor; 2]> {
    let raw = mask.map(Mask::raw);
    let mask = raw.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a live tensor that the shim only reads, and a mask (or null for none) that lives longer than the call; it
    // writes two results.
    tensors_from(|results| unsafe {
        ringtune_causal_attention(together.as_ptr(), mask, kernel as c_int, results)
    })
}

/// The gradient of `together`; `mask`: that of the way forward.
pub(crate) fn causal_attention_backward(
    together: &Tensor,
    [output, kept]: [&Tensor; 2],
    gradient: &Tensor,
    mask: Option<&Mask>,
    kernel: AttentionKernel,
) -> Result<Tensor> {
    let (output, kept, kernel) = (output.as_ptr(), kept.as_ptr(), kernel as c_int);
    let raw = mask.map(Mask::raw);
    let mask = raw.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: live tensors that the shim only reads, and a mask as above.
    tensor_from(unsafe {
        ringtune_causal_attention_backward(together.as_ptr(), output, kept, gradient.as_ptr(), mask, kernel)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::Runtime;

    #[test]
    fn what_is_forgotten_is_zeros_and_its_neighbours_stay() {
        for (length, start, count) in [(100_000, 777, 98_000), (100_000, 0, 100_000), (50, 7, 20), (5, 2, 0)]
        {
            let whole = Tensor::from_slice(&vec![1.5f32; length]);
            forget(&mut whole.narrow(0, start, count)).unwrap();
            let sum = whole.sum(Kind::Double).double_value(&[]);
            assert_eq!(sum, 1.5 * (length as f64 - count as f64), "{start} {count}");
            // It is written to again as ever.
            let _ = whole.narrow(0, start, count).fill_(2.0);
            let sum = whole.sum(Kind::Double).double_value(&[]);
            assert_eq!(sum, 1.5 * length as f64 + 0.5 * count as f64);
        }
    }

    #[test]
    fn a_sum_of_squares_that_fails_is_an_error_and_no_number() {
        Runtime::initialise(1).unwrap();
        let failed = squares(&Tensor::from_slice(&[1i64, 2]));
        assert!(matches!(failed, Err(Error::Torch(_))), "{failed:?}");
        assert_eq!(squares(&Tensor::from_slice(&[3f32, -4.0])).unwrap(), [25.0]);
        assert!(squares(&Tensor::from_slice(&[3f32, f32::NAN])).unwrap()[0].is_nan());
        assert_eq!(squares(&Tensor::from_slice(&vec![1f32; part() + 3])).unwrap(), [part() as f64, 3.0]);
    }

    #[test]
    fn rows_are_summed_at_their_places_alike_by_any_number_of_threads() {
        let (rows, width, all) = (300i64, 19i64, 40i64);
        // None has place 7; place 3 has two thirds of them.
        let place = |row: i64| if row % 3 == 0 { (row * row) % all } else { 3 };
        let places: Vec<i64> = (0..rows).map(|row| if place(row) == 7 { 8 } else { place(row) }).collect();
        let value = |at: i64| ((at * 7919 % 1009) as f32 - 500.0) * 10f32.powi((at % 7) as i32 - 3);
        let x: Vec<f32> = (0..rows * width).map(value).collect();
        let before: Vec<f32> = (0..all * width).map(|at| value(at + 5)).collect();
        let (x, places_of) = (Tensor::from_slice(&x).view([rows, width]), Tensor::from_slice(&places));
        for add in [false, true] {
            let mut expected: Vec<f32> = before.iter().map(|one| if add { *one } else { 0.0 }).collect();
            for (row, place) in places.iter().enumerate() {
                for at in 0..width {
                    expected[(place * width + at) as usize] += value(row as i64 * width + at);
                }
            }
            for threads in [1, 2, 3] {
                Runtime::initialise(threads).unwrap();
                let mut target = Tensor::from_slice(&before).view([all, width]);
                put_rows(&x, &places_of, add, &mut target).unwrap();
                let found: Vec<f32> = Vec::try_from(target.view([-1])).unwrap();
                assert!(found == expected, "add: {add}, {threads} threads");
            }
        }
        // Nothing into nothing; and places that are none.
        let mut none = Tensor::from_slice(&[0f32; 0]).view([0, width]);
        put_rows(&x.narrow(0, 0, 0), &places_of.narrow(0, 0, 0), false, &mut none).unwrap();
        let mut target = Tensor::from_slice(&before).view([all, width]);
        for wrong in [all, -1] {
            let refused = put_rows(&x.narrow(0, 0, 1), &Tensor::from_slice(&[wrong]), true, &mut target);
            assert!(matches!(refused, Err(Error::Torch(_))), "{refused:?}");
        }
    }
}

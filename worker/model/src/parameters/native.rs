//! The boundary to what `csrc/language*.cpp` does with gradients and parameters, of whatever model. `csrc/language_shim.h` declares
//! the same. Every function checks kinds and shapes there.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ops::Deref;

use tch::{Kind, Tensor};
use torch_sys::C_tensor;

use crate::error::{Error, Result};
use crate::native::{done, last_error, tensor_over_raw};

unsafe extern "C" {
    fn ringtune_language_put_rows(
        x: *const C_tensor,
        places: *const C_tensor,
        add: bool,
        target: *mut C_tensor,
    ) -> bool;
    fn ringtune_language_put(x: *const C_tensor, add: bool, target: *mut C_tensor) -> c_int;
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

/// An answer that may be an error instead.
pub(crate) fn yes_or_no(answer: c_int) -> Result<bool> {
    match answer {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(last_error()),
    }
}

fn or_null_mut(tensor: Option<&mut Tensor>) -> *mut C_tensor {
    tensor.map_or(std::ptr::null_mut(), Tensor::as_mut_ptr)
}

/// The rows of `x` summed into those of `target` that `places` [rows] says, in their order; a row of `target` that is nobody's place
/// becomes zeros, with `add` it stays.
pub(crate) fn put_rows(x: &Tensor, places: &Tensor, add: bool, target: &mut Tensor) -> Result<()> {
    // SAFETY: live tensors; the shim writes to the one that is lent to be written.
    done(unsafe { ringtune_language_put_rows(x.as_ptr(), places.as_ptr(), add, target.as_mut_ptr()) })
}

/// `target` (+)= `x`; whether all of the target is finite then.
pub(crate) fn put(x: &Tensor, add: bool, target: &mut Tensor) -> Result<bool> {
    // SAFETY: live tensors; the shim writes to the one that is lent to be written.
    yes_or_no(unsafe { ringtune_language_put(x.as_ptr(), add, target.as_mut_ptr()) })
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
    // SAFETY: a live tensor that the shim only reads.
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

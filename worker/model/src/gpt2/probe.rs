//! What a language model computes with, on small fixed inputs: part of [`crate::probe()`].

use ringtune_engine::Dropout;
use tch::{Kind, Tensor};

use super::native::{self, Affine, NormGradient};
use crate::attention::AttentionKernel;
use crate::dropout::{self, Masks, Site};
use crate::error::Result;
use crate::parameters::native::{Lent, LentToRead, Moved, adamw, finite, put, put_rows, squares};
use crate::parameters::product;

/// Rows, in several stretches, and a width that fills no vector.
const ROWS: i64 = 150;
const WIDTH: i64 = 83;
const MANY_ROWS: i64 = 3100;
/// The rest of the width, and rows of a table.
const TOKENS: i64 = 75;
/// Batch, tokens, heads and width of a head: over several blocks, of which the last are not full, and GPT-2's own width.
const ATTENTIONS: [[i64; 4]; 2] = [[2, 200, 3, 64], [1, 97, 2, 40]];

/// Calls `keep` with each result; `pattern` makes values of a shape, by a number.
pub(crate) fn each_result(
    kind: Kind,
    pattern: impl Fn(&[i64], u32, Kind) -> Result<Tensor>,
    mut keep: impl FnMut(&Tensor) -> Result<()>,
) -> Result<()> {
    let floats = |shape: &[i64], number: u32| pattern(shape, number, Kind::Float);
    // 1. Look-ups and their way back.
    let ids: Vec<i64> = (0..ROWS).map(|row| row * row % 31).collect();
    let ids = Tensor::f_from_slice(&ids)?.f_view([2, TOKENS])?;
    let (table, places) = (floats(&[31, WIDTH], 60)?, floats(&[TOKENS, WIDTH], 61)?);
    let x = native::embed(&table, &places, &ids)?;
    keep(&x)?;
    let (mut of_table, mut of_places) = (table.f_detach_copy()?, places.f_detach_copy()?);
    for add in [false, true] {
        put_rows(&x, &ids.f_view([-1])?, add, &mut of_table)?;
        keep(&of_table)?;
    }
    native::place_backward(&x, TOKENS, 0, true, &mut of_places)?;
    keep(&of_places)?;
    // 2. Norms.
    let (weight, bias) = (floats(&[WIDTH], 62)?, floats(&[WIDTH], 63)?);
    let affine = Affine { weight: &weight, bias: Some(&bias), epsilon: 1e-5 };
    let added = pattern(&[ROWS, WIDTH], 64, kind)?;
    let [sum, y, statistics] = native::add_and_norm(&x, Some(&added), affine, kind == Kind::BFloat16)?;
    let norm = NormGradient { gradient: &added, x: &sum, statistics: &statistics, weight: &weight };
    let mut residual = floats(&[ROWS, WIDTH], 65)?;
    let [slope, sums] = native::norm_backward(norm, &mut residual)?;
    for result in [&sum, &y, &statistics, &slope, &sums, &residual] {
        keep(result)?;
    }
    // 3. Products, and the gradients of their parameters.
    let (factor, offset) = (pattern(&[WIDTH, 96], 66, kind)?, pattern(&[96], 67, kind)?);
    let inner = native::times(&y, &factor, Some(&offset))?;
    let mut of_factor = vec![0.0; (WIDTH * 96) as usize];
    let mut lent = Lent::new(&mut of_factor, &[WIDTH, 96])?;
    product(&y, &inner, false, lent.target())?;
    product(&y, &inner, true, lent.target())?;
    let of_factor = LentToRead::new(&of_factor, &[WIDTH, 96])?;
    let mut of_offset = floats(&[96], 68)?;
    native::column_sums(&inner, true, &mut of_offset)?;
    for result in [&inner, &native::times_turned(&inner, &factor)?, &of_factor, &of_offset] {
        keep(result)?;
    }
    // So many rows that the factor is ordered first.
    let many = pattern(&[MANY_ROWS, WIDTH], 73, kind)?;
    let far = native::times(&many, &factor, Some(&offset))?;
    keep(&far)?;
    keep(&native::times_turned(&far, &factor)?)?;
    let mut turned = native::rows_apart(96, WIDTH, &inner)?;
    turned.f_copy_(&factor.f_tr()?)?;
    let mut of_factor = of_factor.f_detach_copy()?;
    native::put_turned(&turned, true, &mut of_factor)?;
    keep(&of_factor)?;
    // 4. GELU, also where its gate is all but open or closed.
    let wide = inner.f_mul_scalar(8.0)?;
    let mut slope = inner.f_detach_copy()?;
    keep(&native::gelu_backward(&wide, &mut slope)?)?;
    keep(&native::gelu(&wide)?)?;
    keep(&slope)?;
    // 5. The loss.
    let targets = ids.f_view([-1])?;
    let mut logits = pattern(&[ROWS, 211], 69, kind)?;
    keep(&native::cross_entropy(&mut logits, &targets, Some(1.0 / ROWS as f64))?)?;
    keep(&logits)?;
    // 6. Attention, of which nothing is dropped and something.
    let dropout = Dropout { rate: 0.2, seed: 7, step: 3, first_sample: 1 };
    for (number, [batch, tokens, heads, width]) in (70u32..).zip(ATTENTIONS) {
        let together = pattern(&[batch, tokens, 3, heads, width], number, kind)?;
        let gradient = together.f_select(2, 1)?.f_contiguous()?;
        let kernel = AttentionKernel::best();
        let masks = Masks::new(Some(dropout), batch as usize)?;
        for mask in [None, masks.map(|masks| masks.of(Site::Attention, 2))] {
            let mask = mask.as_ref();
            let [output, kept] = native::causal_attention(&together, mask, kernel)?;
            let back =
                native::causal_attention_backward(&together, [&output, &kept], &gradient, mask, kernel)?;
            for result in [&output, &kept, &back] {
                keep(result)?;
            }
        }
    }
    // 7. What is dropped of other activations.
    if let Some(masks) = Masks::new(Some(dropout), 2)? {
        let mut dropped = pattern(&[ROWS, WIDTH], 72, kind)?;
        dropout::drop(&mut dropped, &masks.of(Site::Projection, 1))?;
        keep(&dropped)?;
    }
    optimizer(kind, &floats, keep)
}

fn optimizer(
    kind: Kind,
    floats: &impl Fn(&[i64], u32) -> Result<Tensor>,
    mut keep: impl FnMut(&Tensor) -> Result<()>,
) -> Result<()> {
    let gradient = floats(&[ROWS * 300], 80)?;
    let (mut parameter, mut mean) = (floats(&[ROWS * 300], 81)?, floats(&[ROWS * 300], 82)?);
    let mut square = floats(&[ROWS * 300], 83)?.f_square()?;
    let mut low = parameter.f_to_kind(Kind::BFloat16)?;
    let copy = (kind == Kind::BFloat16).then_some(&mut low);
    let moved = Moved { parameter: &mut parameter, mean: &mut mean, square: &mut square, low: copy };
    adamw(&gradient, &[0.7, 0.999, 0.1, 0.95, 0.05, 0.3, -1e-3, 1e-8], moved)?;
    for result in [&parameter, &mean, &square, &low] {
        keep(result)?;
    }
    let mut sum = floats(&[1], 84)?;
    put(&Tensor::f_from_slice(&[squares(&gradient)?.iter().sum::<f64>() as f32])?, true, &mut sum)?;
    keep(&sum)?;
    keep(&Tensor::f_from_slice(&[f32::from(u8::from(finite(&gradient)?))])?)
}

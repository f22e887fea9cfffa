//! The head: cross-entropy of the next token, and the way back through it, over blocks of rows at a time. No more
//! logits than those of one block are ever in memory, and those in the model's precision.

use tch::{Kind, Tensor};

use super::{Gpt2, native};
use crate::attention::AttentionKernel;
use crate::error::Result;
use crate::parameters::{Gradients, product};

/// Rows whose logits are there at once: 200 MB of bf16 for GPT-2's vocabulary. Fixed, as it decides in which order the
/// table's gradient is added up.
const ROWS: i64 = 2048;

/// The mean loss of all rows. `hidden`: [rows, n_embd], an activation; `targets`: [rows].
pub(crate) fn loss(model: &Gpt2, hidden: &Tensor, targets: &Tensor) -> Result<f32> {
    let mut losses = Losses::default();
    each_block(model, hidden, targets, |_, logits, _, targets| {
        losses.add(&native::cross_entropy(logits, targets, None)?)
    })?;
    Ok(losses.mean())
}

/// The same; puts the head's part of the token table's gradient, and gives the gradient of `hidden`.
pub(crate) fn loss_and_gradient(
    model: &Gpt2,
    hidden: &Tensor,
    targets: &Tensor,
    gradients: &mut Gradients,
) -> Result<(f32, Tensor)> {
    let mut losses = Losses::default();
    let result = hidden.f_empty_like()?;
    let table = model.parameters.factor(model.layout.wte);
    let (rows, width) = hidden.size2()?;
    let scale = 1.0 / rows as f64;
    each_block(model, hidden, targets, |first, logits, hidden, targets| {
        losses.add(&native::cross_entropy(logits, targets, Some(scale))?)?;
        let slopes = &*logits;
        let _same = slopes.f_mm_out(&result.f_narrow(0, first, hidden.size2()?.0)?, table)?;
        let add = gradients.adds() || first > 0;
        gradients.each_piece(model.layout.wte, |piece, target| {
            let (first, count) = (piece.first as i64 / width, piece.count as i64 / width);
            product_of_columns(&slopes.f_narrow(1, first, count)?, hidden, add, target)
        })
    })?;
    gradients.end(model.layout.wte)?;
    Ok((losses.mean(), result))
}

/// body(first row, logits, hidden, targets) for each block of rows.
fn each_block(
    model: &Gpt2,
    hidden: &Tensor,
    targets: &Tensor,
    mut body: impl FnMut(i64, &mut Tensor, &Tensor, &Tensor) -> Result<()>,
) -> Result<()> {
    let table = model.parameters.factor(model.layout.wte).f_tr()?;
    let (rows, vocabulary) = (hidden.size2()?.0, table.size2()?.1);
    let all_logits = native::rows_apart(ROWS.min(rows), vocabulary, hidden)?;
    for first in (0..rows).step_by(ROWS as usize) {
        let count = ROWS.min(rows - first);
        let hidden = hidden.f_narrow(0, first, count)?;
        let mut logits = all_logits.f_narrow(0, 0, count)?;
        let _same = hidden.f_mm_out(&logits, &table)?;
        body(first, &mut logits, &hidden, &targets.f_narrow(0, first, count)?)?;
    }
    Ok(())
}

/// Losses of rows, added up in their order in double precision.
#[derive(Default)]
struct Losses {
    sum: f64,
    rows: usize,
}

impl Losses {
    fn add(&mut self, losses: &Tensor) -> Result<()> {
        let values = crate::stable_diffusion::to_vec(losses)?;
        self.sum += values.iter().map(|loss| f64::from(*loss)).sum::<f64>();
        self.rows += values.len();
        Ok(())
    }

    fn mean(&self) -> f32 {
        (self.sum / self.rows.max(1) as f64) as f32
    }
}

/// As [`product`], for a `left` of many columns, whose rows lie apart. Without AMX libtorch multiplies it faster as the right factor; with it
/// nobody has measured that.
pub(crate) fn product_of_columns(
    left: &Tensor,
    right: &Tensor,
    add: bool,
    target: &mut Tensor,
) -> Result<bool> {
    if left.f_kind()? != Kind::BFloat16 || AttentionKernel::best() == AttentionKernel::Amx {
        return product(left, right, add, target);
    }
    let turned = native::rows_apart(right.size2()?.1, left.size2()?.1, left)?;
    let _same = right.f_tr()?.f_mm_out(&turned, left)?;
    native::put_turned(&turned, add, target)
}

//! Where the backward pass puts gradients: pieces of the owner's buckets.

use ringtune_engine::{AlignedFloats, BucketPlan, Buckets, Parameter, Piece};
use tch::{Kind, Tensor};

use super::native::{self, Lent, LentToRead};
use crate::error::{Error, Result};

/// The buckets of one backward pass. One is taken when its first number is made, and given back when all of them are, in
/// the plan's order.
pub(crate) struct Gradients<'a> {
    plan: &'a BucketPlan,
    parameters: &'a [Parameter],
    owner: &'a mut dyn Buckets,
    /// Whether gradients are added to what the buckets hold.
    add: bool,
    taken: Vec<Option<AlignedFloats>>,
    /// Pieces of each bucket that are not ended.
    open: Vec<usize>,
    /// The next bucket to give back.
    next: usize,
    finite: bool,
}

impl<'a> Gradients<'a> {
    pub(crate) fn new(
        plan: &'a BucketPlan,
        parameters: &'a [Parameter],
        owner: &'a mut dyn Buckets,
        add: bool,
    ) -> Self {
        let open = plan.buckets.iter().map(|bucket| bucket.pieces.len()).collect();
        let taken = plan.buckets.iter().map(|_| None).collect();
        Gradients { plan, parameters, owner, add, taken, open, next: 0, finite: true }
    }

    /// Whether gradients are added to what the buckets hold.
    pub(crate) fn adds(&self) -> bool {
        self.add
    }

    /// Whether all that was given back is finite.
    pub(crate) fn finite(&self) -> bool {
        self.finite
    }

    /// Lends the memory of each piece of a parameter's gradient in turn: rows of a matrix, or a vector.
    pub(crate) fn each_piece(
        &mut self,
        parameter: usize,
        mut body: impl FnMut(Piece, &mut Tensor) -> Result<()>,
    ) -> Result<()> {
        let plan = self.plan;
        let shape = &self.parameters[parameter].shape;
        for (bucket, piece) in plan.pieces_of(parameter) {
            if self.taken[bucket].is_none() {
                let memory = self.owner.take(bucket).map_err(Error::Buckets)?;
                if memory.len() != plan.buckets[bucket].length {
                    let given = format!("bucket {bucket} of {} numbers", memory.len());
                    return Err(Error::argument("buckets", given, plan.buckets[bucket].length));
                }
                self.taken[bucket] = Some(memory);
            }
            let Some(memory) = &mut self.taken[bucket] else { continue };
            let row: usize = shape.iter().skip(1).product();
            let sides = match shape.len() {
                0 | 1 => vec![piece.count as i64],
                _ => vec![(piece.count / row.max(1)) as i64, row as i64],
            };
            let mut lent = Lent::new(&mut memory[piece.offset..piece.offset + piece.count], &sides)?;
            body(piece, lent.target())?;
        }
        Ok(())
    }

    /// Puts a whole gradient of a vector.
    pub(crate) fn put_vector(&mut self, parameter: usize, gradient: &Tensor) -> Result<()> {
        let add = self.add;
        self.each_piece(parameter, |_, target| native::put(gradient, add, target))?;
        self.end(parameter)
    }

    /// The gradient of a product's weights, [inputs, outputs]: that of the inputs' columns times that of the result.
    ///
    /// `x`: [rows, inputs], `gradient`: [rows, outputs]. In bf16 the sum is rounded before it is put, as autocast does.
    pub(crate) fn put_product(&mut self, parameter: usize, x: &Tensor, gradient: &Tensor) -> Result<()> {
        let add = self.add;
        let row = gradient.size().get(1).copied().unwrap_or(1).max(1);
        self.each_piece(parameter, |piece, target| {
            let (first, count) = (piece.first as i64 / row, piece.count as i64 / row);
            product(&x.f_narrow(1, first, count)?, gradient, add, target)
        })?;
        self.end(parameter)
    }

    /// Nothing more comes to this parameter's gradient: buckets that are complete go back to their owner.
    pub(crate) fn end(&mut self, parameter: usize) -> Result<()> {
        for (bucket, _) in self.plan.pieces_of(parameter) {
            self.open[bucket] = self.open[bucket].saturating_sub(1);
        }
        while self.open.get(self.next) == Some(&0) {
            if let Some(memory) = self.taken[self.next].take() {
                let lent = LentToRead::new(&memory, &[memory.len() as i64])?;
                self.finite &= native::finite(&lent)?;
                self.owner.give(self.next, memory).map_err(Error::Buckets)?;
            }
            self.next += 1;
        }
        Ok(())
    }
}

/// target (+)= leftᵀ right: of [rows, inputs] and [rows, outputs].
pub(crate) fn product(left: &Tensor, right: &Tensor, add: bool, target: &mut Tensor) -> Result<()> {
    let left = left.f_tr()?;
    if left.f_kind()? == Kind::BFloat16 {
        return native::put(&left.f_mm(right)?, add, target);
    }
    if add {
        let _same = target.f_addmm_out(target, &left, right)?;
    } else {
        let _same = left.f_mm_out(target, right)?;
    }
    Ok(())
}

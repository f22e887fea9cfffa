//! Where the backward pass puts gradients: pieces of the owner's buckets, and rows of the one of what is looked up.

use ringtune_engine::{AlignedFloats, Buckets, ParametersInfo, Piece};
use tch::{Kind, Tensor};

use super::native::{self, Lent};
use crate::error::{Error, Result};

/// The buckets of one backward pass. One is taken when its first number is made, and given back when all of them are, in
/// the plan's order; that of what is looked up comes behind them.
pub(crate) struct Gradients<'a> {
    info: &'a ParametersInfo,
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
    pub(crate) fn new(info: &'a ParametersInfo, owner: &'a mut dyn Buckets, add: bool) -> Self {
        let open = info.plan.buckets.iter().map(|bucket| bucket.pieces.len()).collect();
        let taken = info.plan.buckets.iter().map(|_| None).collect();
        Gradients { info, owner, add, taken, open, next: 0, finite: true }
    }

    /// Whether gradients are added to what the buckets hold.
    pub(crate) fn adds(&self) -> bool {
        self.add
    }

    /// Whether all that was put is finite.
    pub(crate) fn finite(&self) -> bool {
        self.finite
    }

    /// Lends the memory of each piece of a parameter's gradient in turn: rows of a matrix, or a vector. `body` puts all of it, and says
    /// whether it is finite.
    pub(crate) fn each_piece(
        &mut self,
        parameter: usize,
        mut body: impl FnMut(Piece, &mut Tensor) -> Result<bool>,
    ) -> Result<()> {
        let ParametersInfo { list, plan, .. } = self.info;
        let shape = &list[parameter].shape;
        for (bucket, piece) in plan.pieces_of(parameter) {
            if self.taken[bucket].is_none() {
                self.taken[bucket] = Some(self.take(bucket, plan.buckets[bucket].length)?);
            }
            let Some(memory) = &mut self.taken[bucket] else { continue };
            let row: usize = shape.iter().skip(1).product();
            let sides = match shape.len() {
                0 | 1 => vec![piece.count as i64],
                _ => vec![(piece.count / row.max(1)) as i64, row as i64],
            };
            let mut lent = Lent::new(&mut memory[piece.offset..piece.offset + piece.count], &sides)?;
            self.finite &= body(piece, lent.target())?;
        }
        Ok(())
    }

    /// Puts a whole gradient, of the parameter's shape.
    pub(crate) fn put_whole(&mut self, parameter: usize, gradient: &Tensor) -> Result<()> {
        let (add, flat) = (self.add, gradient.f_contiguous()?.f_view([-1])?);
        self.each_piece(parameter, |piece, target| {
            let own = flat.f_narrow(0, piece.first as i64, piece.count as i64)?;
            native::put(&own.f_view_as(&*target)?, add, target)
        })?;
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

    /// Puts the gradient of the rows that were looked up, and ends the pass: behind everything else.
    ///
    /// `gradient`: [tokens, width], of what each token looked up; `places`: [tokens], of its row among the step's `rows`. What belongs to
    /// one row is added up in the order of tokens.
    pub(crate) fn put_looked_up(&mut self, gradient: &Tensor, places: &Tensor, rows: usize) -> Result<()> {
        let (bucket, width) = (self.info.plan.buckets.len(), gradient.size2()?.1);
        let mut memory = self.take(bucket, rows * width as usize)?;
        let mut lent = Lent::new(&mut memory, &[rows as i64, width])?;
        native::put_rows(gradient, places, self.add, lent.target())?;
        self.finite &= native::finite(lent.target())?;
        self.give(bucket, memory)
    }

    /// Ends the pass of a model that looks nothing up: the bucket behind the plan's is empty.
    pub(crate) fn put_nothing_looked_up(&mut self) -> Result<()> {
        let bucket = self.info.plan.buckets.len();
        let memory = self.take(bucket, 0)?;
        self.give(bucket, memory)
    }

    /// Takes a bucket from its owner.
    fn take(&mut self, bucket: usize, length: usize) -> Result<AlignedFloats> {
        let memory = self.owner.take(bucket).map_err(Error::Buckets)?;
        if memory.len() != length {
            return Err(Error::argument(
                "buckets",
                format!("bucket {bucket} of {} numbers", memory.len()),
                length,
            ));
        }
        Ok(memory)
    }

    /// Gives a bucket back that has all that this pass puts in.
    fn give(&mut self, bucket: usize, memory: AlignedFloats) -> Result<()> {
        self.owner.give(bucket, memory).map_err(Error::Buckets)
    }

    /// Nothing more comes to this parameter's gradient: buckets that are complete go back to their owner.
    pub(crate) fn end(&mut self, parameter: usize) -> Result<()> {
        for (bucket, _) in self.info.plan.pieces_of(parameter) {
            self.open[bucket] = self.open[bucket].saturating_sub(1);
        }
        while self.open.get(self.next) == Some(&0) {
            if let Some(memory) = self.taken[self.next].take() {
                self.give(self.next, memory)?;
            }
            self.next += 1;
        }
        Ok(())
    }
}

/// target (+)= leftᵀ right: of [rows, inputs] and [rows, outputs]. Whether all of it is finite then.
pub(crate) fn product(left: &Tensor, right: &Tensor, add: bool, target: &mut Tensor) -> Result<bool> {
    let left = left.f_tr()?;
    if left.f_kind()? == Kind::BFloat16 {
        return native::put(&left.f_mm(right)?, add, target);
    }
    if add {
        let _same = target.f_addmm_out(target, &left, right)?;
    } else {
        let _same = left.f_mm_out(target, right)?;
    }
    native::finite(target)
}

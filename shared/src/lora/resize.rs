//! Lower ranks: the product of fewer columns and rows that is nearest to a pair's own, by the Frobenius norm.
//!
//! With `up = Q A` and `down = (P B)ᵀ`, Q and P orthonormal, only the small `A Bᵀ` has to be decomposed (Eckart and Young, 1936).
//! Its singular values come from one-sided Jacobi rotations (Demmel and Veselić, 1992), which lose nothing where a rank is
//! not full, as that of a pair often is. In fp64 and with +, −, ×, ÷ and √ alone: the same bits on every machine.

use std::{borrow::Cow, num::NonZeroUsize};

use super::{
    Factor, LoraFile, Pair,
    write::{NETWORK_ALPHA, NETWORK_RANK},
};

/// Sweeps over all pairs of columns at most: ten are usual.
const MOST_SWEEPS: usize = 30;
/// Columns whose cosine is smaller are orthogonal.
const ORTHOGONAL: f64 = 1e-14;
/// What is left of a column without its part along the others, as a share of it: below, it is rounding.
const DEPENDENT: f64 = 1e-12;

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resized {
    /// Modules whose rank was higher. All others are as they were, to the bit.
    pub lowered: usize,
    /// The share of its product's norm that the module kept that kept least.
    pub least_kept: f64,
}

impl LoraFile<'_> {
    /// Lowers all ranks above this one. Alpha / rank, the types and DoRA's lengths stay. Of a rank of 128 that takes ten seconds
    /// and more: `progress` is called with the modules that are done, of how many, before each.
    pub fn resize(&mut self, rank: NonZeroUsize, mut progress: impl FnMut(usize, usize)) -> Resized {
        let (wanted, all) = (rank.get(), self.modules.len());
        let mut resized = Resized { lowered: 0, least_kept: 1.0 };
        for (done, pair) in self.modules.values_mut().enumerate() {
            progress(done, all);
            if pair.rank <= wanted {
                continue;
            }
            resized.least_kept = resized.least_kept.min(lower(pair, wanted));
            resized.lowered += 1;
        }
        if resized.lowered > 0 {
            // They are written anew.
            self.metadata.retain(|key, _| ![NETWORK_RANK, NETWORK_ALPHA].contains(&key.as_str()));
        }
        resized
    }
}

/// A matrix, column after column.
type Columns = Vec<Vec<f64>>;

/// Lowers a pair's rank. Returns the share of the product's norm that is kept.
fn lower(pair: &mut Pair<'_>, wanted: usize) -> f64 {
    // 1. Both factors as orthonormal columns and a triangle.
    let rank = pair.rank;
    let (up, down) = (pair.up.kind.widened(&pair.up.bytes), pair.down.kind.widened(&pair.down.bytes));
    let wide = |numbers: &[f32]| -> Vec<f64> { numbers.iter().map(|number| f64::from(*number)).collect() };
    let mut left: Columns =
        (0..rank).map(|column| up.chunks_exact(rank).map(|row| f64::from(row[column])).collect()).collect();
    let mut right: Columns = down.chunks_exact(down.len() / rank).map(wide).collect();
    let (a, b) = (orthonormalise(&mut left), orthonormalise(&mut right));
    // 2. The small product, turned until its columns are orthogonal: their lengths are the singular values.
    let row_of_b = |row: usize| -> Vec<f64> { b.iter().map(|column| column[row]).collect() };
    let mut core: Columns = (0..rank).map(|row| combined(&a, &row_of_b(row))).collect();
    let mut turns: Columns =
        (0..rank).map(|one| (0..rank).map(|other| f64::from(one == other)).collect()).collect();
    orthogonalise(&mut core, &mut turns);
    let mut values: Vec<(f64, usize)> = core.iter().map(|column| length(column)).zip(0..).collect();
    values.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    // 3. The largest of them, half of each on either side.
    let (mut ups, mut downs) = (Columns::new(), Vec::new());
    for (value, column) in &values[..wanted] {
        let half = if *value > 0.0 { 1.0 / value.sqrt() } else { 0.0 };
        ups.push(combined(&left, &core[*column]).iter().map(|number| number * half).collect());
        downs.extend(combined(&right, &turns[*column]).iter().map(|number| (number * value.sqrt()) as f32));
    }
    let outputs = up.len() / rank;
    let ups: Vec<f32> =
        (0..outputs).flat_map(|row| ups.iter().map(move |column| column[row] as f32)).collect();
    let store = |factor: &mut Factor<'_>, numbers: &[f32]| {
        factor.bytes = Cow::Owned(factor.kind.narrowed(numbers));
    };
    store(&mut pair.up, &ups);
    store(&mut pair.down, &downs);
    pair.alpha = pair.alpha * wanted as f64 / rank as f64;
    pair.rank = wanted;
    let squares = |values: &[(f64, usize)]| values.iter().map(|(value, _)| value * value).sum::<f64>();
    let all = squares(&values);
    if all > 0.0 { (squares(&values[..wanted]) / all).sqrt() } else { 1.0 }
}

/// Makes columns orthonormal; those that depend on the ones before become 0. Returns the triangle that takes the new columns
/// to the old ones. Gram and Schmidt's way, twice, which is enough (Giraud and others, 2005).
fn orthonormalise(columns: &mut [Vec<f64>]) -> Columns {
    let mut triangle = vec![vec![0.0; columns.len()]; columns.len()];
    for (index, row) in triangle.iter_mut().enumerate() {
        let (before, rest) = columns.split_at_mut(index);
        let column = &mut rest[0];
        let whole = length(column);
        for _ in 0..2 {
            for (other, part) in before.iter().zip(row.iter_mut()) {
                let along = dot(other, column);
                *part += along;
                column.iter_mut().zip(other).for_each(|(number, unit)| *number -= along * unit);
            }
        }
        let left = length(column);
        let (left, scale) = if left > whole * DEPENDENT { (left, 1.0 / left) } else { (0.0, 0.0) };
        row[index] = left;
        column.iter_mut().for_each(|number| *number *= scale);
    }
    triangle
}

/// Turns pairs of columns until all are orthogonal, and the columns of `turns` alike.
fn orthogonalise(columns: &mut [Vec<f64>], turns: &mut [Vec<f64>]) {
    // Where the rank is not full, the columns that should be 0 are rounding, which has no directions to find.
    let negligible = ORTHOGONAL * ORTHOGONAL * columns.iter().map(|column| dot(column, column)).sum::<f64>();
    for _ in 0..MOST_SWEEPS {
        let mut turned = false;
        for one in 0..columns.len() {
            for other in one + 1..columns.len() {
                let (p, q) = (&columns[one], &columns[other]);
                let (pp, qq, pq) = (dot(p, p), dot(q, q), dot(p, q));
                if pq.abs() <= (ORTHOGONAL * pp.sqrt() * qq.sqrt()).max(negligible) {
                    continue;
                }
                turned = true;
                let zeta = (qq - pp) / (2.0 * pq);
                let tangent = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
                for matrix in [&mut *columns, &mut *turns] {
                    let (before, rest) = matrix.split_at_mut(other);
                    for (p, q) in before[one].iter_mut().zip(&mut rest[0]) {
                        (*p, *q) = (cosine * (*p - tangent * *q), cosine * (tangent * *p + *q));
                    }
                }
            }
        }
        if !turned {
            return;
        }
    }
}

/// The sum of columns, each times its weight.
fn combined(columns: &[Vec<f64>], weights: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; columns.first().map_or(0, Vec::len)];
    for (column, weight) in columns.iter().zip(weights) {
        sum.iter_mut().zip(column).for_each(|(number, part)| *number += weight * part);
    }
    sum
}

fn length(column: &[f64]) -> f64 {
    dot(column, column).sqrt()
}

/// In eight sums, which the processor adds up side by side; always in this order.
fn dot(one: &[f64], other: &[f64]) -> f64 {
    let ((ones, rest), (others, other_rest)) = (one.as_chunks::<8>(), other.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (one, other) in ones.iter().zip(others) {
        for (sum, (one, other)) in sums.iter_mut().zip(one.iter().zip(other)) {
            *sum += one * other;
        }
    }
    let tail: f64 = rest.iter().zip(other_rest).map(|(one, other)| one * other).sum();
    sums.iter().sum::<f64>() + tail
}

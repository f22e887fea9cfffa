//! Which gradients travel together: a pure function of the parameters' sizes.
//!
//! The gradients of a model, one behind the other in the order in which the backward pass ends them, are cut into
//! buckets: a small first one, so that the exchange begins early, and then larger ones, which the network takes at its
//! best rate. A tensor that does not fit into what is left of a bucket goes on in the next one, cut between two rows.
//! Source of the sizes: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", 3.2.3.

use crate::{AlignedFloats, Shares, common};

/// One parameter of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the model's file, such as "transformer.h.0.attn.c_attn.weight".
    pub name: String,
    /// Its sides; the last dimension runs fastest.
    pub shape: Vec<usize>,
    /// Whether weight decay shrinks it: matrices, and not biases and the factors of norms.
    pub decayed: bool,
    /// Which of a step's rates it moves by: [`OptimizerStep::rate`](crate::OptimizerStep::rate).
    pub rate: usize,
}

impl Parameter {
    /// One that is decayed if it has two dimensions or more, and moves by the first rate.
    pub fn new(name: impl Into<String>, shape: Vec<usize>) -> Self {
        let decayed = shape.len() >= 2;
        Self { name: name.into(), shape, decayed, rate: 0 }
    }

    /// Its numbers.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Numbers that are never in two buckets: a row of a matrix; of a vector, all.
    fn row(&self) -> usize {
        if self.shape.len() < 2 { self.elements() } else { self.shape.iter().skip(1).product() }
    }
}

/// Sizes of buckets, in bytes of fp32 gradients. A bucket is up to a row of one tensor larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSizes {
    /// The first one.
    pub first: usize,
    /// All others; the last has what is left.
    pub others: usize,
}

impl Default for BucketSizes {
    /// 1 MB and 25 MB.
    fn default() -> Self {
        Self { first: 1 << 20, others: 25 << 20 }
    }
}

/// A part of one parameter's gradient in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The parameter's number in the model's list.
    pub parameter: usize,
    /// Numbers of it in earlier buckets: whole rows.
    pub first: usize,
    /// Numbers of it in this bucket: whole rows.
    pub count: usize,
    /// Numbers of the bucket in front of them.
    pub offset: usize,
}

/// One bucket: pieces one behind the other, without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// In the order in which they lie in it.
    pub pieces: Vec<Piece>,
    /// Numbers of all of them.
    pub length: usize,
}

/// All buckets, in the order in which the backward pass fills them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketPlan {
    /// None is empty.
    pub buckets: Vec<Bucket>,
}

impl BucketPlan {
    /// `order`: the numbers of all `parameters`, each once, as the backward pass ends their gradients. Numbers that are
    /// none of a parameter, and parameters without numbers, are passed over.
    pub fn new(parameters: &[Parameter], order: &[usize], sizes: BucketSizes) -> Self {
        let room = |buckets: &[Bucket]| {
            let bytes = if buckets.len() < 2 { sizes.first } else { sizes.others };
            (bytes / size_of::<f32>()).max(1)
        };
        let mut buckets = vec![Bucket::default()];
        for &number in order {
            let Some(parameter) = parameters.get(number) else { continue };
            let (elements, row) = (parameter.elements(), parameter.row().max(1));
            let mut first = 0;
            while first < elements {
                let limit = room(&buckets);
                let Some(bucket) = buckets.last_mut() else { break };
                let left = limit.saturating_sub(bucket.length);
                // What is left of a bucket takes a row more than fits: no bucket is left with a gap, or empty.
                let count = left.div_ceil(row).saturating_mul(row).min(elements - first);
                if count > 0 {
                    let offset = bucket.length;
                    bucket.pieces.push(Piece { parameter: number, first, count, offset });
                    bucket.length += count;
                    first += count;
                } else {
                    buckets.push(Bucket::default());
                }
            }
        }
        buckets.retain(|bucket| bucket.length > 0);
        Self { buckets }
    }

    /// Numbers of all buckets.
    pub fn elements(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.length).sum()
    }

    /// The pieces of one parameter with their buckets' numbers, in order.
    pub fn pieces_of(&self, parameter: usize) -> impl Iterator<Item = (usize, Piece)> + '_ {
        let all = self.buckets.iter().enumerate();
        all.flat_map(|(number, bucket)| bucket.pieces.iter().map(move |piece| (number, *piece)))
            .filter(move |(_, piece)| piece.parameter == parameter)
    }

    /// All of every bucket.
    pub fn everything(&self) -> Shares {
        Shares::of(self.buckets.iter().map(|bucket| [0..bucket.length, 0..bucket.length]))
    }

    /// The parameters, in the plan's order, of whose gradient in `buckets` a number is NaN or infinite. Only what is `held` is looked at.
    pub fn not_finite(&self, buckets: &[AlignedFloats], held: &Shares) -> Vec<usize> {
        let mut found = Vec::new();
        for (number, (bucket, memory)) in self.buckets.iter().zip(buckets).enumerate() {
            for held in held.held(number) {
                let is_broken = |piece: &&Piece| {
                    let places = common(&held, &(piece.offset..piece.offset + piece.count));
                    memory.get(places).is_some_and(|own| own.iter().any(|number| !number.is_finite()))
                };
                found.extend(bucket.pieces.iter().filter(is_broken).map(|piece| piece.parameter));
            }
        }
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(shapes: &[&[usize]]) -> Vec<Parameter> {
        let named = |(number, shape): (usize, &&[usize])| Parameter::new(number.to_string(), shape.to_vec());
        shapes.iter().enumerate().map(named).collect()
    }

    /// Every number of every parameter is in one bucket, in order, and buckets have no gaps.
    fn check(parameters: &[Parameter], order: &[usize], plan: &BucketPlan) {
        for bucket in &plan.buckets {
            let mut offset = 0;
            for piece in &bucket.pieces {
                assert_eq!(piece.offset, offset);
                assert!(piece.count > 0 && piece.count.is_multiple_of(parameters[piece.parameter].row()));
                offset += piece.count;
            }
            assert_eq!(bucket.length, offset);
        }
        let mut met: Vec<usize> = plan.buckets.iter().flat_map(|b| &b.pieces).map(|p| p.parameter).collect();
        met.dedup();
        assert_eq!(met, order);
        for number in order {
            let mut next = 0;
            for (_, piece) in plan.pieces_of(*number) {
                assert_eq!(piece.first, next);
                next += piece.count;
            }
            assert_eq!(next, parameters[*number].elements());
        }
    }

    #[test]
    fn tensors_are_cut_between_rows_and_vectors_never() {
        let parameters = parameters(&[&[10, 4], &[7], &[3, 2, 2], &[100]]);
        let order = [3, 2, 1, 0];
        let plan = BucketPlan::new(&parameters, &order, BucketSizes { first: 16, others: 64 });
        check(&parameters, &order, &plan);
        // The vector fills the first; the rest is cut at rows of 4.
        let lengths: Vec<usize> = plan.buckets.iter().map(|bucket| bucket.length).collect();
        assert_eq!(lengths, [100, 19, 16, 16, 8]);
        let piece = Piece { parameter: 0, first: 0, count: 0, offset: 19 };
        assert_eq!(plan.buckets[1].pieces[1], Piece { parameter: 1, count: 7, offset: 12, ..piece });
        assert_eq!(plan.buckets[2].pieces, [Piece { count: 16, offset: 0, ..piece }]);
        assert_eq!(plan.buckets[4].pieces, [Piece { first: 32, count: 8, offset: 0, ..piece }]);
    }

    #[test]
    fn the_buckets_of_gpt2_have_the_sizes_that_were_asked_for() {
        let mut shapes: Vec<&[usize]> = vec![&[50_257, 768], &[1024, 768]];
        for _ in 0..12 {
            shapes.extend([
                &[768, 2304][..],
                &[2304],
                &[768, 768],
                &[768],
                &[768, 3072],
                &[3072],
                &[3072, 768],
            ]);
        }
        let parameters = parameters(&shapes);
        let order: Vec<usize> = (0..parameters.len()).rev().collect();
        let plan = BucketPlan::new(&parameters, &order, BucketSizes::default());
        check(&parameters, &order, &plan);
        assert_eq!(plan.elements(), parameters.iter().map(Parameter::elements).sum::<usize>());
        let bytes: Vec<usize> = plan.buckets.iter().map(|bucket| bucket.length * 4).collect();
        assert!((1 << 20..(1 << 20) + 3072 * 4).contains(&bytes[0]), "{bytes:?}");
        for one in &bytes[1..bytes.len() - 1] {
            assert!((25 << 20..(25 << 20) + 3072 * 4).contains(one), "{bytes:?}");
        }
        assert_eq!(bytes.len(), 20);
    }

    #[test]
    fn nothing_makes_no_bucket_and_a_size_of_zero_one_for_each_row() {
        assert_eq!(BucketPlan::new(&[], &[], BucketSizes::default()), BucketPlan::default());
        let parameters = parameters(&[&[0, 5], &[3, 2]]);
        let plan = BucketPlan::new(&parameters, &[0, 1, 9], BucketSizes { first: 0, others: 0 });
        check(&parameters, &[1], &plan);
        assert_eq!(plan.buckets.len(), 3);
    }
}

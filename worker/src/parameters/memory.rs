//! Whether this machine has the memory that a model's training takes. A model that has no room would end the worker's process, with
//! all that it does for other jobs, and then that of the next worker.

use crate::fault::{Blame, Fault};

/// How a model is trained.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Training {
    /// Of the ring.
    pub(crate) ranks: u32,
    /// AdamW's moments are divided among them.
    pub(crate) shared_moments: bool,
    /// An average of the parameters is kept.
    pub(crate) average: bool,
    /// Each rank takes rounds of steps by itself.
    pub(crate) rounds: bool,
    /// Moments and average are mapped files.
    pub(crate) in_files: bool,
    /// Sums of gradients that a rank has at once.
    pub(crate) gradients: u32,
    /// Bytes of a parameter's copies that layers multiply by.
    pub(crate) copies: u8,
}

/// Sums that the tree over so many microbatches has at once: one of each height, beside the one that is being computed.
pub(crate) fn sums_at_once(microbatches: u32) -> u32 {
    microbatches.max(1).ilog2() + 1
}

impl Training {
    /// One rank, with one microbatch and no copies.
    pub(crate) const LEAST: Self = Self {
        ranks: 1,
        shared_moments: false,
        average: false,
        rounds: false,
        in_files: false,
        gradients: 1,
        copies: 0,
    };

    /// Bytes that each rank needs at least: what passes keep is not counted.
    pub(crate) fn bytes(self, parameters: u128) -> u128 {
        let Self { ranks, shared_moments, average, rounds, in_files, gradients, copies } = self;
        let ranks = u128::from(ranks.max(1));
        // Each rank has two of as many parts as there are ranks.
        let parts = if shared_moments { ranks.min(2) } else { ranks };
        let moments = (8 * parameters * parts).div_ceil(ranks);
        let average = if average { 4 * parameters } else { 0 };
        // What the parameters were before a round, and their momentum.
        let rounds = if rounds { 8 * parameters } else { 0 };
        let state = if in_files { 0 } else { moments + average + rounds };
        // Parameters and gradients are fp32.
        (4 + 4 * u128::from(gradients) + u128::from(copies)) * parameters + state
    }
}

/// Refuses a model of so many parameters whose training has no room in `memory` bytes; 0: the machine does not say how many it has.
/// `field`: what makes it so large.
///
/// # Errors
/// How large the model is, and how large the machine.
pub(crate) fn check(
    field: &'static str,
    parameters: u128,
    training: Training,
    memory: u64,
) -> Result<(), TooLarge> {
    let needed = training.bytes(parameters);
    if memory == 0 || needed <= u128::from(memory) {
        return Ok(());
    }
    Err(TooLarge { field, parameters, needed: gigabytes(needed), memory: gigabytes(u128::from(memory)) })
}

pub(crate) fn gigabytes(bytes: u128) -> f64 {
    bytes as f64 / 1e9
}

/// Another machine may have the room.
#[derive(Debug, thiserror::Error)]
#[error(
    "{field}: the model has {parameters} parameters, whose training needs about {needed:.1} GB of memory on each worker; this one \
     has {memory:.1} GB: take a smaller model, or workers with more memory"
)]
pub(crate) struct TooLarge {
    field: &'static str,
    parameters: u128,
    needed: f64,
    memory: f64,
}

impl Blame for TooLarge {
    fn fault(&self) -> Fault {
        Fault::Machine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_takes_sixteen_bytes_and_two_in_bf16_and_fewer_where_moments_are_shared() {
        let alone = Training::LEAST;
        let of = |training: Training| training.bytes(1000);
        assert_eq!((of(alone), of(Training { copies: 2, ..alone })), (16_000, 18_000));
        for (ranks, bytes) in [(1, 16_000), (2, 16_000), (4, 12_000), (8, 10_000)] {
            assert_eq!(of(Training { ranks, shared_moments: true, ..alone }), bytes);
            assert_eq!(of(Training { ranks, ..alone }), 16_000);
        }
        assert_eq!(of(Training { rounds: true, ..alone }), 24_000);
        let with_average = Training { average: true, ..alone };
        assert_eq!((of(with_average), of(Training { in_files: true, ..with_average })), (20_000, 8_000));
        assert_eq!([1, 2, 3, 4, 512].map(sums_at_once), [1, 2, 2, 3, 10]);
        assert_eq!(of(Training { gradients: 3, ..alone }), 24_000);
    }
}

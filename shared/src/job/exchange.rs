//! In which order ranks add up large gradients.

use super::choices::choice;

choice! {
    /// In which order the gradients of a step's microbatches are added up.
    SumOrder {
        /// By one tree over all microbatches: the same bits for any number of ranks.
        Exact = "exact",
        /// Each rank adds up its own one after the other, and the ring adds up those of its ranks in its own order: the same
        /// bits for the same number of ranks only.
        Fast = "fast",
        /// As fast, in numbers that travel between ranks in bf16: half the bytes, rounded at each hop.
        FastBf16 = "fast_bf16",
        /// Seldom: each microbatch has a replica of the parameters, which takes many steps for itself; how far each came is added up by
        /// the tree. The same bits for any number of ranks.
        Local = "local",
    }
}

impl SumOrder {
    /// What jobs did before there was a choice.
    pub(super) fn before() -> Self {
        Self::Exact
    }

    /// Whether the number of ranks decides the bits, where there are several.
    pub(super) fn follows_the_ring(&self) -> bool {
        matches!(self, Self::Fast | Self::FastBf16)
    }

    /// That is not written down.
    pub(super) fn is_as_before(&self) -> bool {
        *self == Self::before()
    }
}

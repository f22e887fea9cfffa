//! Frozen weights in the order that is fastest, oneDNN's or that of csrc/frozen_layers.h: read from their file and packed
//! when they are first used.

use std::cell::RefCell;

use tch::Tensor;

use crate::error::Result;

/// Packed weights.
#[derive(Debug)]
pub(crate) struct Packed {
    /// For the way forward.
    pub(crate) forward: Tensor,
    /// For its way back, once a gradient was wanted.
    pub(crate) backward: Option<Tensor>,
}

/// Direction that weights are packed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Forward,
    Backward,
}

/// A layer's packed weights, once there are any.
#[derive(Debug, Default)]
pub(crate) struct PackedWeights(RefCell<Option<(u64, Packed)>>);

impl PackedWeights {
    /// The weights, with those of the way back for a `gradient`. What is missing is packed, and everything where `version` is another
    /// than before: `read` gives the plain weights, which are not kept, and `pack` puts them in order.
    ///
    /// No bit may depend on when that happens. Linear layers are computed in the order that they are in, which may decide bits:
    /// it follows from the layer alone (csrc/linear.cpp). Convolutions are packed for the sizes that come first, which decide
    /// none: our own kernels have one order for all, and oneDNN chooses how it computes by the sizes at hand alone, and puts weights that were packed for others in order
    /// first. That costs time, so the first gradient packs the way forward anew: how fast training is does not depend on what
    /// was drawn before.
    pub(crate) fn get(
        &self,
        version: u64,
        gradient: bool,
        read: impl FnOnce() -> Result<Tensor>,
        pack: impl Fn(&Tensor, Way) -> Result<Tensor>,
    ) -> Result<Packed> {
        if let Some((of, packed)) = &*self.0.borrow()
            && *of == version
            && (packed.backward.is_some() || !gradient)
        {
            return Ok(packed.shallow_clone());
        }
        // Those of another version make room first.
        self.0.replace(None);
        let plain = read()?;
        let forward = pack(&plain, Way::Forward)?;
        let backward = gradient.then(|| pack(&plain, Way::Backward)).transpose()?;
        #[cfg(test)]
        PACKED.with(|packed| packed.set(packed.get() + 1));
        let packed = Packed { forward, backward };
        self.0.replace(Some((version, packed.shallow_clone())));
        Ok(packed)
    }

    #[cfg(test)]
    pub(crate) fn both_ways(&self) -> bool {
        self.0.borrow().as_ref().is_some_and(|(_, packed)| packed.backward.is_some())
    }
}

#[cfg(test)]
thread_local! {
    /// Number of times that this thread has packed a layer's weights.
    pub(crate) static PACKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Packed {
    fn shallow_clone(&self) -> Self {
        let backward = self.backward.as_ref().map(Tensor::shallow_clone);
        Packed { forward: self.forward.shallow_clone(), backward }
    }
}

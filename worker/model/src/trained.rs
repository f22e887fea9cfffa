//! Parameters of a network that are trained, as its layers see them: their values of now, and the handles that their gradients are
//! those of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tch::{Device, Kind, Tensor};

use crate::error::Result;

/// What layers compute with now. Whoever moves parameters, or shows others, says so.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    version: AtomicU64,
    average: AtomicBool,
}

impl Watch {
    /// What was computed of the values is to be computed anew.
    pub(crate) fn changed(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether values are the averages of the parameters.
    pub(crate) fn show_average(&self, average: bool) {
        self.average.store(average, Ordering::Relaxed);
        self.changed();
    }
}

/// One parameter. Clones are the same one.
#[derive(Debug)]
pub(crate) struct TrainedTensor {
    parameter: Tensor,
    average: Option<Tensor>,
    handle: Tensor,
    watch: Arc<Watch>,
}

impl TrainedTensor {
    /// `parameter` and `average`: fp32, where the optimizer moves them. `kind`: of the gradient that a layer makes.
    pub(crate) fn new(
        parameter: &Tensor,
        average: Option<&Tensor>,
        kind: Kind,
        watch: &Arc<Watch>,
    ) -> Result<Self> {
        let handle = Tensor::f_zeros([1], (kind, Device::Cpu))?;
        let handle = handle.f_expand(parameter.size(), false)?.f_detach()?.f_set_requires_grad(true)?;
        Ok(TrainedTensor {
            parameter: parameter.f_detach()?,
            average: average.map(Tensor::f_detach).transpose()?,
            handle,
            watch: Arc::clone(watch),
        })
    }

    pub(crate) fn handle(&self) -> &Tensor {
        &self.handle
    }

    fn value(&self) -> &Tensor {
        let average = self.average.as_ref().filter(|_| self.watch.average.load(Ordering::Relaxed));
        average.unwrap_or(&self.parameter)
    }

    pub(crate) fn shallow_clone(&self) -> Self {
        TrainedTensor {
            parameter: self.parameter.shallow_clone(),
            average: self.average.as_ref().map(Tensor::shallow_clone),
            handle: self.handle.shallow_clone(),
            watch: Arc::clone(&self.watch),
        }
    }
}

/// A tensor that a layer computes with.
#[derive(Debug)]
pub(crate) enum LayerTensor {
    /// In the layer's kind.
    Frozen(Tensor),
    /// fp32.
    Trained(TrainedTensor),
}

impl LayerTensor {
    /// As it is stored.
    pub(crate) fn plain(&self) -> &Tensor {
        match self {
            Self::Frozen(tensor) => tensor,
            Self::Trained(trained) => trained.value(),
        }
    }

    /// In this kind.
    pub(crate) fn value(&self, kind: Kind) -> Result<Tensor> {
        Ok(self.plain().f_to_kind(kind)?)
    }

    /// The handle, where it is trained.
    pub(crate) fn end(&self) -> Option<&Tensor> {
        match self {
            Self::Frozen(_) => None,
            Self::Trained(trained) => Some(trained.handle()),
        }
    }

    /// Another number than before where the value has changed.
    pub(crate) fn version(&self) -> u64 {
        match self {
            Self::Frozen(_) => 0,
            Self::Trained(trained) => trained.watch.version.load(Ordering::Relaxed),
        }
    }
}

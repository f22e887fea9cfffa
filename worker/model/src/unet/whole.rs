//! What a UNet has whose own weights are trained.

use tch::Tensor;

use super::segments::Segments;
use crate::parameters::Parameters;

/// A UNet that is trained.
#[derive(Debug)]
pub(crate) struct WholeUnet {
    pub(crate) parameters: Parameters,
    /// Of each parameter, at which the backward pass ends.
    pub(crate) handles: Vec<Tensor>,
    pub(crate) segments: Segments,
    /// Whether segments are computed a second time on the way back.
    pub(crate) again: bool,
}

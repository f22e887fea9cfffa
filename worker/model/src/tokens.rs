//! Positions of a picture as rows, and back.

use tch::Tensor;

use crate::error::Result;

/// [batch, channels, height, width] as [batch, height · width, channels]: a view of channels-last data.
pub fn to_tokens(x: &Tensor) -> Result<Tensor> {
    let (batch, channels, height, width) = x.size4()?;
    Ok(x.f_permute([0, 2, 3, 1])?.f_reshape([batch, height * width, channels])?)
}

/// The inverse of [`to_tokens`]; the result is channels-last.
pub fn from_tokens(x: &Tensor, height: i64, width: i64) -> Result<Tensor> {
    let (batch, _, channels) = x.size3()?;
    Ok(x.f_reshape([batch, height, width, channels])?.f_permute([0, 3, 1, 2])?)
}

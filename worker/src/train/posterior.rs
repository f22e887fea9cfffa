//! What a VAE makes of a picture, from which latents are sampled.

use std::{fmt::Debug, sync::Arc};

use super::Error;
use crate::engine::Moments;

/// A scaled sample of a posterior, [channels, height, width] flat: (mean + deviation x draw) x scaling factor, for a
/// standard normal draw of the same shape.
/// Source: diffusers, DiagonalGaussianDistribution.sample.
pub fn latent(posterior: &Moments, draw: &[f32], scaling_factor: f64) -> Vec<f32> {
    let scaling_factor = scaling_factor as f32;
    // In 64 bits by libm, which has the same bits everywhere.
    let deviation = |logvar: f32| libm::exp(0.5 * f64::from(logvar)) as f32;
    let parameters = posterior.mean.iter().zip(&posterior.logvar);
    parameters
        .zip(draw)
        .map(|((mean, logvar), draw)| (mean + deviation(*logvar) * draw) * scaling_factor)
        .collect()
}

/// A posterior, unscaled, as the engine's VAE gave it, or where that is read whenever it is shown. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Posterior {
    /// In memory.
    Here(Arc<Moments>),
    /// Anywhere else.
    Stored(Arc<dyn StoredPosterior>),
}

/// A posterior that is not in memory. It is the same whenever it is read.
pub trait StoredPosterior: Debug + Send + Sync {
    /// Channels, rows and columns of its latents.
    fn shape(&self) -> [usize; 3];

    /// Reads it. Blocks.
    ///
    /// # Errors
    /// Why it cannot be read any more, and which it is: for the user.
    fn read(&self) -> Result<Arc<Moments>, String>;

    /// It will be read soon.
    fn expect(&self);
}

impl From<Moments> for Posterior {
    fn from(moments: Moments) -> Self {
        Self::Here(Arc::new(moments))
    }
}

impl Posterior {
    /// Channels, rows and columns of its latents.
    pub fn shape(&self) -> [usize; 3] {
        match self {
            Self::Here(moments) => shape_of(moments),
            Self::Stored(stored) => stored.shape(),
        }
    }

    /// The posterior itself. Blocks where it is not in memory.
    ///
    /// # Errors
    /// It cannot be read any more.
    pub fn read(&self) -> Result<Arc<Moments>, Error> {
        match self {
            Self::Here(moments) => Ok(Arc::clone(moments)),
            Self::Stored(stored) => stored.read().map_err(|problem| Error::Posterior { problem }),
        }
    }

    /// It will be read soon.
    pub(crate) fn expect(&self) {
        if let Self::Stored(stored) = self {
            stored.expect();
        }
    }

    /// It has this shape, and all numbers of it. What is elsewhere is checked when it is read.
    pub(super) fn fits(&self, shape: [usize; 3]) -> bool {
        let length: usize = shape.iter().product();
        match self {
            Self::Here(moments) => {
                shape_of(moments) == shape && moments.mean.len() == length && moments.logvar.len() == length
            }
            Self::Stored(stored) => stored.shape() == shape,
        }
    }
}

fn shape_of(moments: &Moments) -> [usize; 3] {
    [moments.channels, moments.height, moments.width]
}

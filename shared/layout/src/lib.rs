//! The layout of the original Stable Diffusion code (CompVis latent-diffusion for 1.x, Stability-AI's stablediffusion for
//! 2.x), in which a whole model is one file: what the shapes of its tensors say of the networks, and what its tensors are
//! called in diffusers' layout.
//!
//! What no tensor can say is what diffusers' `from_single_file` assumes: 8 attention heads in 1.x and heads of 64 in 2.x,
//! groups of 32, the scaling factor of Stable Diffusion.
//!
//! Source: diffusers `loaders/single_file_utils.py` and `scripts/convert_original_stable_diffusion_to_diffusers.py`.

mod names;
mod prefixes;
mod sizes;

use std::collections::BTreeMap;
use std::ops::Bound;

pub use names::{Component, text_name};
pub use prefixes::Generation;
pub use sizes::Sizes;

/// Why a file is not a model in this layout: the end of a sentence that begins with the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotThisLayout(pub(crate) String);

/// Shapes of a file's tensors, by name.
#[derive(Debug, Clone, Default)]
pub struct Shapes(BTreeMap<String, Vec<usize>>);

/// The name that a stored tensor has in diffusers' layout, and which part of it has that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPlace {
    /// Below its component.
    pub name: String,
    /// All of it, or some of its rows.
    pub part: Part,
}

/// A part of a stored tensor that lies in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// As it is.
    Whole,
    /// The tensor as a matrix: dimensions after the second have length 1.
    Matrix,
    /// One of three equal parts of the rows, counted from 0.
    Third(u8),
}

impl Shapes {
    /// The shape of a tensor.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<&[usize]> {
        self.0.get(name).map(Vec::as_slice)
    }

    /// Whether there is a tensor whose name begins so.
    #[must_use]
    pub fn any(&self, prefix: &str) -> bool {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        self.0.range::<str, _>(from).next().is_some_and(|(name, _)| name.starts_with(prefix))
    }
}

impl FromIterator<(String, Vec<usize>)> for Shapes {
    fn from_iter<T: IntoIterator<Item = (String, Vec<usize>)>>(shapes: T) -> Self {
        Self(shapes.into_iter().collect())
    }
}

impl TensorPlace {
    /// All of a tensor.
    #[must_use]
    pub fn whole(name: String) -> Self {
        Self { name, part: Part::Whole }
    }
}

impl Part {
    /// Its shape, and the first of its rows, of a tensor of `shape`. A shape that does not fit stays as it is, so that it is
    /// found to be wrong where the tensor is asked for.
    #[must_use]
    pub fn of(self, shape: &[usize]) -> (Vec<usize>, usize) {
        match (self, shape) {
            (Self::Matrix, [rows, columns, rest @ ..]) if rest.iter().all(|side| *side == 1) => {
                (vec![*rows, *columns], 0)
            }
            (Self::Third(which), [rows, rest @ ..]) if rows % 3 == 0 => {
                let shape = [rows / 3].into_iter().chain(rest.iter().copied()).collect();
                (shape, rows / 3 * usize::from(which))
            }
            _ => (shape.to_vec(), 0),
        }
    }
}

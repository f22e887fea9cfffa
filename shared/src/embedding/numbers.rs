//! A tensor's bytes as rows of fp32.

use super::{EmbeddingError, MOST_VECTORS, MOST_WIDTH};
use crate::floats::FloatKind;

/// A tensor that was found but not decoded.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StoredTensor<'a> {
    /// Its name in the file.
    pub(super) name: String,
    pub(super) kind: FloatKind,
    pub(super) shape: Vec<usize>,
    /// Row after row.
    pub(super) data: &'a [u8],
}

impl StoredTensor<'_> {
    /// Its width, and [vectors, width] flat; one dimension is one row.
    ///
    /// # Errors
    /// Another shape, or a number that is not finite.
    pub(super) fn into_rows(self) -> Result<(usize, Vec<f32>), EmbeddingError> {
        let Self { name, kind, shape, data } = self;
        let (vectors, width) = rows_and_width(&name, &shape)?;
        if vectors * width * kind.bytes() != data.len() {
            let problem = format!("{name:?} has shape {shape:?} and {} bytes", data.len());
            return Err(EmbeddingError::NotAnEmbedding(problem));
        }
        let rows = kind.widened(data);
        if let Some(place) = rows.iter().position(|number| !number.is_finite()) {
            return Err(EmbeddingError::NotAnEmbedding(format!(
                "{name:?} holds values that are not finite: {} at vector {}, column {}",
                rows[place],
                place / width,
                place % width
            )));
        }
        Ok((width, rows))
    }
}

/// # Errors
/// The shape is not that of an embedding.
pub(super) fn rows_and_width(name: &str, shape: &[usize]) -> Result<(usize, usize), EmbeddingError> {
    let (vectors, width) = match *shape {
        [width] => (1, width),
        [vectors, width] => (vectors, width),
        _ => (0, 0),
    };
    if (1..=MOST_VECTORS).contains(&vectors) && (1..=MOST_WIDTH).contains(&width) {
        return Ok((vectors, width));
    }
    Err(EmbeddingError::NotAnEmbedding(format!(
        "{name:?} has shape {shape:?}; an embedding is [width] or [vectors, width] with 1 to {MOST_VECTORS} vectors, each \
         1 to {MOST_WIDTH} wide"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_shapes_are_refused() {
        for shape in
            [&[][..], &[0], &[0, 8], &[1025, 8], &[1, 2, 8], &[1, 1 << 20], &[usize::MAX, usize::MAX]]
        {
            assert!(rows_and_width("x", shape).is_err(), "{shape:?}");
        }
        assert_eq!(rows_and_width("x", &[768]), Ok((1, 768)));
        assert_eq!(rows_and_width("x", &[1024, 8]), Ok((1024, 8)));
    }
}

//! A tensor's bytes as rows of fp32.

use half::f16;

use super::{EmbeddingError, MOST_VECTORS, MOST_WIDTH};

/// Storage type of the numbers, all little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FloatKind {
    F32,
    F16,
    Bf16,
}

impl FloatKind {
    /// Bytes of a number.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

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
        let rows = widened(kind, data);
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

fn widened(kind: FloatKind, data: &[u8]) -> Vec<f32> {
    let halves = || data.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
    match kind {
        FloatKind::F32 => data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        FloatKind::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        FloatKind::Bf16 => halves().map(|bits| f32::from_bits(u32::from(bits) << 16)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_widened_exactly() {
        assert_eq!(widened(FloatKind::F16, &[0x00, 0xc5, 0x01, 0x00]), [-5.0, 2f32.powi(-24)]);
        assert_eq!(widened(FloatKind::Bf16, &[0x80, 0x3f, 0x20, 0xc0]), [1.0, -2.5]);
    }

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

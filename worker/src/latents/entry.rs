//! A posterior as bytes of a file, and as a row of numbers that travels in a ring.

use ringtune_shared::ids::ContentHash;

use super::LatentKey;
use crate::engine::Moments;

/// Magic number of an entry's file.
const MAGIC: &[u8; 16] = b"ringtune-latent2";
const HASH_BYTES: usize = 32;
const SIDE_BYTES: usize = 4;
/// Mean and logarithm of the variance.
const PARTS: usize = 2;

/// Why a file is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Another kind of file, or an older format.
    #[error("it does not begin as an entry does")]
    NoEntry,
    /// Cut, or changed on the disk.
    #[error("its bytes do not have the hash that it says")]
    Damaged,
    /// Intact, but of another key.
    #[error("it is the entry of another picture, or of another shape")]
    AnotherEntry,
}

/// Numbers in the row of a posterior whose latents have `shape`: channels, rows, columns.
pub fn row_length(shape: [usize; 3]) -> usize {
    PARTS * shape.iter().product::<usize>()
}

/// Bytes of a file as [`encode`] writes it.
pub(super) fn file_length(shape: [usize; 3]) -> u64 {
    (MAGIC.len() + 2 * HASH_BYTES + 3 * SIDE_BYTES + row_length(shape) * 4) as u64
}

/// A posterior as a row: the mean, then the log-variance.
pub fn row_of(moments: &Moments) -> Vec<f32> {
    [moments.mean.as_slice(), &moments.logvar].concat()
}

/// The posterior in the first [`row_length`] numbers of a row; none when it is shorter.
pub(crate) fn from_row(row: &[f32], shape: [usize; 3]) -> Option<Moments> {
    let [channels, height, width] = shape;
    let length = row_length(shape) / PARTS;
    let part = |number: usize| row.get(number * length..(number + 1) * length).map(<[f32]>::to_vec);
    Some(Moments { channels, height, width, mean: part(0)?, logvar: part(1)? })
}

/// A file: what it is, the hash of all that follows, the key, the shape, and the row in little-endian fp32.
pub(super) fn encode(key: LatentKey, moments: &Moments) -> Vec<u8> {
    let Moments { channels, height, width, .. } = moments;
    let mut body = key.0.0.to_vec();
    for side in [*channels, *height, *width] {
        body.extend(u32::try_from(side).unwrap_or(u32::MAX).to_le_bytes());
    }
    body.extend(row_of(moments).into_iter().flat_map(f32::to_le_bytes));
    [MAGIC.as_slice(), &ContentHash::of(&body).0, &body].concat()
}

/// Reads what [`encode`] wrote for `key` and `shape`.
pub(super) fn decode(bytes: &[u8], key: LatentKey, shape: [usize; 3]) -> Result<Moments, EntryError> {
    let rest = bytes.strip_prefix(MAGIC.as_slice()).ok_or(EntryError::NoEntry)?;
    let (hash, body) = rest.split_at_checked(HASH_BYTES).ok_or(EntryError::Damaged)?;
    if ContentHash::of(body).0 != *hash {
        return Err(EntryError::Damaged);
    }
    let sides: Vec<u8> =
        shape.into_iter().flat_map(|side| u32::try_from(side).unwrap_or(u32::MAX).to_le_bytes()).collect();
    let numbers = body
        .strip_prefix(key.0.0.as_slice())
        .and_then(|rest| rest.strip_prefix(sides.as_slice()))
        .filter(|numbers| numbers.len() == row_length(shape) * 4)
        .ok_or(EntryError::AnotherEntry)?;
    let row: Vec<f32> = numbers
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect();
    from_row(&row, shape).ok_or(EntryError::AnotherEntry)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::latents) const SHAPE: [usize; 3] = [2, 3, 1];

    pub(in crate::latents) fn posterior(first: f32) -> Moments {
        let row: Vec<f32> = (0..12).map(|number| first + number as f32).collect();
        from_row(&row, SHAPE).unwrap()
    }

    fn key(text: &str) -> LatentKey {
        LatentKey(ContentHash::of(text.as_bytes()))
    }

    #[test]
    fn what_was_written_is_read_to_the_bit() {
        let mut odd = posterior(0.0);
        odd.logvar[5] = f32::from_bits(0x7fc0_0001);
        odd.mean[0] = -0.0;
        let bits = |moments: &Moments| row_of(moments).iter().map(|n| n.to_bits()).collect::<Vec<_>>();
        assert_eq!(encode(key("a"), &odd).len() as u64, file_length(SHAPE));
        let read = decode(&encode(key("a"), &odd), key("a"), SHAPE).unwrap();
        assert_eq!(bits(&read), bits(&odd));
        assert_eq!(row_of(&odd).len(), row_length(SHAPE));
        // A row may be longer: those of smaller pictures are filled up.
        assert_eq!(bits(&from_row(&[row_of(&odd), vec![1.0; 9]].concat(), SHAPE).unwrap()), bits(&odd));
        assert_eq!(from_row(&row_of(&odd)[1..], SHAPE), None);
    }

    #[test]
    fn no_changed_byte_and_no_cut_goes_unseen() {
        let written = encode(key("a"), &posterior(0.5));
        for place in 0..written.len() {
            let mut changed = written.clone();
            changed[place] ^= 0x10;
            assert!(decode(&changed, key("a"), SHAPE).is_err(), "byte {place}");
            assert!(decode(&written[..place], key("a"), SHAPE).is_err(), "cut at {place}");
        }
        assert_eq!(decode(&written, key("b"), SHAPE), Err(EntryError::AnotherEntry));
        assert_eq!(decode(&written, key("a"), [2, 1, 3]), Err(EntryError::AnotherEntry));
        assert_eq!(decode(&written, key("a"), [2, 3, 2]), Err(EntryError::AnotherEntry));
    }
}

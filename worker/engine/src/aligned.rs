//! Numbers that begin on a cache line.

use std::ops::{Deref, DerefMut};

/// Bytes that they are aligned to, as everything is that libtorch allocates: some of its kernels sum in another order on
/// other addresses.
const ALIGNMENT: usize = 64;

/// A fixed number of fp32 values whose first one lies at a multiple of 64 bytes. Handed on by its owner, never copied.
#[derive(Debug, Default)]
pub struct AlignedFloats {
    memory: Vec<f32>,
    /// Values of `memory` in front of the first that is used.
    skipped: usize,
    length: usize,
}

impl AlignedFloats {
    /// `length` zeros. Memory that the system gives as zeros is first touched by whoever writes to it.
    pub fn zeros(length: usize) -> Self {
        let line = ALIGNMENT / size_of::<f32>();
        let memory = vec![0.0; length + line - 1];
        // Whole floats are always enough: a vector of them is aligned to one.
        let skipped = memory.as_ptr().align_offset(ALIGNMENT).min(line - 1);
        Self { memory, skipped, length }
    }

    /// As many values as asked for: in the same memory where it has room for them, in other memory where it has not. What they are
    /// is whatever was there.
    pub fn resized(self, length: usize) -> Self {
        if length <= self.memory.len() - self.skipped { Self { length, ..self } } else { Self::zeros(length) }
    }
}

impl Deref for AlignedFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[self.skipped..self.skipped + self.length]
    }
}

impl DerefMut for AlignedFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.skipped..self.skipped + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_begin_on_a_line_and_stay_there_when_they_are_handed_on() {
        let many: Vec<AlignedFloats> = (0..50).map(AlignedFloats::zeros).collect();
        for (length, mut floats) in many.into_iter().enumerate() {
            assert_eq!((floats.len(), floats.iter().sum::<f32>()), (length, 0.0));
            let place = floats.as_ptr() as usize;
            assert!(place.is_multiple_of(ALIGNMENT));
            floats.fill(1.0);
            let moved = Box::new(floats);
            assert_eq!((moved.as_ptr() as usize, moved.iter().sum::<f32>()), (place, length as f32));
        }
    }

    #[test]
    fn memory_is_kept_for_fewer_and_for_as_many_again() {
        let many = AlignedFloats::zeros(100);
        let place = many.as_ptr();
        for length in [3, 0, 100, 7] {
            let resized = AlignedFloats::zeros(0).resized(length);
            assert_eq!((resized.len(), resized.as_ptr().align_offset(ALIGNMENT)), (length, 0));
        }
        let few = many.resized(3);
        assert_eq!((few.len(), few.as_ptr()), (3, place));
        let many = few.resized(100);
        assert_eq!((many.len(), many.as_ptr()), (100, place));
        let more = many.resized(1000);
        assert_eq!((more.len(), more.as_ptr().align_offset(ALIGNMENT)), (1000, 0));
        assert_eq!(AlignedFloats::default().resized(0).len(), 0);
    }
}

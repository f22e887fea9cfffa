//! Room for what is on its way, used again once that is over: a segment costs no allocation.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Buffers, in the order in which they went and come back.
#[derive(Debug)]
pub struct Pool {
    buffers: VecDeque<BytesMut>,
    /// At most.
    count: usize,
}

impl Pool {
    /// A pool of `count` buffers, allocated on demand.
    pub fn new(count: usize) -> Self {
        Self { buffers: VecDeque::with_capacity(count), count }
    }

    /// A buffer of `bytes`, written by `fill`. Where all buffers are on their way still, another one takes the place of the
    /// oldest.
    pub fn fill(&mut self, bytes: usize, fill: impl FnOnce(&mut BytesMut)) -> Bytes {
        let free = self.buffers.front_mut().is_some_and(|oldest| oldest.try_reclaim(bytes));
        let oldest = if free || self.buffers.len() == self.count { self.buffers.pop_front() } else { None };
        let mut buffer = oldest.filter(|_| free).unwrap_or_else(|| BytesMut::with_capacity(bytes));
        fill(&mut buffer);
        let encoded = buffer.split().freeze();
        self.buffers.push_back(buffer);
        encoded
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame;
    use super::*;
    use crate::checksum::Crc32c;

    impl Pool {
        fn encode(&mut self, numbers: &[f32]) -> Bytes {
            self.fill(numbers.len() * frame::WIDTH, |bytes| frame::encode(numbers, bytes, &mut Crc32c::new()))
        }
    }

    #[test]
    fn what_is_sent_makes_room_for_what_comes_next() {
        let mut pool = Pool::new(2);
        let places = |pool: &mut Pool| {
            let (first, second) = (pool.encode(&[1.0; 100]), pool.encode(&[2.0; 100]));
            [first.as_ptr(), second.as_ptr()]
        };
        let before = places(&mut pool);
        assert_ne!(before[0], before[1]);
        (0..10).for_each(|_| assert_eq!(places(&mut pool), before));
    }

    #[test]
    fn what_is_on_its_way_is_left_alone_however_much_it_is() {
        let mut pool = Pool::new(3);
        let sent: Vec<Bytes> = (0..10).map(|index| pool.encode(&[index as f32; 50])).collect();
        for (index, bytes) in sent.iter().enumerate() {
            assert_eq!(bytes[..4], (index as f32).to_le_bytes());
            assert_eq!(bytes.len(), 200);
        }
        assert_eq!(pool.buffers.len(), 3);
    }

    #[test]
    fn small_ones_do_not_keep_large_ones_from_coming_back() {
        let mut pool = Pool::new(2);
        (0..5).for_each(|_| drop(pool.encode(&[1.0])));
        let places: Vec<_> = (0..6).map(|_| pool.encode(&[1.0; 10_000]).as_ptr()).collect();
        assert_eq!(places[2..4], places[4..6]);
    }
}

//! The bytes of a frame: a connection's, or lent from where they lie. Neither costs an allocation.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

/// Memory of which parts are lent. A part stays as it is until the last of its loans is dropped.
pub trait Lender: Send + Sync {
    /// A part that is lent.
    fn part(&self, number: usize) -> &[u8];

    /// There is one loan more of a part that is lent.
    fn lend_again(&self, number: usize);

    /// There is one less.
    fn take_back(&self, number: usize);
}

/// A part of somebody's memory, until it is dropped.
pub struct Loan {
    lender: Arc<dyn Lender>,
    number: usize,
    length: usize,
}

impl Loan {
    /// The first `length` bytes of a part, which the lender has counted as lent: it is taken back when this is dropped.
    pub fn new(lender: Arc<dyn Lender>, number: usize, length: usize) -> Self {
        Self { lender, number, length }
    }
}

impl Deref for Loan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let part = self.lender.part(self.number);
        part.get(..self.length).unwrap_or(part)
    }
}

impl Clone for Loan {
    fn clone(&self) -> Self {
        self.lender.lend_again(self.number);
        Self { lender: Arc::clone(&self.lender), ..*self }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.lender.take_back(self.number);
    }
}

/// Numbers as they travel.
#[derive(Clone)]
pub enum Payload {
    /// Memory of their own.
    Bytes(Bytes),
    /// Somebody else's.
    Lent(Loan),
}

impl Payload {
    /// Leaves the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        match self {
            Self::Bytes(bytes) => bytes.truncate(length),
            Self::Lent(loan) => loan.length = loan.length.min(length),
        }
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Lent(loan) => loan,
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A part, and its loans.
    struct One([u8; 4], AtomicUsize);

    impl Lender for One {
        fn part(&self, _: usize) -> &[u8] {
            &self.0
        }

        fn lend_again(&self, _: usize) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }

        fn take_back(&self, _: usize) {
            self.1.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_part_is_taken_back_with_its_last_loan() {
        let one = Arc::new(One([1, 2, 3, 4], AtomicUsize::new(1)));
        let loan = |length| Payload::Lent(Loan::new(one.clone(), 0, length));
        let mut first = loan(3);
        let second = first.clone();
        first.truncate(2);
        assert_eq!((&*first, &*second, one.1.load(Ordering::Relaxed)), (&[1, 2][..], &[1, 2, 3][..], 2));
        assert_eq!(second, Payload::from(vec![1, 2, 3]));
        drop(first);
        assert_eq!(one.1.load(Ordering::Relaxed), 1);
        drop(second);
        assert_eq!(one.1.load(Ordering::Relaxed), 0);
        // It is no longer than the part.
        one.lend_again(0);
        assert_eq!(loan(9).len(), 4);
    }
}

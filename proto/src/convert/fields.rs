//! Fields that may be absent, and numbers that must fit.

pub(super) fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// A checked spec's numbers came from `i64` and fit again.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

//! A span: something that took its time.

use std::time::SystemTime;

use ringtune_shared::trace::{SpanId, TraceContext};

/// An attribute's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An id, or a word of ours. Never a user's words.
    Text(String),
    /// A count or a number of something.
    Number(u64),
    /// Seconds, or another measure.
    Fraction(f64),
    /// Yes or no.
    Flag(bool),
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

impl From<f64> for Value {
    fn from(fraction: f64) -> Self {
        Self::Fraction(fraction)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<&'static str> for Value {
    fn from(word: &'static str) -> Self {
        Self::Text(word.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// A span that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Its trace and its own id.
    pub context: TraceContext,
    /// The span that it hangs below. None: it is the first of its trace.
    pub parent: Option<SpanId>,
    /// Name of the operation.
    pub name: &'static str,
    /// When it began.
    pub start: SystemTime,
    /// When it was over.
    pub end: SystemTime,
    /// More about it.
    pub attributes: Vec<(&'static str, Value)>,
    /// It did not do what it was for.
    pub failed: bool,
}

impl Span {
    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push((key, value.into()));
        self
    }
}

//! A point in time, as the core sees it.

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970 began, in UTC. The core never asks for it: it comes with each input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub i64);

impl Time {
    /// This time and `milliseconds` more.
    #[must_use]
    pub fn plus(self, milliseconds: i64) -> Self {
        Self(self.0.saturating_add(milliseconds))
    }
}

//! A worker's share of a machine's cores.

use std::{fmt, str::FromStr};

/// More workers on one machine than anyone wants.
const MOST: u32 = 256;

/// "1/2": the first of two equal parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its number, from 1.
    pub number: u32,
    /// Number of workers.
    pub of: u32,
}

impl Share {
    /// All cores.
    pub const WHOLE: Self = Self { number: 1, of: 1 };
}

/// It is no share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it must be NUMBER/OF, such as 1/2 for the first of two workers on this machine, with OF from 1 to {MOST} and NUMBER \
     from 1 to OF"
)]
pub struct WrongShare;

impl FromStr for Share {
    type Err = WrongShare;

    fn from_str(text: &str) -> Result<Self, WrongShare> {
        let (number, of) = text.split_once('/').ok_or(WrongShare)?;
        let (number, of) = (number.parse().map_err(|_| WrongShare)?, of.parse().map_err(|_| WrongShare)?);
        let right = (1..=MOST).contains(&of) && (1..=of).contains(&number);
        if right { Ok(Self { number, of }) } else { Err(WrongShare) }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

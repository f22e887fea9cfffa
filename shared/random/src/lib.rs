//! Random numbers without a generator's state: each is a pure function of what it is for. Depends on nothing, so that what
//! links libtorch and what does not draw alike.

#![deny(clippy::disallowed_types)]

mod philox;
mod stream;

pub use philox::philox4x32;
pub use stream::{Stream, StreamName};

//! Number and affinity of the computing threads.

use super::{
    done, ringtune_get_threads, ringtune_place_threads, ringtune_set_interop_threads, ringtune_set_threads,
    ringtune_settle_threads,
};
use crate::error::Result;

/// Sets the compute threads of operations started by the calling thread.
pub(crate) fn set_threads(threads: i32) -> Result<()> {
    // SAFETY: plain values.
    done(unsafe { ringtune_set_threads(threads) })
}

/// From here on each compute thread of the calling thread runs on its processor; with none, where it did before.
pub(crate) fn place_threads(processors: &[i32]) -> Result<()> {
    // SAFETY: a live slice, which the shim copies.
    done(unsafe { ringtune_place_threads(processors.as_ptr(), processors.len()) })
}

/// Puts compute threads in their places that were started since.
pub(crate) fn settle_threads() -> Result<()> {
    // SAFETY: no arguments.
    done(unsafe { ringtune_settle_threads() })
}

/// Sets the inter-operation threads; fails after parallel work has begun or when called twice.
pub(crate) fn set_interop_threads(threads: i32) -> Result<()> {
    // SAFETY: plain values.
    done(unsafe { ringtune_set_interop_threads(threads) })
}

/// The compute threads in use.
pub(crate) fn threads() -> usize {
    // SAFETY: no arguments.
    usize::try_from(unsafe { ringtune_get_threads() }).unwrap_or(1)
}

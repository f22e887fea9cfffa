//! The jobs' computation: a chain of hashes. A wrong state, a step left out or done twice, or a sum in another order
//! gives another state from there on.

use ringtune_shared::ids::{ContentHash, JobId};

use crate::chance::mix;

/// The state of a job.
pub(crate) type State = u64;

/// Before the first step.
pub(crate) fn start(job: JobId) -> State {
    mix(job.0.as_u128() as u64 ^ 0x5eed)
}

/// A microbatch's contribution to a step, computed from this state.
pub(crate) fn part(before: State, step: u64, microbatch: usize) -> u64 {
    mix(before ^ mix(step << 32 | microbatch as u64))
}

/// The state after a step: of the one before it, and the parts of all microbatches in this order.
pub(crate) fn after(before: State, step: u64, parts: impl IntoIterator<Item = u64>) -> State {
    let sum = parts.into_iter().fold(step, |sum, part| mix(sum.rotate_left(7).wrapping_add(part)));
    mix(before.wrapping_add(sum))
}

/// The state after so many steps of a job in which nothing goes wrong.
pub(crate) fn right(job: JobId, steps: u64, microbatches: usize) -> State {
    (1..=steps).fold(start(job), |state, step| {
        after(state, step, (0..microbatches).map(|microbatch| part(state, step, microbatch)))
    })
}

/// A state's name.
pub(crate) fn hash(state: State) -> ContentHash {
    let mut bytes = [0; 32];
    for (index, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&mix(state.wrapping_add(index as u64)).to_le_bytes());
    }
    ContentHash(bytes)
}

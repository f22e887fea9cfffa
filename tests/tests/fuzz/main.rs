//! Throws broken input at real daemons while a ring of two computes: they answer, their memory is bounded, and the job
//! does not notice. The crate ringtune-fuzzing (tests/fuzzing) says how they are run for longer.

#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod bytes;
mod calls;
mod pages;
mod rings;
mod sessions;

use ringtune_fuzzing::{Path, seconds};
use ringtune_tests::{Bystander, Launch, Sandbox};
use tokio::runtime::Runtime;

/// What a daemon may take more at any time, whatever it is sent.
const MOST_BYTES: u64 = 96 << 20;
/// For starting and ending, besides the time in which inputs are tried.
const BESIDES: u64 = 2;

/// Tries what `path` makes of the daemons of a ring, which must not notice.
fn beside_a_ring<'a>(path: impl FnOnce(&Runtime, &Bystander<'_>) -> Path<'a>) {
    let (runtime, sandbox) = (Runtime::new().unwrap(), Sandbox::new().unwrap());
    let start = Bystander::start(&sandbox, Launch::coordinator(), seconds() + BESIDES);
    let bystander = runtime.block_on(start).unwrap();
    let before = runtime.block_on(bystander.step()).unwrap();
    let daemons = [None, Some(0), Some(1)].map(|daemon| bystander.process(daemon).unwrap());
    path(&runtime, &bystander).fuzz_others(env!("CARGO_TARGET_TMPDIR"), &daemons);
    let after = runtime.block_on(bystander.step()).unwrap();
    assert!(after > before, "no step was done meanwhile, after step {before}");
    assert_eq!(daemons, [None, Some(0), Some(1)].map(|daemon| bystander.process(daemon).unwrap()));
    runtime.block_on(bystander.unharmed()).unwrap();
}

//! Which instructions kernels of our own use, and which of them in fp32 with AVX-512.

use ringtune_engine::InstructionSet;

use super::{ringtune_instructions, ringtune_limit_instructions, ringtune_use_floats_with_avx512};

/// The best set in use.
pub(crate) fn instruction_set() -> InstructionSet {
    // SAFETY: no arguments.
    let number = usize::try_from(unsafe { ringtune_instructions() }).unwrap_or(0);
    InstructionSet::ALL.get(number).copied().unwrap_or(InstructionSet::Portable)
}

/// From here on kernels use `most` at most.
pub(crate) fn limit_instructions(most: InstructionSet) {
    // Beyond the last there is no more.
    let most = most.min(InstructionSet::Amx);
    // SAFETY: the number of a set.
    unsafe { ringtune_limit_instructions(most as i32) };
}

/// Whether kernels of our own in fp32 are used with AVX-512 wherever there are any, or nowhere.
pub(crate) fn use_floats_with_avx512(all: bool) {
    // SAFETY: a plain value.
    unsafe { ringtune_use_floats_with_avx512(all) };
}

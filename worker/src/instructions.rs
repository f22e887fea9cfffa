//! The most that this process uses of the processor's instructions: `compute.instruction_set`.

use std::path::Path;

use ringtune_shared::daemon::settings::SettingsError;

use crate::{engine::InstructionSet, node::Node};

/// What this machine has.
fn best_here() -> InstructionSet {
    Node::read(Path::new("/")).cpu.instruction_set()
}

/// Why a limit cannot be kept, if it cannot: a limit only lowers.
pub(crate) fn problem(limit: InstructionSet) -> Option<SettingsError> {
    beyond(limit, best_here())
}

fn beyond(limit: InstructionSet, here: InstructionSet) -> Option<SettingsError> {
    let allowed = format!("this processor has {here} at most: give that, what is below, or auto");
    (limit != InstructionSet::Auto && limit > here)
        .then(|| SettingsError::text("compute.instruction_set", limit.name(), &allowed))
}

/// Has this process use `limit` at most, in our own kernels and in libtorch. Called by the first thread before there is another.
///
/// # Errors
/// This machine has less.
pub(crate) fn limit_process(limit: InstructionSet) -> Result<(), SettingsError> {
    let here = best_here();
    if let Some(problem) = beyond(limit, here) {
        return Err(problem);
    }
    limit.limit_process();
    // Where nothing is lowered nothing is set: all is as without a limit.
    for (name, value) in limit.variables().iter().filter(|_| limit < here) {
        // SAFETY: no other thread reads the environment, for there is none. Of libtorch nothing has run yet but its static
        // initialisers, which leave these variables for the first computation.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_only_lowers() {
        let sets = InstructionSet::ALL;
        for here in sets.into_iter().filter(|set| *set != InstructionSet::Auto) {
            for limit in sets {
                let refused = limit > here && limit != InstructionSet::Auto;
                assert_eq!(beyond(limit, here).is_some(), refused, "{limit} on {here}");
            }
        }
        let error = beyond(InstructionSet::Amx, InstructionSet::Avx2).unwrap().to_string();
        assert!(
            error.starts_with("compute.instruction_set: \"amx\" is not allowed;") && error.contains("avx2"),
            "{error}"
        );
    }
}

//! Names of checkpoint files. diffusers' script keeps a folder `checkpoint-500`; here it is one file.

const PREFIX: &str = "checkpoint-";
const SUFFIX: &str = ".safetensors";

/// The file of the state after `step` steps.
pub fn file_name(step: u64) -> String {
    format!("{PREFIX}{step}{SUFFIX}")
}

const RECOVERY_PREFIX: &str = ".recovery-";

/// The checkpoint after `step` steps that a job makes for itself, and that no list of its files has.
pub fn recovery_name(step: u64) -> String {
    format!("{RECOVERY_PREFIX}{step}{SUFFIX}")
}

/// The step of a [`recovery_name`].
pub fn step_of_recovery_name(name: &str) -> Option<u64> {
    let step = name.strip_prefix(RECOVERY_PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()?;
    (recovery_name(step) == name).then_some(step)
}

/// Whether a name is kept for recovery points: none of a user's files may have it.
pub fn is_recovery_name(name: &str) -> bool {
    name.starts_with(RECOVERY_PREFIX)
}

/// The step that a file's name stands for; none if it is not a checkpoint's.
pub fn step_of_name(name: &str) -> Option<u64> {
    let step = step_of_stem(name.strip_suffix(SUFFIX)?)?;
    // One spelling per step: no sign, no leading zero.
    (file_name(step) == name).then_some(step)
}

/// The step of `checkpoint-500`.
pub(super) fn step_of_stem(stem: &str) -> Option<u64> {
    stem.strip_prefix(PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_its_step_belong_together() {
        for step in [0, 1, 500, u64::MAX] {
            assert_eq!(step_of_name(&file_name(step)), Some(step));
            let recovery = recovery_name(step);
            assert!(is_recovery_name(&recovery) && crate::files::safe_file_name(&recovery));
            assert_eq!((step_of_name(&recovery), step_of_recovery_name(&recovery)), (None, Some(step)));
        }
        for other in
            ["checkpoint-05.safetensors", "checkpoint-+5.safetensors", "checkpoint-5", "5.safetensors"]
        {
            assert_eq!(step_of_name(other), None, "{other}");
        }
    }
}

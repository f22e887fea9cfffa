//! `generate` and `doctor`: subcommands of the worker's program, which has libtorch.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use crate::{
    arguments::PassedOnArguments,
    cluster::{WORKER, find_program},
    error::Error,
};

/// Becomes `ringtune-worker generate`.
pub(super) fn generate(arguments: PassedOnArguments) -> Result<(), Error> {
    become_worker("generate", arguments.arguments)
}

/// Becomes `ringtune-worker doctor`, which checks the coordinator of RINGTUNE_COORDINATOR if there is one.
pub(super) fn doctor(arguments: PassedOnArguments) -> Result<(), Error> {
    let coordinator = std::env::var_os("RINGTUNE_COORDINATOR");
    become_worker("doctor", with_coordinator(arguments.arguments, coordinator))
}

/// The worker does not read RINGTUNE_COORDINATOR: it gets a flag, unless it has one already.
fn with_coordinator(mut arguments: Vec<OsString>, coordinator: Option<OsString>) -> Vec<OsString> {
    let given = arguments.iter().any(|argument| argument.to_string_lossy().starts_with("--coordinator"));
    if let Some(url) = coordinator.filter(|url| !given && !url.is_empty()) {
        arguments.push("--coordinator".into());
        arguments.push(url);
    }
    arguments
}

/// Replaces this process; returns only when that fails.
fn become_worker(subcommand: &str, arguments: Vec<OsString>) -> Result<(), Error> {
    let program = find_program(WORKER)?;
    let source = Command::new(&program).arg(subcommand).args(arguments).exec();
    Err(Error::File { doing: "cannot start", path: program, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_does_not_override_a_flag() {
        let url = || Some("http://node:7070".into());
        assert_eq!(with_coordinator(Vec::new(), url()), ["--coordinator", "http://node:7070"]);
        assert_eq!(with_coordinator(vec!["--coordinator=x".into()], url()), ["--coordinator=x"]);
        assert!(with_coordinator(Vec::new(), Some("".into())).is_empty());
    }
}

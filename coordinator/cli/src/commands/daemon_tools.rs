//! `generate`, `pipeline` and `doctor`: subcommands of the worker's program, which has libtorch.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use crate::{
    arguments::PassedOnArguments,
    client::CoordinatorUrl,
    cluster::{WORKER, find_program},
    error::Error,
};

/// Becomes `ringtune-worker generate`.
pub(super) fn generate(arguments: PassedOnArguments) -> Result<(), Error> {
    become_worker("generate", arguments.arguments)
}

/// Becomes `ringtune-worker pipeline`.
pub(super) fn pipeline(arguments: PassedOnArguments) -> Result<(), Error> {
    become_worker("pipeline", arguments.arguments)
}

/// Becomes `ringtune-worker doctor`, which checks the coordinator of RINGTUNE_COORDINATOR if there is one.
pub(super) fn doctor(arguments: PassedOnArguments) -> Result<(), Error> {
    let coordinator = std::env::var("RINGTUNE_COORDINATOR").ok().filter(|url| !url.is_empty());
    become_worker("doctor", with_coordinator(arguments.arguments, coordinator.as_deref())?)
}

/// The worker does not read RINGTUNE_COORDINATOR: it gets a flag, unless it has one already.
fn with_coordinator(mut arguments: Vec<OsString>, coordinator: Option<&str>) -> Result<Vec<OsString>, Error> {
    let given = arguments.iter().any(|argument| argument.to_string_lossy().starts_with("--coordinator"));
    if let Some(url) = coordinator.filter(|_| !given) {
        let url: CoordinatorUrl =
            url.parse().map_err(|error| Error::Usage(format!("RINGTUNE_COORDINATOR: {error}")))?;
        arguments.push("--coordinator".into());
        arguments.push(url.to_string().into());
    }
    Ok(arguments)
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
        let with = |arguments: Vec<OsString>| with_coordinator(arguments, Some("node"));
        assert_eq!(with(Vec::new()).expect("valid"), ["--coordinator", "https://node:7070"]);
        assert_eq!(with(vec!["--coordinator=x".into()]).expect("valid"), ["--coordinator=x"]);
        assert!(with_coordinator(Vec::new(), None).expect("valid").is_empty());
        assert!(with_coordinator(Vec::new(), Some("ftp://node")).is_err());
    }
}

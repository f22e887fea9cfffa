//! `generate`, `generate-text`, `pipeline`, `prepare-text` and `doctor`: subcommands of the worker's program, which has libtorch.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use crate::{
    arguments::PassedOnArguments,
    client::CoordinatorUrl,
    cluster::{WORKER, find_program},
    credentials::{Environment, Places},
    error::Error,
};

/// Becomes `ringtune-worker generate`.
pub(super) fn generate(arguments: PassedOnArguments) -> Result<(), Error> {
    become_worker("generate", arguments.arguments)
}

/// Becomes `ringtune-worker generate-text`.
pub(super) fn generate_text(arguments: PassedOnArguments) -> Result<(), Error> {
    become_worker("generate-text", arguments.arguments)
}

/// Becomes `ringtune-worker pipeline`.
pub(super) fn pipeline(arguments: PassedOnArguments) -> Result<(), Error> {
    become_worker("pipeline", arguments.arguments)
}

/// Becomes `ringtune-worker prepare-text`.
pub(super) fn prepare_text(arguments: PassedOnArguments) -> Result<(), Error> {
    become_worker("prepare-text", arguments.arguments)
}

/// Becomes `ringtune-worker doctor`, which checks the coordinator of RINGTUNE_COORDINATOR or of the last login, if there is
/// one.
pub(super) fn doctor(arguments: PassedOnArguments) -> Result<(), Error> {
    let named = std::env::var("RINGTUNE_COORDINATOR").ok().filter(|url| !url.is_empty());
    become_worker("doctor", with_coordinator(arguments.arguments, named.as_deref(), &Environment::read())?)
}

/// The worker reads neither RINGTUNE_COORDINATOR nor logins: it gets a flag, unless it has one already.
fn with_coordinator(
    mut arguments: Vec<OsString>,
    named: Option<&str>,
    environment: &Environment,
) -> Result<Vec<OsString>, Error> {
    let given = arguments.iter().any(|argument| argument.to_string_lossy().starts_with("--coordinator"));
    if given {
        return Ok(arguments);
    }
    let url: Option<CoordinatorUrl> = match named {
        Some(url) => {
            Some(url.parse().map_err(|error| Error::Usage(format!("RINGTUNE_COORDINATOR: {error}")))?)
        }
        // Without a home there are no logins.
        None => match Places::of(environment) {
            Ok(places) => places.default_coordinator()?,
            Err(_) => None,
        },
    };
    if let Some(url) = url {
        arguments.push("--coordinator".into());
        arguments.push(url.to_string().into());
    }
    Ok(arguments)
}

/// Replaces this process; returns only when that fails. The program is called by this one's name, which its usage line then
/// begins with.
fn become_worker(subcommand: &str, arguments: Vec<OsString>) -> Result<(), Error> {
    let program = find_program(WORKER)?;
    let source = Command::new(&program).arg0("ringtune").arg(subcommand).args(arguments).exec();
    Err(Error::File { doing: "cannot start", path: program, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_does_not_override_a_flag() {
        let nowhere = Environment::default();
        let with = |arguments: Vec<OsString>| with_coordinator(arguments, Some("node"), &nowhere);
        assert_eq!(with(Vec::new()).expect("valid"), ["--coordinator", "https://node:7070"]);
        assert_eq!(with(vec!["--coordinator=x".into()]).expect("valid"), ["--coordinator=x"]);
        assert!(with_coordinator(Vec::new(), None, &nowhere).expect("valid").is_empty());
        assert!(with_coordinator(Vec::new(), Some("ftp://node"), &nowhere).is_err());
    }

    #[test]
    fn the_coordinator_of_the_last_login_is_the_default() {
        let home = tempfile::tempdir().expect("a folder");
        let environment = Environment { home: Some(home.path().into()), ..Environment::default() };
        let places = Places::of(&environment).expect("there is a home");
        assert!(with_coordinator(Vec::new(), None, &environment).expect("valid").is_empty());
        let url = "https://far:7070".parse().expect("a URL");
        std::fs::create_dir_all(places.login(&url)).expect("a folder");
        places.set_default(&url).expect("written");
        let found = with_coordinator(Vec::new(), None, &environment).expect("valid");
        assert_eq!(found, ["--coordinator", "https://far:7070"]);
        let named = with_coordinator(Vec::new(), Some("node"), &environment).expect("valid");
        assert_eq!(named, ["--coordinator", "https://node:7070"]);
    }
}

//! The settings and the files that they name, looked at without starting anything.

use std::time::{Duration, SystemTime};

use ringtune_security::CredentialPaths;
use ringtune_shared::{
    config::{ConfigError, Loaded, Sources, load_checked},
    daemon::check,
};

use crate::{network::authority::Pki, settings::Settings};

/// The settings, each with its place; all that cannot be used are named.
///
/// # Errors
/// See [`ConfigError`].
pub fn settings(sources: Sources) -> Result<Loaded<Settings>, ConfigError> {
    load_checked(sources, of_values)
}

/// As [`settings`], and what can be seen of folders and certificates: all that would keep a coordinator from starting, but
/// for ports that are taken and damage in the state folder. Blocks.
///
/// # Errors
/// See [`ConfigError`].
pub fn settings_and_files(sources: Sources) -> Result<Loaded<Settings>, ConfigError> {
    load_checked(sources, |settings| [of_values(settings), of_files(settings)].concat())
}

fn of_values(settings: &Settings) -> Vec<(String, String)> {
    check::values(&settings.problems(), &settings.log)
}

fn of_files(settings: &Settings) -> Vec<(String, String)> {
    let folder = check::folder("storage.state_dir", &settings.storage.state_dir);
    let mut problems = Vec::from_iter(folder);
    let security = &settings.security;
    if security.brings_certificate() && security.check().is_ok() {
        let paths = CredentialPaths {
            chain: security.certificate.clone(),
            key: security.key.clone(),
            ca: security.ca.clone(),
        };
        let life = Duration::from_secs(settings.authority.certificate_seconds);
        if let Err(error) = Pki::elsewhere(paths, life, SystemTime::now()) {
            problems.push(("security.certificate".to_owned(), error.to_string()));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        std::fs::write(&file, text).unwrap();
        let sources = Sources { file: Some(file), ..Sources::default() };
        match settings_and_files(sources) {
            Ok(_) => Vec::new(),
            Err(ConfigError::Invalid(problems)) => problems
                .iter()
                .map(|problem| {
                    assert!(problem.place.contains("c.toml, line "), "{problem:?}");
                    assert!(problem.problem.contains("allowed") || problem.setting != "x", "{problem:?}");
                    problem.setting.clone()
                })
                .collect(),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once_with_its_line() {
        let text = "\
            [grpc]\nlisten = 'nowhere'\nlistn = 1\n\
            [limits]\nqueued_jobs = 0\nuploads = 'many'\nowner_files = 0\n\
            [session]\ntimeout_seconds = 0.5\n\
            [storage]\nstate_dir = '/dev/null/state'\n\
            [log]\nfilter = 'a=b=c'\n\
            [security]\ncertificate = '/none.pem'\nkey = '/none.key'\nca = '/none.ca'\n";
        let mut found = problems(text);
        found.sort();
        let expected = [
            "grpc.listen",
            "grpc.listn",
            "limits.owner_files",
            "limits.queued_jobs",
            "limits.uploads",
            "log.filter",
            "security.certificate",
            "session.timeout_seconds",
            "storage.state_dir",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_can_be_used_is_not_complained_about() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("[storage]\nstate_dir = '{}/new'\n", folder.path().display());
        assert_eq!(problems(&text), Vec::<String>::new());
    }
}

//! The settings and the files that they name, looked at without starting anything.

use ringtune_security::Credentials;
use ringtune_shared::{
    config::{ConfigError, Loaded, Sources, load_checked},
    daemon::check,
};

use crate::{instructions, membership::worker_of, settings::Settings};

/// The settings, each with its place; all that cannot be used are named.
///
/// # Errors
/// See [`ConfigError`].
pub fn settings(sources: Sources) -> Result<Loaded<Settings>, ConfigError> {
    load_checked(sources, of_values)
}

/// As [`settings`], and what can be seen of folders and certificates. Blocks.
///
/// # Errors
/// See [`ConfigError`].
pub fn settings_and_files(sources: Sources) -> Result<Loaded<Settings>, ConfigError> {
    load_checked(sources, |settings| [of_values(settings), of_files(settings)].concat())
}

fn of_values(settings: &Settings) -> Vec<(String, String)> {
    let mut problems = settings.problems();
    problems.extend(instructions::problem(settings.compute.instruction_set));
    check::values(&problems, &settings.log)
}

fn of_files(settings: &Settings) -> Vec<(String, String)> {
    let folders =
        [("storage.state_dir", &settings.storage.state_dir), ("model_cache.dir", &settings.model_cache.dir)];
    let mut problems: Vec<_> =
        folders.into_iter().filter_map(|(key, folder)| check::folder(key, folder)).collect();
    if let Some(paths) = settings.brought_credentials().filter(|_| settings.security.check().is_ok()) {
        let read = Credentials::read(&paths).map_err(|error| error.to_string());
        if let Err(problem) = read.and_then(|credentials| worker_of(&credentials)) {
            problems.push(("security.certificate".to_owned(), problem));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_wrong_is_said_at_once_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("w.toml");
        let text = "\
            [coordinator]\nurl = 'ftp://h'\n\
            [ring]\npeer_timeout_seconds = 0\nintreface = 'eth0'\n\
            [access]\nmodel_roots = ['relative']\ndata_roots = ['../x']\n\
            [model_cache]\ndir = '/dev/null/models'\n\
            [compute]\nthreads = -1\n\
            [security]\ncertificate = '/none.pem'\nkey = '/none.key'\nca = '/none.ca'\n";
        std::fs::write(&file, text).unwrap();
        let state = folder.path().to_string_lossy().into_owned();
        let sources =
            Sources { file: Some(file), overrides: vec![("storage.state_dir", state)], ..Sources::default() };
        let Err(ConfigError::Invalid(problems)) = settings_and_files(sources) else { panic!("accepted") };
        let mut found: Vec<&str> = problems.iter().map(|problem| problem.setting.as_str()).collect();
        found.sort_unstable();
        let expected = [
            "access.data_roots",
            "access.model_roots",
            "compute.threads",
            "coordinator.url",
            "model_cache.dir",
            "ring.intreface",
            "ring.peer_timeout_seconds",
            "security.certificate",
        ];
        assert_eq!(found, expected);
        assert!(problems.iter().all(|problem| problem.place.contains("w.toml, line ")), "{problems:?}");
        let unknown = problems.iter().find(|problem| problem.setting == "ring.intreface").unwrap();
        assert!(unknown.problem.contains("did you mean \"ring.interface\"?"), "{unknown}");
    }
}

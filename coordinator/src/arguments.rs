//! The coordinator's command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;
use ringtune_shared::{config::Sources, daemon::logging::LogFormat};

/// Keeps jobs, hands ranks to workers, and serves the API.
///
/// Settings come from the defaults, then the --config file, then the environment (RINGTUNE__SECTION__KEY, as in
/// RINGTUNE__GRPC__LISTEN), then these flags.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "ringtune-coordinator",
    version,
    after_help = "Examples:\n  \
        On this machine alone:\n    \
        ringtune-coordinator --state-dir ~/ringtune\n  \
        For workers on a trusted network (nothing is encrypted or authenticated yet):\n    \
        ringtune-coordinator --listen 0.0.0.0:7070 --http-listen 0.0.0.0:7071 --insecure\n\n\
        Then, on every node: ringtune-worker --coordinator http://THIS-HOST:7070\n\
        SIGTERM and Ctrl-C end it within 10 seconds; a second signal at once. Jobs go on where they were after a \
        restart."
)]
pub struct Arguments {
    /// Settings file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder for jobs, history and artifacts [default: /var/lib/ringtune]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Where clients and workers call; port 0: any free one [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Where /metrics, /healthz and /readyz are [default: 127.0.0.1:7071]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http_listen: Option<SocketAddr>,
    /// How log lines look on stderr [default: human on a terminal, JSON otherwise]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Listen beyond loopback, although nothing is encrypted or authenticated yet
    #[arg(long)]
    pub insecure: bool,
    /// End when stdin ends
    #[arg(long, hide = true)]
    pub lifeline: bool,
    /// Print one JSON line on stdout once listening
    #[arg(long, hide = true)]
    pub announce: bool,
    /// Take a free port where the given one is taken
    #[arg(long, hide = true)]
    pub free_ports: bool,
}

impl Arguments {
    /// Where the settings come from, these flags last.
    pub fn sources(&self, environment: Vec<(String, String)>) -> Sources {
        let given = [
            (
                "storage.state_dir",
                self.state_dir.as_ref().map(|folder| folder.to_string_lossy().into_owned()),
            ),
            ("grpc.listen", self.listen.map(|address| address.to_string())),
            ("http.listen", self.http_listen.map(|address| address.to_string())),
            ("log.format", self.log_format.map(|format| format.as_str().to_owned())),
            ("security.insecure", self.insecure.then(|| "true".to_owned())),
        ];
        let overrides = given.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        Sources { file: self.config.clone(), environment, overrides }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn parse(arguments: &[&str]) -> Arguments {
        Arguments::parse_from([&["ringtune-coordinator"], arguments].concat())
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        std::fs::write(&file, "[grpc]\nlisten = '127.0.0.1:1'\n[http]\nlisten = '127.0.0.1:2'\n").unwrap();
        let environment = vec![("RINGTUNE__HTTP__LISTEN".to_owned(), "127.0.0.1:3".to_owned())];
        let arguments = parse(&["--config", file.to_str().unwrap(), "--state-dir", "/tmp/x y"]);
        let settings: Settings = ringtune_shared::config::load(arguments.sources(environment)).unwrap();
        assert_eq!(settings.grpc.listen.port(), 1);
        assert_eq!(settings.http.listen.port(), 3);
        assert_eq!(settings.storage.state_dir, PathBuf::from("/tmp/x y"));
    }

    #[test]
    fn unknown_settings_are_refused() {
        let environment = vec![("RINGTUNE__GRPC__LISTN".to_owned(), "127.0.0.1:3".to_owned())];
        let loaded = ringtune_shared::config::load::<Settings>(parse(&[]).sources(environment));
        assert!(loaded.is_err_and(|error| error.to_string().contains("listn")));
    }
}

//! The coordinator's command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ringtune_shared::{
    config::Sources,
    daemon::arguments::{CommonArguments, given},
    documents::{CompletionArguments, DocumentArguments},
};

/// Keeps jobs, hands ranks to workers, and serves the API.
///
/// Settings come from the defaults, then the --config file, then the environment (RINGTUNE__SECTION__KEY, as in
/// RINGTUNE__GRPC__LISTEN), then these flags.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "ringtune-coordinator",
    version,
    after_help = "\
Examples:
  On this machine alone:
    ringtune-coordinator --state-dir ~/ringtune
  For a network (TLS, with a certificate authority of its own in the state folder):
    ringtune-coordinator --state-dir ~/ringtune --listen 0.0.0.0:7070 \\
      --http-listen 0.0.0.0:7071
    ringtune token create --role worker --ttl 1h \\
      --coordinator https://localhost:7070 --credentials ~/ringtune/admin
  Then, on every node:
    ringtune-worker --state-dir ~/worker --join TOKEN \\
      --coordinator https://THIS-HOST:7070 --listen 0.0.0.0:7080

  Would it start with these settings?
    ringtune-coordinator config check --config /etc/ringtune/coordinator.toml

  Keep a copy of all that it has, while it runs:
    ringtune-coordinator backup --state-dir ~/ringtune --to /mnt/backup/monday

SIGTERM and Ctrl-C end it within 10 seconds; a second signal at once. Jobs go on where they were
after a restart. SIGHUP has it read its settings again.",
    mut_arg("state_dir", |flag| flag.help("Folder for jobs, history and artifacts [default: /var/lib/ringtune]")),
    mut_arg("listen", |flag| flag.help(
        "Where clients and workers call; port 0: any free one [default: 127.0.0.1:7070]"
    )),
    mut_arg("http_listen", |flag| flag.help(
        "Where the page, its API, /metrics, /healthz and /readyz are [default: 127.0.0.1:7071]"
    ))
)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// What to do instead of running
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The flags of every daemon
    #[command(flatten)]
    pub common: CommonArguments,
}

/// What the program does besides running.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Copy all that a coordinator keeps (jobs, history, files) into a folder, also while it runs
    Backup(BackupArguments),
    /// Put a backup into a new state folder, for a coordinator to start on
    Restore(RestoreArguments),
    /// Go on with the parts that a state folder has, where a start refuses that
    #[command(
        name = "adopt-contents",
        after_help = "For when the right database, files or authority are lost for good. The files stay:\n\
        what no job of the database wants goes into the trash at the next start, and for good after\n\
        storage.trash_days. Where the certificate authority is lost, the next start makes a new one.\n\
        Example: ringtune-coordinator adopt-contents --state-dir /var/lib/ringtune"
    )]
    AdoptContents(StateArguments),
    /// Look at the settings without starting anything
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Write the man pages into a folder
    #[command(hide = true)]
    Man(DocumentArguments),
    /// Print what a shell needs to complete this command line
    #[command(hide = true)]
    Completions(CompletionArguments),
}

/// Of `config`.
#[derive(Subcommand, Clone, Debug)]
pub enum ConfigCommand {
    /// Say whether a coordinator would start with these settings and flags, or all that is wrong with them
    #[command(
        after_help = "Example: ringtune-coordinator config check --config /etc/ringtune/coordinator.toml\n\
        Exit codes: 0 they can be used, 2 they cannot."
    )]
    Check(CommonArguments),
}

/// Of `backup`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Nothing has to be stopped: the copy is of one moment. Files are checked against their\n\
    hashes as they are copied.\nExample: ringtune-coordinator backup --to /mnt/backup/monday"
)]
pub struct BackupArguments {
    /// A new or an empty folder
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Where the coordinator keeps its state
    #[command(flatten)]
    pub state: StateArguments,
}

/// Of `restore`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Everything is checked before the folder becomes a coordinator's; after an error it is\n\
    as empty as before.\nExample:\n  \
    ringtune-coordinator restore --from /mnt/backup/monday --state-dir /var/lib/ringtune"
)]
pub struct RestoreArguments {
    /// A folder that `backup` made
    #[arg(long, value_name = "DIR")]
    pub from: PathBuf,
    /// Where the coordinator is to keep its state: a new or an empty folder
    #[command(flatten)]
    pub state: StateArguments,
}

/// Which state folder.
#[derive(Args, Clone, Debug, Default)]
pub struct StateArguments {
    /// Settings file (TOML), for its storage.state_dir
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The coordinator's state folder [default: that of the settings, /var/lib/ringtune]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

impl StateArguments {
    /// Where the settings come from that name the folder.
    pub fn sources(&self, environment: Vec<(String, String)>) -> Sources {
        let folder = self.state_dir.as_ref().map(|folder| folder.to_string_lossy().into_owned());
        let overrides = given([("storage.state_dir", folder)]);
        Sources { file: self.config.clone(), environment, overrides }
    }
}

/// Where the settings come from, these flags last.
pub fn sources(flags: &CommonArguments, environment: Vec<(String, String)>) -> Sources {
    Sources { file: flags.config.clone(), environment, overrides: flags.overrides() }
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
        let settings: Settings =
            ringtune_shared::config::load(sources(&arguments.common, environment)).unwrap();
        assert_eq!(settings.grpc.listen.port(), 1);
        assert_eq!(settings.http.listen.port(), 3);
        assert_eq!(settings.storage.state_dir, PathBuf::from("/tmp/x y"));
    }

    #[test]
    fn examples_keep_their_lines() {
        let command = <Arguments as clap::CommandFactory>::command();
        assert_eq!(ringtune_shared::documents::long_lines(&command), Vec::<String>::new());
    }

    #[test]
    fn names_are_a_list() {
        let environment = vec![("RINGTUNE__AUTHORITY__NAMES".to_owned(), "a.example,10.0.0.7".to_owned())];
        let settings: Settings =
            ringtune_shared::config::load(sources(&parse(&[]).common, environment)).unwrap();
        assert_eq!(settings.authority.names, ["a.example", "10.0.0.7"]);
    }

    #[test]
    fn unknown_settings_are_refused() {
        let environment = vec![("RINGTUNE__GRPC__LISTN".to_owned(), "127.0.0.1:3".to_owned())];
        let loaded = ringtune_shared::config::load::<Settings>(sources(&parse(&[]).common, environment));
        assert!(loaded.is_err_and(|error| error.to_string().contains("listn")));
    }
}

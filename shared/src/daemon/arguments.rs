//! Flags of both daemons. A daemon flattens them into its own and says what its defaults are:
//! `#[command(mut_arg("listen", |flag| flag.help("…")))]`.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf};

use clap::{Args, Command, Parser};

use super::{listen::Launch, logging::LogFormat};

/// Flags that every daemon has. Those that set a setting override every other source.
#[derive(Args, Clone, Debug, Default)]
pub struct CommonArguments {
    /// Settings file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder for what the daemon keeps; one daemon per folder
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Where others call; port 0: any free one
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    pub listen: Option<SocketAddr>,
    /// Where metrics and health are read; port 0: any free one
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    pub http_listen: Option<SocketAddr>,
    /// For test networks: encrypt nothing, ask nobody who they are, let everybody do everything
    #[arg(long)]
    pub insecure: bool,
    /// How log lines look on stderr [default: auto, which is human on a terminal and json otherwise]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Print the settings in effect (TOML), each with where it was set, and end
    #[arg(long)]
    pub print_config: bool,
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

impl CommonArguments {
    /// The settings that were given, by their full names, for [`crate::config::Sources::overrides`].
    pub fn overrides(&self) -> Vec<(&'static str, String)> {
        given([
            (
                "storage.state_dir",
                self.state_dir.as_ref().map(|folder| folder.to_string_lossy().into_owned()),
            ),
            ("grpc.listen", self.listen.map(|address| address.to_string())),
            ("http.listen", self.http_listen.map(|address| address.to_string())),
            ("security.insecure", self.insecure.then(|| "true".to_owned())),
            ("log.format", self.log_format.map(|format| format.as_str().to_owned())),
        ])
    }

    /// How the daemon is started.
    pub fn launch(&self) -> Launch {
        Launch { free_ports: self.free_ports, announce: self.announce, ..Launch::default() }
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "allowed: an IP address and a port, such as 0.0.0.0:7070; no host names".to_owned())
}

/// The process's command line, read so that flags may stand before a subcommand too: a daemon is started with them, and who wants a
/// subcommand writes it at the end of the line that starts the daemon. Ends the process where it cannot be read.
pub fn parse<T: Parser>() -> T {
    T::parse_from(flags_behind(&T::command(), std::env::args_os().collect()))
}

/// Moves a subcommand's flags that stand before it behind it.
fn flags_behind(command: &Command, line: Vec<OsString>) -> Vec<OsString> {
    let mut words = line.into_iter();
    let mut ordered: Vec<OsString> = words.next().into_iter().collect();
    let mut flags: Vec<OsString> = Vec::new();
    let mut rest: Vec<OsString> = words.collect();
    // 1. Up to the first word that is no flag, nor a flag's value.
    let mut at = 0;
    while let Some(word) = rest.get(at).and_then(|word| word.to_str())
        && let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty())
    {
        let takes_value = |name: &str| {
            let found = command.get_arguments().find(|argument| argument.get_long() == Some(name));
            found.is_some_and(|argument| argument.get_action().takes_values())
        };
        at += if !flag.contains('=') && takes_value(flag) { 2 } else { 1 };
    }
    // 2. What is a subcommand there, and of that.
    let mut inner = command;
    let mut depth = 0;
    while let Some(found) =
        rest.get(at + depth).and_then(|word| word.to_str()).and_then(|word| inner.find_subcommand(word))
    {
        (inner, depth) = (found, depth + 1);
    }
    if depth > 0 {
        flags.extend(rest.drain(..at));
        ordered.extend(rest.drain(..depth));
    }
    ordered.extend(flags);
    ordered.extend(rest);
    ordered
}

/// The settings of a list that have a value.
pub fn given<const N: usize>(all: [(&'static str, Option<String>); N]) -> Vec<(&'static str, String)> {
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[derive(Parser)]
    #[command(mut_arg("listen", |flag| flag.help("Where neighbours connect")))]
    struct Daemon {
        #[command(flatten)]
        common: CommonArguments,
    }

    #[test]
    fn every_flag_reaches_its_setting() {
        let line = "daemon --config /c.toml --state-dir /s --listen 127.0.0.1:5 --http-listen [::1]:6 --insecure \
            --log-format json --lifeline --announce";
        let common = Daemon::try_parse_from(line.split_whitespace()).unwrap().common;
        let overrides = [
            ("storage.state_dir", "/s"),
            ("grpc.listen", "127.0.0.1:5"),
            ("http.listen", "[::1]:6"),
            ("security.insecure", "true"),
            ("log.format", "json"),
        ];
        assert_eq!(common.overrides(), overrides.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(common.config, Some(PathBuf::from("/c.toml")));
        assert!(common.lifeline);
        let launch = common.launch();
        assert!(launch.announce && !launch.free_ports);
        assert!(CommonArguments::default().overrides().is_empty());
    }

    #[test]
    fn flags_may_stand_before_a_subcommand() {
        let command = Daemon::command()
            .subcommand(Command::new("backup"))
            .subcommand(Command::new("config").subcommand(Command::new("check")));
        for (given, expected) in [
            ("d --state-dir /s backup --to /b", "d backup --state-dir /s --to /b"),
            ("d --state-dir=/s --insecure backup", "d backup --state-dir=/s --insecure"),
            (
                "d --config /c --lifeline config check --insecure",
                "d config check --config /c --lifeline --insecure",
            ),
            ("d backup --state-dir /s", "d backup --state-dir /s"),
            ("d --state-dir backup --insecure", "d --state-dir backup --insecure"),
            ("d --state-dir backup backup", "d backup --state-dir backup"),
            ("d --what backup", "d backup --what"),
            ("d --state-dir", "d --state-dir"),
            ("d -- backup", "d -- backup"),
            ("d", "d"),
        ] {
            let line = given.split(' ').map(OsString::from).collect();
            let ordered = flags_behind(&command, line);
            assert_eq!(ordered.join(" ".as_ref()).to_string_lossy(), expected, "{given}");
        }
    }

    #[test]
    fn host_names_are_no_addresses() {
        for flag in ["--listen", "--http-listen"] {
            for wrong in ["localhost:7070", "7070", "0.0.0.0"] {
                let error =
                    Daemon::try_parse_from(["daemon", flag, wrong]).map(|_| ()).unwrap_err().to_string();
                assert!(
                    error.contains(flag) && error.contains("such as 0.0.0.0:7070; no host names"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn a_daemon_says_its_own_defaults() {
        let help = Daemon::command().render_help().to_string();
        assert!(help.contains("Where neighbours connect") && !help.contains("Where others call"), "{help}");
        assert!(!help.contains("--free-ports"), "{help}");
    }
}

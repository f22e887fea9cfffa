//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ringtune_security::JoinToken;
use ringtune_shared::{
    config::{ConfigError, Sources, process_environment},
    daemon::arguments::{CommonArguments, given},
    documents::{CompletionArguments, DocumentArguments},
};

use crate::{
    bench::BenchCommand,
    doctor::DoctorArguments,
    generate::GenerateArguments,
    generate_text::GenerateTextArguments,
    membership::{TokenText, TokenTextError, token},
    pipeline::PipelineArguments,
    prepare_text::PrepareTextArguments,
    settings::MOST_IDLE_SECONDS,
};

pub use ringtune_shared::daemon::arguments::parse;

/// Ringtune's worker: one on every machine that is to compute. It dials the coordinator, takes ranks of jobs and
/// exchanges gradients with the other workers.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "ringtune-worker",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Settings come from the defaults, then --config FILE (TOML), then the environment\n\
        (RINGTUNE__SECTION__KEY), then flags.\n\nExamples:\n  \
        On the coordinator's own machine:\n    ringtune-worker --state-dir ~/worker\n  \
        On another machine, for the first time (the token is from: ringtune token create --role worker):\n    \
        ringtune-worker --join TOKEN --coordinator https://10.0.0.1:7070 --listen 0.0.0.0:7080\n  \
        And from then on:\n    \
        ringtune-worker --coordinator https://10.0.0.1:7070 --listen 0.0.0.0:7080\n  \
        Would it start with these settings?\n    \
        ringtune-worker config check --config /etc/ringtune/worker.toml\n  \
        Is this machine fit?\n    ringtune-worker doctor --coordinator https://10.0.0.1:7070\n\n\
        SIGTERM, SIGUSR1 and Ctrl-C end it: its ring goes on without it after a step, within 30 seconds\n\
        (shutdown.grace_seconds); a second signal ends it at once, but for a SIGTERM behind a SIGUSR1.\n\
        SIGHUP has it read its settings again.\n\n\
        Exit codes: 0 ended as asked, 1 failed, 2 wrong usage or settings, 3 the engine hangs."
)]
pub struct Arguments {
    /// Something else than the daemon
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The daemon's flags
    #[command(flatten)]
    pub daemon: DaemonArguments,
}

/// What else this binary does.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Draw pictures with a model and learned embeddings
    Generate(Box<GenerateArguments>),
    /// Continue a text with a language model
    GenerateText(Box<GenerateTextArguments>),
    /// Make a folder that diffusers loads: a model with learned words or a trained UNet in it
    Pipeline(PipelineArguments),
    /// Make files of tokens, to train on, from files of text
    PrepareText(Box<PrepareTextArguments>),
    /// Say whether this machine is fit to be a worker
    Doctor(DoctorArguments),
    /// Measure what this machine computes
    #[command(subcommand)]
    Bench(BenchCommand),
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
    /// Say whether a worker would start with these settings and flags, or all that is wrong with them
    #[command(after_help = "Example: ringtune-worker config check --config /etc/ringtune/worker.toml\n\
        Exit codes: 0 they can be used, 2 they cannot.")]
    Check(Box<DaemonArguments>),
}

/// Flags of the daemon. Those that set a setting override every other source.
#[derive(Args, Clone, Debug, Default)]
#[command(
    mut_arg("state_dir", |flag| flag.help(
        "The worker's identity and cache; one worker a folder [default: /var/lib/ringtune-worker]"
    )),
    mut_arg("listen", |flag| flag.help(
        "Where ring neighbours connect [default: 127.0.0.1:7080; port 0: any free one]"
    )),
    mut_arg("http_listen", |flag| flag.help(
        "Where metrics and health are read [default: 127.0.0.1:7081; port 0: any free one]"
    ))
)]
pub struct DaemonArguments {
    /// The coordinator's gRPC port [default: http://127.0.0.1:7070]
    #[arg(long, value_name = "URL")]
    pub coordinator: Option<String>,
    /// The flags of every daemon
    #[command(flatten)]
    pub common: CommonArguments,
    /// What ring neighbours dial [default: the local address of the route to the coordinator]
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "interface")]
    pub advertise_address: Option<String>,
    /// Let ring neighbours dial this network interface's address
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// A label that jobs may ask for, such as pool=blue; may be given several times [default: none]
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// Compute threads of a rank when its job leaves it open [default: one a physical core]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_threads)]
    pub threads: Option<usize>,
    /// Compute on one of several equal parts of this machine's cores, such as 1/2 for the first of two workers [default: 1/1]
    #[arg(long, value_name = "NUMBER/OF")]
    pub share: Option<String>,
    /// End after so many seconds without a rank, so that whoever lent the machine has it back [default: never]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = parse_idle)]
    pub leave_when_idle: Option<u64>,
    /// Let jobs write their debug.trace_dir on this machine
    #[arg(long)]
    pub allow_trace_dir: bool,
    /// Join the coordinator's cluster with this token, once; also RINGTUNE_JOIN. It is gone from the list of processes as
    /// soon as the program runs
    #[arg(long, value_name = "TOKEN", conflicts_with = "join_file")]
    pub join: Option<TokenText>,
    /// The same with the token in a file; - for stdin. An empty file has no token
    #[arg(long, value_name = "FILE")]
    pub join_file: Option<PathBuf>,
    /// Which log lines there are, such as info,ringtune_worker=debug [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log_filter: Option<String>,
}

/// As `compute.threads` allows them.
fn parse_threads(text: &str) -> Result<usize, String> {
    let threads = text.parse::<usize>().ok().filter(|threads| *threads <= 4096);
    threads.ok_or_else(|| "allowed: 0 to 4096".to_owned())
}

/// As `shutdown.idle_seconds` allows them.
fn parse_idle(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=MOST_IDLE_SECONDS).contains(seconds));
    seconds.ok_or_else(|| format!("allowed: 1 to {MOST_IDLE_SECONDS}"))
}

impl DaemonArguments {
    /// Sources of the settings.
    ///
    /// # Errors
    /// The environment's.
    pub fn sources(&self) -> Result<Sources, ConfigError> {
        Ok(Sources {
            file: self.common.config.clone(),
            environment: process_environment()?,
            overrides: self.overrides(),
        })
    }

    /// Takes a join token out of everybody's sight, for which the program may begin again: call it before anything else.
    ///
    /// # Errors
    /// It cannot be hidden.
    pub fn hide_token(&self) -> Result<(), TokenTextError> {
        token::hide(self.join.as_ref(), self.join_file.is_some())
    }

    /// The join token, if there is one. An empty file has none: whoever starts the worker always the same way empties it once
    /// it has joined. Blocks.
    ///
    /// # Errors
    /// Its file cannot be read, or it is not a worker's token.
    pub fn token(&self) -> Result<Option<JoinToken>, TokenTextError> {
        let Some(file) = &self.join_file else { return Ok(None) };
        let text = token::read(file, self.common.lifeline)?;
        if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
    }

    fn overrides(&self) -> Vec<(&'static str, String)> {
        let mut overrides = self.common.overrides();
        overrides.extend(given([
            ("coordinator.url", self.coordinator.clone()),
            ("ring.advertise_address", self.advertise_address.clone()),
            ("ring.interface", self.interface.clone()),
            ("worker.labels", (!self.labels.is_empty()).then(|| self.labels.join(","))),
            ("compute.threads", self.threads.map(|threads| threads.to_string())),
            ("compute.share", self.share.clone()),
            ("shutdown.idle_seconds", self.leave_when_idle.map(|seconds| seconds.to_string())),
            ("debug.allow_trace_dir", self.allow_trace_dir.then(|| "true".to_owned())),
            ("log.filter", self.log_filter.clone()),
        ]));
        overrides
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use ringtune_shared::{config::load, daemon::logging::LogFormat};

    use super::*;
    use crate::{node::Share, settings::Settings};

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn examples_keep_their_lines() {
        // clap breaks what is longer than 100, in the middle of commands too.
        assert_eq!(ringtune_shared::documents::long_lines(&Arguments::command()), Vec::<String>::new());
    }

    #[test]
    fn what_is_not_allowed_is_told_what_is() {
        for (line, says) in [
            ("--threads -2", "allowed: 0 to 4096"),
            ("--threads 4097", "allowed: 0 to 4096"),
            ("--leave-when-idle 0", "allowed: 1 to 31536000"),
            ("generate --model m --prompt a -o a.png --threads -2", "-2 is not in 1..=1024"),
            ("generate --model m --prompt a -o a.png --count -2", "-2 is not in 1..=1000"),
            ("generate-text m --num-samples -2", "-2 is not in 1..=1000000"),
            ("prepare-text a --tokenizer t -o b --threads -2", "-2 is not in 1..=1024"),
            ("doctor a.toml --threads -2", "-2 is not in 1..=4096"),
            ("doctor a.toml --set seed", "\"seed\": allowed: KEY=VALUE, as in train.seed=7"),
        ] {
            let words = ["ringtune-worker"].into_iter().chain(line.split(' '));
            let text = Arguments::try_parse_from(words).expect_err(line).to_string();
            assert!(text.contains(says), "{line}: {text}");
        }
    }

    #[test]
    fn every_flag_reaches_its_setting() {
        let line = "ringtune-worker --coordinator http://h:1 --state-dir /s --listen 127.0.0.1:5 \
            --http-listen 127.0.0.1:6 --interface eth9 --threads 3 --share 2/3 --leave-when-idle 9 --allow-trace-dir --insecure --log-format json \
            --log-filter warn";
        let arguments = Arguments::try_parse_from(line.split_whitespace()).unwrap();
        let overrides = arguments.daemon.overrides();
        let settings: Settings = load(Sources { overrides, ..Sources::default() }).unwrap();
        assert_eq!(settings.coordinator.url, "http://h:1");
        assert_eq!(settings.storage.state_dir, PathBuf::from("/s"));
        assert_eq!((settings.grpc.listen.port(), settings.http.listen.port()), (5, 6));
        assert_eq!((settings.ring.interface.as_str(), settings.compute.threads), ("eth9", 3));
        assert_eq!(settings.compute.share(), Share { number: 2, of: 3 });
        assert_eq!(settings.shutdown.idle_seconds, 9);
        assert!(settings.debug.allow_trace_dir && settings.security.insecure);
        assert_eq!((settings.log.format, settings.log.filter.as_str()), (LogFormat::Json, "warn"));
    }

    #[test]
    fn a_token_is_shown_nowhere_and_is_given_in_one_way() {
        let parse = |line: &str| Arguments::try_parse_from(line.split_whitespace());
        let given = parse("ringtune-worker --join rtj1.secret").unwrap();
        assert!(!format!("{given:?}").contains("secret"));
        let both = parse("ringtune-worker --join rtj1.secret --join-file /f").unwrap_err().to_string();
        assert!(both.contains("--join-file") && !both.contains("secret"), "{both}");
        let settings: Settings =
            load(Sources { overrides: given.daemon.overrides(), ..Sources::default() }).unwrap();
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn without_flags_the_defaults_stand() {
        assert!(DaemonArguments::default().overrides().is_empty());
    }
}

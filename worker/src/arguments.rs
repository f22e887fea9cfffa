//! The command line.

use clap::{Args, Parser, Subcommand};
use ringtune_shared::{
    config::{ConfigError, Sources, load, process_environment},
    daemon::arguments::{CommonArguments, given},
};

use crate::{
    doctor::DoctorArguments, generate::GenerateArguments, pipeline::PipelineArguments, settings::Settings,
};

/// Ringtune's worker: one on every machine that is to compute. It dials the coordinator, takes ranks of jobs and
/// exchanges gradients with the other workers.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "ringtune-worker",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Settings come from the defaults, then --config FILE (TOML), then the environment \
        (RINGTUNE__SECTION__KEY), then flags.\n\nExamples:\n  \
        On the coordinator's own machine:\n    ringtune-worker --state-dir ~/worker\n  \
        On another machine of a trusted network:\n    \
        ringtune-worker --coordinator http://10.0.0.1:7070 --listen 0.0.0.0:7080 --insecure\n  \
        Is this machine fit?\n    ringtune-worker doctor --coordinator http://10.0.0.1:7070\n\n\
        Exit codes: 0 ended as asked, 1 failed, 2 wrong usage or settings."
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
    /// Make a folder that diffusers loads: a model with learned words in it
    Pipeline(PipelineArguments),
    /// Say whether this machine is fit to be a worker
    Doctor(DoctorArguments),
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
    /// Compute threads of a rank when its job leaves it open [default: one a physical core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Let jobs write their debug.trace_dir on this machine
    #[arg(long)]
    pub allow_trace_dir: bool,
    /// Which log lines there are, such as info,ringtune_worker=debug [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log_filter: Option<String>,
}

impl DaemonArguments {
    /// The settings from all sources.
    pub fn settings(&self) -> Result<Settings, ConfigError> {
        load(Sources {
            file: self.common.config.clone(),
            environment: process_environment()?,
            overrides: self.overrides(),
        })
    }

    fn overrides(&self) -> Vec<(&'static str, String)> {
        let mut overrides = self.common.overrides();
        overrides.extend(given([
            ("coordinator.url", self.coordinator.clone()),
            ("ring.advertise_address", self.advertise_address.clone()),
            ("ring.interface", self.interface.clone()),
            ("compute.threads", self.threads.map(|threads| threads.to_string())),
            ("debug.allow_trace_dir", self.allow_trace_dir.then(|| "true".to_owned())),
            ("log.filter", self.log_filter.clone()),
        ]));
        overrides
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::CommandFactory as _;
    use ringtune_shared::daemon::logging::LogFormat;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_flag_reaches_its_setting() {
        let line = "ringtune-worker --coordinator http://h:1 --state-dir /s --listen 127.0.0.1:5 \
            --http-listen 127.0.0.1:6 --interface eth9 --threads 3 --allow-trace-dir --insecure --log-format json \
            --log-filter warn";
        let arguments = Arguments::try_parse_from(line.split_whitespace()).unwrap();
        let overrides = arguments.daemon.overrides();
        let settings: Settings = load(Sources { overrides, ..Sources::default() }).unwrap();
        assert_eq!(settings.coordinator.url, "http://h:1");
        assert_eq!(settings.storage.state_dir, PathBuf::from("/s"));
        assert_eq!((settings.grpc.listen.port(), settings.http.listen.port()), (5, 6));
        assert_eq!((settings.ring.interface.as_str(), settings.compute.threads), ("eth9", 3));
        assert!(settings.debug.allow_trace_dir && settings.security.insecure);
        assert_eq!((settings.log.format, settings.log.filter.as_str()), (LogFormat::Json, "warn"));
    }

    #[test]
    fn without_flags_the_defaults_stand() {
        assert!(DaemonArguments::default().overrides().is_empty());
    }
}

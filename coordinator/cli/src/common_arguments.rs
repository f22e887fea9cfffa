//! Arguments that many commands have.

use std::path::PathBuf;

use clap::Args;

use crate::{client::CoordinatorUrl, output::OutputFormat};

/// `--output`, of every command that prints data.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArguments {
    /// Print data as text, or as one JSON object per line
    #[arg(long, value_enum, default_value_t = OutputFormat::Text, value_name = "FORMAT")]
    pub output: OutputFormat,
}

/// Which coordinator to talk to.
#[derive(Debug, Clone, Args)]
pub struct CoordinatorArguments {
    /// The coordinator's address [default: that of the last `ringtune login`, else this machine's on port 7070]
    #[arg(long, env = "RINGTUNE_COORDINATOR", value_name = "URL")]
    pub coordinator: Option<CoordinatorUrl>,
    /// A folder with credentials, instead of those of `ringtune login`
    #[arg(long, env = "RINGTUNE_CREDENTIALS", value_name = "DIR")]
    pub credentials: Option<PathBuf>,
    /// The root certificates of the coordinator (PEM), for an access token in RINGTUNE_TOKEN or RINGTUNE_TOKEN_FILE
    #[arg(long, env = "RINGTUNE_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

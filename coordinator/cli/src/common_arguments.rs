//! Arguments that many commands have.

use std::path::PathBuf;

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser},
};

use crate::{client::CoordinatorUrl, output::OutputFormat};

/// `--output`, of every command that prints data.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArguments {
    /// Print data as text, or as one JSON object per line
    #[arg(long, value_enum, default_value_t = OutputFormat::Text, value_name = "FORMAT")]
    pub output: OutputFormat,
}

/// Which coordinator to ask, and how to print what it says.
#[derive(Debug, Args)]
pub struct AskArguments {
    /// Which coordinator.
    #[command(flatten)]
    pub coordinator: CoordinatorArguments,
    /// How to print.
    #[command(flatten)]
    pub output: OutputArguments,
}

/// Which coordinator to talk to.
#[derive(Debug, Clone, Args)]
pub struct CoordinatorArguments {
    /// The coordinator's address [default: that of the last `ringtune login`, else this machine's on port 7070]
    #[arg(long, env = "RINGTUNE_COORDINATOR", value_name = "URL", hide_env_values = true)]
    pub coordinator: Option<CoordinatorUrl>,
    /// A folder with credentials, instead of those of `ringtune login`
    #[arg(long, env = "RINGTUNE_CREDENTIALS", value_name = "DIR", value_parser = any_path())]
    pub credentials: Option<PathBuf>,
    /// The root certificates of the coordinator (PEM), for an access token in RINGTUNE_TOKEN or RINGTUNE_TOKEN_FILE
    #[arg(long, env = "RINGTUNE_CA", value_name = "FILE", value_parser = any_path())]
    pub ca: Option<PathBuf>,
}

impl CoordinatorArguments {
    /// The folder that is named; a variable that is empty names none.
    pub fn credentials(&self) -> Option<PathBuf> {
        self.credentials.clone().filter(|path| !path.as_os_str().is_empty())
    }

    /// The same of the root certificates.
    pub fn ca(&self) -> Option<PathBuf> {
        self.ca.clone().filter(|path| !path.as_os_str().is_empty())
    }
}

/// Also an empty one, which is none.
fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        coordinator: CoordinatorArguments,
    }

    #[test]
    fn a_variable_that_is_empty_is_as_none() {
        // A flag is read as its variable is.
        let read = |line: [&str; 5]| Line::try_parse_from(line).expect("valid").coordinator;
        let empty = read(["ringtune", "--credentials", "", "--ca", ""]);
        assert_eq!((empty.credentials(), empty.ca()), (None, None));
        let full = read(["ringtune", "--credentials", "a", "--ca", "b"]);
        assert_eq!((full.credentials(), full.ca()), (Some("a".into()), Some("b".into())));
    }
}

//! Logs: to stderr, for people on a terminal, as JSON otherwise.

mod lines;
#[cfg(test)]
mod tests;

use std::io::IsTerminal as _;

use lines::Lines;

use serde::{Deserialize, Serialize};
use tracing_subscriber::{
    EnvFilter, fmt::format::JsonFields, reload::Error as ReloadError, util::SubscriberInitExt as _,
};

/// `[log]` of both daemons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogSettings {
    /// How log lines look: for people, as one JSON object each, or `auto`, which is the former on a terminal only.
    ///
    /// Allowed: `auto`, `human` or `json`.
    pub format: LogFormat,
    /// Which log lines are written; those of the audit log are written in any case.
    ///
    /// Allowed: a tracing filter, such as `info,ringtune_worker=debug`.
    pub filter: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { format: LogFormat::Auto, filter: "info".to_owned() }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Lines for people.
    Human,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// The word in the settings file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Human => "human",
            Self::Json => "json",
        }
    }
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The filter does not parse.
    #[error("log.filter: {given:?} is not a filter such as \"info,ringtune_worker=debug\": {source}")]
    Filter {
        /// As given.
        given: String,
        /// The parse error.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Something else in the process has set it up before.
    #[error("logging is set up already")]
    Twice,
    /// Another filter cannot be put in its place.
    #[error("log.filter: {0}")]
    Replace(#[source] ReloadError),
}

impl LoggingError {
    /// The given value and its problem, without the key.
    pub fn problem(&self) -> String {
        let text = self.to_string();
        text.strip_prefix("log.filter: ").map_or(text.clone(), str::to_owned)
    }
}

/// The target of lines that are written whatever `log.filter` says: who changed something, and who was not let.
pub const AUDIT: &str = "audit";
/// The target of spans that say what all lines within them are about, such as a rank of a job: a line that is written has
/// their fields whatever `log.filter` says of the code that opened them. They are spans of the level ERROR.
pub const ABOUT: &str = "about";
/// h2 warns of what others do wrong, with a line for each frame: whoever reaches a port could fill the disk. What comes
/// later in a filter counts, so that somebody who looks for such a fault can have the lines.
const QUIET: &str = "h2=error";

/// The settings' filter, and the audit log.
fn filter(given: &str) -> Result<EnvFilter, LoggingError> {
    let wrong = |source| LoggingError::Filter { given: given.to_owned(), source };
    // Parsed alone first, so that an error is not about our addition. An empty filter is allowed.
    EnvFilter::try_new(given).map_err(wrong)?;
    let audit = format!("{AUDIT}=info").parse().map_err(wrong)?;
    let about = format!("{ABOUT}=error").parse().map_err(wrong)?;
    let all = EnvFilter::try_new(format!("{QUIET},{given}")).map_err(wrong)?;
    Ok(all.add_directive(audit).add_directive(about))
}

/// Whether a filter can be used.
///
/// # Errors
/// It does not parse.
pub fn check_filter(given: &str) -> Result<(), LoggingError> {
    filter(given).map(|_| ())
}

/// Changes which log lines are written while the process runs.
pub struct Logs {
    replace: Box<dyn Fn(EnvFilter) -> Result<(), ReloadError> + Send + Sync>,
}

impl Logs {
    /// Writes what another filter lets through from now on.
    ///
    /// # Errors
    /// It does not parse.
    pub fn set_filter(&self, given: &str) -> Result<(), LoggingError> {
        (self.replace)(filter(given)?).map_err(LoggingError::Replace)
    }
}

/// Sets up the process's logs, once.
///
/// # Errors
/// A filter that does not parse; a second call.
pub fn start(settings: &LogSettings) -> Result<Logs, LoggingError> {
    let filter = filter(&settings.filter)?;
    let terminal = std::io::stderr().is_terminal();
    let human = match settings.format {
        LogFormat::Auto => terminal,
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    // Colours only where they mean something, and never against NO_COLOR.
    let colours = human && terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // A line that cannot be written (a full disk) is lost: a complaint about it would go the same way, and panic.
    let lines = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .log_internal_errors(false)
        .fmt_fields(JsonFields::new())
        .event_format(if human { Lines::Human } else { Lines::Json })
        .with_env_filter(filter)
        .with_filter_reloading();
    let handle = lines.reload_handle();
    lines.finish().try_init().map_err(|_| LoggingError::Twice)?;
    Ok(Logs { replace: Box::new(move |filter| handle.reload(filter)) })
}

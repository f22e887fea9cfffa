//! Logs: to stderr, for people on a terminal, as JSON otherwise.

use std::io::IsTerminal as _;

use serde::{Deserialize, Serialize};
use tracing_subscriber::{EnvFilter, reload::Error as ReloadError, util::SubscriberInitExt as _};

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
        /// Where it stopped making sense.
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
    /// What was given and what is wrong with it, without the key.
    pub fn problem(&self) -> String {
        let text = self.to_string();
        text.strip_prefix("log.filter: ").map_or(text.clone(), str::to_owned)
    }
}

/// The target of lines that are written whatever `log.filter` says: who changed something, and who was not let.
pub const AUDIT: &str = "audit";
/// h2 warns of what others do wrong, with a line for each frame: whoever reaches a port could fill the disk. What comes
/// later in a filter counts, so that somebody who looks for such a fault can have the lines.
const QUIET: &str = "h2=error";

/// What the settings ask for, and the audit log.
fn filter(given: &str) -> Result<EnvFilter, LoggingError> {
    let wrong = |source| LoggingError::Filter { given: given.to_owned(), source };
    // By itself first: its complaint is not to be about our word. An empty one is allowed, and has none.
    EnvFilter::try_new(given).map_err(wrong)?;
    let audit = format!("{AUDIT}=info").parse().map_err(wrong)?;
    Ok(EnvFilter::try_new(format!("{QUIET},{given}")).map_err(wrong)?.add_directive(audit))
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
    // A line that cannot be written (a full disk) is lost: a complaint about it would go the same way, and panic.
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).log_internal_errors(false);
    if human {
        // Colours only where they mean something, and never against NO_COLOR.
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let lines = lines.with_ansi(colours).with_env_filter(filter).with_filter_reloading();
        let handle = lines.reload_handle();
        lines.finish().try_init().map_err(|_| LoggingError::Twice)?;
        Ok(Logs { replace: Box::new(move |filter| handle.reload(filter)) })
    } else {
        let lines = lines.json().flatten_event(true).with_env_filter(filter).with_filter_reloading();
        let handle = lines.reload_handle();
        lines.finish().try_init().map_err(|_| LoggingError::Twice)?;
        Ok(Logs { replace: Box::new(move |filter| handle.reload(filter)) })
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;
    use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};

    use super::*;

    /// Which of two lines are written.
    fn written(given: &str) -> (bool, bool) {
        let subscriber = tracing_subscriber::registry().with(
            tracing_subscriber::fmt::layer().with_writer(std::io::sink).with_filter(filter(given).unwrap()),
        );
        tracing::subscriber::with_default(subscriber, || {
            (tracing::enabled!(target: "audit", Level::INFO), tracing::enabled!(target: "other", Level::INFO))
        })
    }

    #[test]
    fn the_audit_log_is_written_whatever_the_filter_says() {
        assert_eq!(written("info"), (true, true));
        for quiet in ["off", "error", "other=warn", "audit=off"] {
            assert_eq!(written(quiet), (true, false), "{quiet}");
        }
        assert!(matches!(filter("a=b=c"), Err(LoggingError::Filter { .. })));
    }

    #[test]
    fn a_stranger_cannot_fill_the_log_by_breaking_the_rules_of_http2() {
        let shown = |given: &str| {
            tracing::subscriber::with_default(
                tracing_subscriber::registry().with(filter(given).unwrap()),
                || {
                    let h2 = tracing::enabled!(target: "h2::proto::ping_pong", Level::WARN);
                    let own = tracing::enabled!(target: "ringtune_coordinator::grpc", Level::INFO);
                    [h2, own]
                },
            )
        };
        assert_eq!(shown("info"), [false, true]);
        assert_eq!(shown("debug,hyper=info"), [false, true]);
        // Who asks for it has it.
        assert_eq!(shown("info,h2=warn"), [true, true]);
        assert_eq!(shown(""), [false, false]);
        let refused = filter("info,=,").unwrap_err().to_string();
        assert!(refused.contains("\"info,=,\"") && !refused.contains("h2"), "{refused}");
    }
}

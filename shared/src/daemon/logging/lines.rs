//! The format of log lines. Fields of a line's spans are added to the line's own, each once.

use std::fmt;

use serde_json::{Map, Value};
use tracing::{Event, Level, Subscriber};
use tracing_log::NormalizeEvent as _;
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::{DefaultFields, JsonFields, Writer},
        time::{FormatTime as _, SystemTime},
    },
    registry::LookupSpan,
};

const PLAIN: &str = "\u{1b}[0m";
const ITALIC: &str = "\u{1b}[3m";
const DIM: &str = "\u{1b}[2m";

/// Lines for people, or one JSON object each. Fields of spans are kept as JSON, because those may be replaced.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lines {
    Human,
    Json,
}

impl<S> FormatEvent<S, JsonFields> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let own = fields_of(event)?;
        let inherited = inherited(context, event, &own)?;
        // Lines of libraries that use the crate `log` have their target in a field.
        let normalized = event.normalized_metadata();
        let metadata = normalized.as_ref().unwrap_or_else(|| event.metadata());
        let (level, target) = (metadata.level(), metadata.target());
        match self {
            Self::Human => {
                write_start(&mut writer, level, target)?;
                DefaultFields::new().format_fields(writer.by_ref(), event)?;
                write_fields(&mut writer, &inherited)?;
            }
            Self::Json => write_json(&mut writer, level, target, own, inherited)?,
        }
        writeln!(writer)
    }
}

fn fields_of(event: &Event<'_>) -> Result<Map<String, Value>, fmt::Error> {
    let mut text = String::new();
    JsonFields::new().format_fields(Writer::new(&mut text), event)?;
    serde_json::from_str(&text).map_err(|_| fmt::Error)
}

/// Fields of the spans around a line that it does not have itself; the innermost span wins.
fn inherited<S>(
    context: &FmtContext<'_, S, JsonFields>,
    event: &Event<'_>,
    own: &Map<String, Value>,
) -> Result<Map<String, Value>, fmt::Error>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let mut all = Map::new();
    let Some(innermost) = context.parent_span().filter(|_| !event.is_root()) else { return Ok(all) };
    for span in innermost.scope().from_root() {
        let extensions = span.extensions();
        let Some(fields) = extensions.get::<FormattedFields<JsonFields>>() else { continue };
        if !fields.is_empty() {
            let fields: Map<String, Value> = serde_json::from_str(fields).map_err(|_| fmt::Error)?;
            all.extend(fields.into_iter().filter(|(name, _)| !own.contains_key(name)));
        }
    }
    Ok(all)
}

/// When, how bad, and who says it.
fn write_start(writer: &mut Writer<'_>, level: &Level, target: &str) -> fmt::Result {
    if writer.has_ansi_escapes() {
        let colour = match *level {
            Level::ERROR => 31,
            Level::WARN => 33,
            Level::INFO => 32,
            Level::DEBUG => 34,
            Level::TRACE => 35,
        };
        writer.write_str(DIM)?;
        SystemTime.format_time(writer)?;
        write!(writer, "{PLAIN} \u{1b}[{colour}m{level:>5}{PLAIN} {DIM}{target}:{PLAIN} ")
    } else {
        SystemTime.format_time(writer)?;
        write!(writer, " {level:>5} {target}: ")
    }
}

/// Formatted as the line's own fields, behind them.
fn write_fields(writer: &mut Writer<'_>, fields: &Map<String, Value>) -> fmt::Result {
    let (italic, dim, plain) = if writer.has_ansi_escapes() { (ITALIC, DIM, PLAIN) } else { ("", "", "") };
    for (name, value) in fields {
        write!(writer, " {italic}{name}{plain}{dim}={plain}")?;
        match value {
            Value::String(text) => write!(writer, "{}", text.escape_debug())?,
            other => write!(writer, "{other}")?,
        }
    }
    Ok(())
}

fn write_json(
    writer: &mut Writer<'_>,
    level: &Level,
    target: &str,
    mut own: Map<String, Value>,
    inherited: Map<String, Value>,
) -> fmt::Result {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    let first = [("timestamp", Value::from(time)), ("level", Value::from(level.as_str()))];
    let first = first.into_iter().map(|(name, value)| (name.to_owned(), value));
    let message = own.remove_entry("message");
    let target = ("target".to_owned(), Value::from(target));
    let mut separator = '{';
    for (name, value) in first.chain(message).chain(own).chain(inherited).chain([target]) {
        write!(writer, "{separator}{}:{value}", Value::from(name))?;
        separator = ',';
    }
    writer.write_char('}')
}

//! How the commands print: data to stdout, as text for people or as one JSON object per line; remarks to stderr.

use std::io::{self, Write as _};

use clap::ValueEnum;
use prost_types::Timestamp;
use serde::Serialize;

/// How to print data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Writes data to stdout and remarks to stderr.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    format: OutputFormat,
}

impl Output {
    /// An output of that format.
    pub fn new(format: OutputFormat) -> Self {
        Self { format }
    }

    /// Whether data is printed as JSON.
    pub fn is_json(self) -> bool {
        self.format == OutputFormat::Json
    }

    /// Prints one piece of data: `text` for people, `object` as a line of JSON.
    pub fn data(self, text: &str, object: &impl Serialize) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        match self.format {
            OutputFormat::Text => writeln!(stdout, "{text}")?,
            OutputFormat::Json => {
                serde_json::to_writer(&mut stdout, object)?;
                writeln!(stdout)?;
            }
        }
        stdout.flush()
    }

    /// Prints `object` as a line of JSON, and nothing in text mode.
    pub fn json(self, object: &impl Serialize) -> io::Result<()> {
        if self.is_json() { self.data("", object) } else { Ok(()) }
    }
}

/// A remark for people, on stderr. A closed stderr is no reason to stop working.
pub fn remark(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Bytes as people read them: "3.4 GiB".
pub fn size_text(bytes: i64) -> String {
    let mut size = bytes as f64;
    let mut units = ["KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = "bytes";
    // What would be shown as 1024.0 is one of the next unit.
    while size >= 1023.95
        && let Some(larger) = units.next()
    {
        (size, unit) = (size / 1024.0, larger);
    }
    if unit == "bytes" { format!("{bytes} bytes") } else { format!("{size:.1} {unit}") }
}

/// A time in RFC 3339, UTC; empty when there is none.
pub fn time_text(time: Option<&Timestamp>) -> String {
    time.map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_the_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (3 << 40, "3.0 TiB"),
            (5000 << 40, "5000.0 TiB"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }
}

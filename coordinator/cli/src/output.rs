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

/// A time in RFC 3339, UTC; empty when there is none.
pub fn time_text(time: Option<&Timestamp>) -> String {
    time.map(ToString::to_string).unwrap_or_default()
}

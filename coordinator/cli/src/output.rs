//! How the commands print: data to stdout, as text for people or as one JSON object per line; remarks to stderr.

use std::{
    io::{self, Write as _},
    sync::OnceLock,
    time::Duration,
};

use clap::ValueEnum;
use prost_types::Timestamp;
use ringtune_shared::names::visible;
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

/// The first error of printing, where it does not end the command.
static UNPRINTED: OnceLock<io::Error> = OnceLock::new();

/// Writes data to stdout and remarks to stderr.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    format: OutputFormat,
    /// Errors of printing do not end the command.
    goes_on: bool,
}

impl Output {
    /// An output of that format.
    pub fn new(format: OutputFormat) -> Self {
        Self { format, goes_on: false }
    }

    /// For work that must not stop when its output cannot be printed (a closed terminal, `| head`, a full disk).
    /// [`Self::complete`] returns that error in the end.
    pub fn of_work(format: OutputFormat) -> Self {
        Self { format, goes_on: true }
    }

    /// # Errors
    /// Why something could not be printed meanwhile.
    pub fn complete(self) -> io::Result<()> {
        UNPRINTED.get().map_or(Ok(()), |error| Err(io::Error::new(error.kind(), error.to_string())))
    }

    /// Whether data is printed as JSON.
    pub fn is_json(self) -> bool {
        self.format == OutputFormat::Json
    }

    /// Prints one piece of data: `text` for people, `object` as a line of JSON.
    pub fn data(self, text: &str, object: &impl Serialize) -> io::Result<()> {
        match self.print(text, object) {
            Err(error) if self.goes_on => {
                if UNPRINTED.get().is_none() {
                    remark(&format!("warning: cannot write the output ({error}); the work goes on"));
                }
                // Only the first one is told.
                let _ = UNPRINTED.set(error);
                Ok(())
            }
            printed => printed,
        }
    }

    fn print(self, text: &str, object: &impl Serialize) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        match self.format {
            OutputFormat::Text => writeln!(stdout, "{}", visible(text))?,
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
    let _ = writeln!(io::stderr(), "{}", visible(text));
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

/// How long ago, in one unit: "10 s", "3 min", "2 h", "5 d".
pub fn age_text(age: Duration) -> String {
    match age.as_secs() {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
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
    #[test]
    fn ages_are_in_the_unit_that_fits() {
        let texts = [0, 59, 60, 3599, 3600, 172_799, 172_800].map(|age| age_text(Duration::from_secs(age)));
        assert_eq!(texts, ["0 s", "59 s", "1 min", "59 min", "1 h", "47 h", "2 d"]);
    }
}

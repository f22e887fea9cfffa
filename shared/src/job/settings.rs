//! `KEY=VALUE` of a command line, put into a job file before it is read.
//!
//! The settings are appended to the file's text as a table of their own and moved to their places after the whole
//! has been parsed once, so that every value keeps a span by which errors can show it.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::Serialize as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{SpecError, Violation};

/// A setting may have this many bytes.
const LARGEST_SETTING: usize = 1 << 20;
/// Table of the settings while the text is parsed; not a job's key.
const APPENDED: &str = "--set";

/// One `KEY=VALUE`, as in `train.seed=7`: the key with its sections before it, separated by dots, the value in TOML. A
/// value that is not TOML is a text as it stands, unless it begins with a quotation mark or a bracket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    given: String,
    /// Where, in messages.
    from: &'static str,
    path: Vec<String>,
    value: String,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.given)
    }
}

impl FromStr for Setting {
    type Err = SpecError;

    fn from_str(given: &str) -> Result<Self, SpecError> {
        read(given).map_err(|problem| SpecError { violations: vec![unreadable(given, &problem)] })
    }
}

fn unreadable(given: &str, problem: &str) -> Violation {
    let shown: String = given.chars().take(80).collect();
    Violation::new("", format!("{shown:?}: {problem}"))
}

fn read(given: &str) -> Result<Setting, String> {
    const ALLOWED: &str = "allowed: KEY=VALUE, as in train.seed=7";
    if given.len() > LARGEST_SETTING {
        return Err(format!("it has {} bytes; allowed: at most {LARGEST_SETTING}", given.len()));
    }
    let (key, value) = given.split_once('=').ok_or(ALLOWED)?;
    let path: Vec<String> = key.trim().split('.').map(str::to_owned).collect();
    let is_bare = |part: &String| {
        !part.is_empty() && part.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter))
    };
    if path.len() > 8 || !path.iter().all(is_bare) {
        return Err(ALLOWED.to_owned());
    }
    let value = value.trim();
    // Parsed alone, so that no value continues as another line of the file.
    let is_toml = match DeTable::parse(&format!("value = {value}")) {
        Ok(document) => document.get_ref().len() == 1 && document.get_ref().contains_key("value"),
        Err(error) if value.starts_with(['"', '\'', '[', '{']) => {
            return Err(format!("its value is not valid TOML: {}", error.message()));
        }
        Err(_) => false,
    };
    let value = if is_toml { value.to_owned() } else { quoted(value)? };
    Ok(Setting { given: given.to_owned(), from: "--set", path, value })
}

/// A text as TOML, on one line.
fn quoted(text: &str) -> Result<String, String> {
    let mut quoted = String::new();
    let serializer = toml::ser::ValueSerializer::new(&mut quoted);
    text.serialize(serializer).map_err(|error| error.to_string())?;
    Ok(quoted)
}

/// A job file's text with settings behind it.
pub(super) struct Appended<'settings> {
    /// The whole.
    pub(super) text: String,
    settings: &'settings [Setting],
    /// The lines of each setting, from 1.
    lines: Vec<Range<usize>>,
}

impl<'settings> Appended<'settings> {
    /// `text` by itself is `alone`. One that has the appended table's key itself is refused for that key.
    pub(super) fn new(text: &str, alone: &DeTable<'_>, settings: &'settings [Setting]) -> Self {
        let settings = if alone.contains_key(APPENDED) { &[] } else { settings };
        let mut whole = text.to_owned();
        let mut line = text.split('\n').count();
        let mut lines = Vec::with_capacity(settings.len());
        for setting in settings {
            whole.push_str(&format!("\n[[\"{APPENDED}\"]]\nvalue = {}", setting.value));
            let height = 1 + setting.value.split('\n').count();
            lines.push(line + 1..line + 1 + height);
            line += height;
        }
        Self { text: whole, settings, lines }
    }

    /// Moves the settings of the parsed whole to their places, later ones over earlier ones.
    ///
    /// Errors: a setting whose place is within something that is not a table.
    pub(super) fn put_in_place(&self, document: &mut DeTable<'_>) -> Result<(), Violation> {
        if self.settings.is_empty() {
            return Ok(());
        }
        let Some(appended) = document.remove(APPENDED) else { return Ok(()) };
        let DeValue::Array(tables) = appended.into_inner() else { return Ok(()) };
        for (setting, table) in self.settings.iter().zip(tables) {
            if let DeValue::Table(mut table) = table.into_inner()
                && let Some(value) = table.remove("value")
            {
                put(document, &setting.path, value).map_err(|within| {
                    let problem = format!("{within} is not a table{}", setting.origin());
                    Violation::new(setting.path.join("."), problem)
                })?;
            }
        }
        Ok(())
    }

    /// Says of a violation in an appended line which setting it came from, for that line is in nobody's file.
    pub(super) fn name_origin(&self, violation: &mut Violation) {
        let Some(line) = violation.line else { return };
        if let Some(at) = self.lines.iter().position(|lines| lines.contains(&line)) {
            violation.problem.push_str(&self.settings[at].origin());
            violation.line = None;
        }
    }
}

impl Setting {
    /// One of `[sweep]`; `value` is TOML.
    pub(super) fn of_sweep(key: &str, value: &str) -> Result<Self, Violation> {
        let given = format!("{key}={value}");
        let setting = read(&given).map_err(|problem| unreadable(&given, &problem))?;
        Ok(Self { from: "[sweep]", ..setting })
    }

    fn origin(&self) -> String {
        const LONGEST: usize = 80;
        let mut shown: String = self.given.chars().take(LONGEST).collect();
        if self.given.chars().count() > LONGEST {
            shown.push('…');
        }
        format!(" (from {} {shown})", self.from)
    }
}

/// Puts a value at the end of `path`, and makes the tables on the way there. A number is a place in a list.
fn put<'document>(
    table: &mut DeTable<'document>,
    path: &[String],
    value: Spanned<DeValue<'document>>,
) -> Result<(), String> {
    let span = value.span();
    let Some((first, rest)) = path.split_first() else { return Ok(()) };
    let key = Spanned::new(span.clone(), Cow::Owned(first.clone()));
    let Some((second, within_list)) = rest.split_first() else {
        // Also the key's span is the setting's.
        table.remove(first.as_str());
        table.insert(key, value);
        return Ok(());
    };
    if !table.contains_key(first.as_str()) {
        table.insert(key, Spanned::new(span, DeValue::Table(DeTable::new())));
    }
    match table.get_mut(first.as_str()).map(Spanned::get_mut) {
        Some(DeValue::Table(inner)) => put(inner, rest, value).map_err(|within| format!("{first}.{within}")),
        Some(DeValue::Array(entries)) if !within_list.is_empty() => {
            let index: Option<usize> = second.parse().ok();
            match index.and_then(|index| entries.get_mut(index)).map(Spanned::get_mut) {
                Some(DeValue::Table(inner)) => {
                    put(inner, within_list, value).map_err(|within| format!("{first}.{second}.{within}"))
                }
                _ => Err(format!("{first}.{second}")),
            }
        }
        _ => Err(first.clone()),
    }
}

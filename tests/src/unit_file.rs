//! A unit file of systemd, as far as tests need it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::places;
use anyhow::{Context as _, Result, bail};

/// Where the units are.
pub fn folder() -> PathBuf {
    places::repository().join("deploy/systemd")
}

/// All of them.
pub const UNITS: [&str; 3] =
    ["ringtune-coordinator.service", "ringtune-worker.service", "ringtune-worker@.service"];

/// What systemd puts in the place of `%S`, `%C`, `%d` and `%i`.
#[derive(Clone, Debug)]
pub struct Specifiers {
    /// `%S`.
    pub state: &'static str,
    /// `%C`.
    pub cache: &'static str,
    /// `%d`.
    pub credentials: &'static str,
    /// `%i`.
    pub instance: &'static str,
}

impl Specifiers {
    /// Of the system's services.
    pub fn of(instance: &'static str) -> Self {
        Self { state: "/var/lib", cache: "/var/cache", credentials: "/run/credentials/unit", instance }
    }
}

/// Its `[Service]`.
#[derive(Clone, Debug)]
pub struct Unit {
    values: BTreeMap<String, Vec<String>>,
    specifiers: Specifiers,
}

impl Unit {
    /// Reads one of ours.
    pub fn read(name: &str, specifiers: Specifiers) -> Result<Self> {
        Self::read_file(&folder().join(name), specifiers)
    }

    /// Reads a file elsewhere.
    pub fn read_file(path: &Path, specifiers: Specifiers) -> Result<Self> {
        Self::parse(&fs::read_to_string(path).with_context(|| path.display().to_string())?, specifiers)
    }

    /// Reads a unit, behind which drop-ins may stand.
    pub fn parse(text: &str, specifiers: Specifiers) -> Result<Self> {
        let (mut values, mut section) = (BTreeMap::<String, Vec<String>>::new(), "");
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            if line.starts_with('[') {
                section = line;
            } else if section == "[Service]" {
                let (key, value) = line.split_once('=').with_context(|| line.to_owned())?;
                values.entry(key.to_owned()).or_default().push(value.to_owned());
            }
        }
        Ok(Self { values, specifiers })
    }

    /// All values of a key, with their specifiers replaced.
    pub fn all(&self, key: &str) -> Result<Vec<String>> {
        let given = self.values.get(key).map_or(&[][..], Vec::as_slice);
        given.iter().map(|value| self.expanded(value)).collect()
    }

    /// The value of a key that stands there once.
    pub fn one(&self, key: &str) -> Result<String> {
        match self.all(key)?.as_slice() {
            [value] => Ok(value.clone()),
            values => bail!("{key}: {values:?}"),
        }
    }

    /// A number of seconds.
    pub fn seconds(&self, key: &str) -> Result<Duration> {
        Ok(Duration::from_secs(self.one(key)?.parse().with_context(|| key.to_owned())?))
    }

    /// `Environment=`.
    pub fn environment(&self) -> Result<Vec<(String, String)>> {
        let assignments = self.all("Environment")?.join(" ");
        Ok(assignments.split_whitespace().filter_map(assignment).collect())
    }

    fn expanded(&self, value: &str) -> Result<String> {
        let mut text = String::new();
        let mut rest = value.chars();
        while let Some(symbol) = rest.next() {
            match (symbol, symbol == '%') {
                (symbol, false) => text.push(symbol),
                _ => {
                    text += match rest.next() {
                        Some('S') => self.specifiers.state,
                        Some('C') => self.specifiers.cache,
                        Some('d') => self.specifiers.credentials,
                        Some('i') => self.specifiers.instance,
                        other => bail!("{value}: %{other:?} is not known here"),
                    }
                }
            }
        }
        Ok(text)
    }
}

/// `NAME=VALUE`.
pub fn assignment(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
    Some((name.to_owned(), value.to_owned()))
}

/// A command line with its `${NAME}` replaced.
pub fn words(line: &str, environment: &[(String, String)]) -> Result<Vec<String>> {
    let word = |word: &str| match word.strip_prefix("${").and_then(|name| name.strip_suffix('}')) {
        None => Ok(word.to_owned()),
        Some(name) => {
            let found = environment.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone()).with_context(|| format!("{name} is not set"))
        }
    };
    line.split_whitespace().map(word).collect()
}

//! Settings of the daemons: defaults, then a TOML file, then the environment, then flags.
//!
//! A settings type is a struct of sections that implements `Default`, `Serialize` and
//! `Deserialize`. Its default, serialised, says which settings there are and what type each has:
//! anything else in a file or in the environment is refused by name. Environment variables are
//! `RINGTUNE__SECTION__KEY`, with two underscores; anything else in the environment is not ours.

mod changes;
mod leaves;
mod written;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ::config::{Config, ConfigBuilder, Value, ValueKind, builder::DefaultState};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::DeTable;

use crate::suggest;
pub use changes::{Change, change};
use leaves::{Leaf, Setting};
pub use written::{example, value_as_toml, written};

/// Prefix of environment variables that are settings.
pub const ENVIRONMENT_PREFIX: &str = "RINGTUNE__";

/// A settings file may have this many bytes.
const LARGEST_FILE: u64 = 1 << 20;

/// Sources of settings; later ones win.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// A TOML file, which must exist.
    pub file: Option<PathBuf>,
    /// Names and values; names that do not begin with [`ENVIRONMENT_PREFIX`] are passed over.
    pub environment: Vec<(String, String)>,
    /// The flags that were given: a setting's full name, as in "grpc.listen", and its value.
    pub overrides: Vec<(&'static str, String)>,
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the settings file {}: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The file is not TOML.
    #[error("{place}: not valid TOML: {problem}")]
    Syntax {
        /// The file and the line.
        place: String,
        /// The problem.
        problem: String,
    },
    /// Some settings are unknown or have wrong values.
    #[error("{}", one_a_line(.0))]
    Invalid(
        /// All of them.
        Vec<SettingProblem>,
    ),
    /// A variable of the environment is not valid UTF-8.
    #[error("environment variable {0}: its value is not valid UTF-8")]
    NotUnicode(
        /// Its name.
        String,
    ),
    /// The defaults cannot be written down: a mistake in the settings type.
    #[error("the default settings cannot be serialised: {0}")]
    Defaults(
        /// Why.
        String,
    ),
}

/// One setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingProblem {
    /// Where it was set: a file and line, an environment variable, or the command line; empty
    /// where that is not known.
    pub place: String,
    /// The setting's full name, as in "grpc.listen".
    pub setting: String,
    /// What was given and what is allowed.
    pub problem: String,
}

impl fmt::Display for SettingProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.place, &self.setting] {
            if !part.is_empty() {
                write!(formatter, "{part}: ")?;
            }
        }
        formatter.write_str(&self.problem)
    }
}

fn one_a_line(problems: &[SettingProblem]) -> String {
    problems.iter().map(SettingProblem::to_string).collect::<Vec<_>>().join("\n")
}

/// The variables of this process's environment that are settings, for [`Sources::environment`].
pub fn process_environment() -> Result<Vec<(String, String)>, ConfigError> {
    let mut settings = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with(ENVIRONMENT_PREFIX)) else { continue };
        let value = value.into_string().map_err(|_| ConfigError::NotUnicode(name.to_owned()))?;
        settings.push((name.to_owned(), value));
    }
    settings.sort();
    Ok(settings)
}

/// Settings, and where each of them was set.
#[derive(Debug, Clone)]
pub struct Loaded<T> {
    /// All of them.
    pub settings: T,
    /// The origin of each given setting, by full name; all others have their defaults.
    pub places: BTreeMap<String, String>,
}

impl<T> Loaded<T> {
    /// In one line: how many settings were given, and where.
    pub fn summary(&self) -> String {
        let mut sources: BTreeMap<&str, usize> = BTreeMap::new();
        for place in self.places.values() {
            let source = place.rsplit_once(", line ").map_or(place.as_str(), |(file, _)| file);
            let source = match source {
                "command line" => "the command line",
                variable if variable.starts_with("environment variable") => "the environment",
                file => file,
            };
            *sources.entry(source).or_default() += 1;
        }
        let given = sources.iter().map(|(source, count)| format!("{count} from {source}"));
        let given = given.collect::<Vec<_>>().join(", ");
        match self.places.len() {
            0 => "no setting is given: all have their defaults".to_owned(),
            1 => format!("1 setting is given ({given}); all others have their defaults"),
            count => format!("{count} settings are given ({given}); all others have their defaults"),
        }
    }
}

/// Puts the settings together. Every unknown or wrongly typed setting is named, with its place.
///
/// Constraints that a type cannot express (a range, say) are checked by the caller, or by [`load_checked`].
pub fn load<T>(sources: Sources) -> Result<T, ConfigError>
where
    T: Default + Serialize + DeserializeOwned,
{
    load_checked(sources, |_| Vec::new()).map(|loaded| loaded.settings)
}

/// As [`load`], then checks the settings with `problems`, which returns full names and texts. All that is wrong is said at once:
/// what could be read is checked beside what could not.
pub fn load_checked<T>(
    sources: Sources,
    problems: impl Fn(&T) -> Vec<(String, String)>,
) -> Result<Loaded<T>, ConfigError>
where
    T: Default + Serialize + DeserializeOwned,
{
    // 1. The defaults say what there is.
    let known = known::<T>()?;

    // 2. What was set, and where.
    let mut given = Vec::new();
    if let Some(path) = &sources.file {
        given.extend(read_file(path, &known)?);
    }
    given.extend(sources.environment.into_iter().filter_map(from_environment));
    given.extend(sources.overrides.into_iter().map(|(name, value)| Setting {
        place: "command line".to_owned(),
        name: name.to_owned(),
        leaf: Leaf::Text(value),
    }));

    // 3. Later sources replace earlier ones, setting by setting. The settings type has a word in each: number widths,
    // names of choices, addresses.
    let mut found = Vec::new();
    let mut places = BTreeMap::new();
    let mut builder = Config::builder();
    for (name, default) in &known {
        let value = leaves::default_value(default);
        builder =
            builder.set_default(name, value).map_err(|error| ConfigError::Defaults(error.to_string()))?;
    }
    for Setting { place, name, leaf } in given {
        let converted = match known.get(&name) {
            None => Err(unknown(&name, &known)),
            Some(default) => leaf.converted_like(default, &place),
        };
        let next = converted.and_then(|value| {
            let given = value.clone();
            let next = builder.clone().set_override(&name, value).map_err(|error| error.to_string())?;
            built::<T>(&next).map(|_| next).map_err(|error| unreadable(&given, &error, known.get(&name)))
        });
        match next {
            Ok(with_setting) => {
                builder = with_setting;
                places.insert(name, place);
            }
            Err(problem) => found.push(SettingProblem { place, setting: name, problem }),
        }
    }

    // 4. What a type cannot say.
    let settings = built::<T>(&builder).map_err(ConfigError::Defaults)?;
    found.extend(problems(&settings).into_iter().map(|(setting, problem)| {
        let place = places.get(&setting).cloned().unwrap_or_default();
        SettingProblem { place, setting, problem }
    }));
    if found.is_empty() { Ok(Loaded { settings, places }) } else { Err(ConfigError::Invalid(found)) }
}

fn known<T: Default + Serialize>() -> Result<BTreeMap<String, serde_json::Value>, ConfigError> {
    leaves_of(&T::default())
}

/// Every setting by its full name.
fn leaves_of<T: Serialize>(settings: &T) -> Result<BTreeMap<String, serde_json::Value>, ConfigError> {
    let tree = serde_json::to_value(settings).map_err(|error| ConfigError::Defaults(error.to_string()))?;
    Ok(leaves::of_defaults(&tree))
}

fn built<T: DeserializeOwned>(builder: &ConfigBuilder<DefaultState>) -> Result<T, String> {
    builder.build_cloned().and_then(Config::try_deserialize).map_err(|error| error.to_string())
}

fn read_file(path: &Path, known: &BTreeMap<String, serde_json::Value>) -> Result<Vec<Setting>, ConfigError> {
    let unreadable = |cause| ConfigError::Unreadable { path: path.to_owned(), cause };
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > LARGEST_FILE {
        let problem = format!("it has {size} bytes; allowed: at most {LARGEST_FILE}");
        return Err(unreadable(io::Error::new(io::ErrorKind::FileTooLarge, problem)));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let document = DeTable::parse(&text).map_err(|error| ConfigError::Syntax {
        place: leaves::place_in_file(path, &text, error.span().unwrap_or_default()),
        problem: error.message().to_owned(),
    })?;
    Ok(leaves::of_file(path, &text, document.get_ref(), known))
}

/// `RINGTUNE__GRPC__LISTEN` sets "grpc.listen".
fn from_environment((variable, value): (String, String)) -> Option<Setting> {
    let name = variable.strip_prefix(ENVIRONMENT_PREFIX)?.to_lowercase().replace("__", ".");
    Some(Setting { place: format!("environment variable {variable}"), name, leaf: Leaf::Text(value) })
}

/// A value of the right kind that the settings type does not take.
fn unreadable(given: &Value, error: &str, default: Option<&serde_json::Value>) -> String {
    let given = match &given.kind {
        ValueKind::String(text) => format!("{text:?}"),
        _ => given.to_string(),
    };
    let like =
        default.filter(|default| !default.is_null()).map(|default| format!("; allowed: such as {default}"));
    let like = like.unwrap_or_default();
    if given.starts_with('-') && error.contains("unsigned") {
        return format!("got {given}, which is negative{like}");
    }
    if error.contains("invalid socket address") {
        return format!("got {given}{like}, an IP address and a port; no host names");
    }
    format!("got {given}: {error}{like}")
}

fn unknown(name: &str, known: &BTreeMap<String, serde_json::Value>) -> String {
    let names = || known.keys().map(String::as_str);
    let section = name.split('.').next().unwrap_or_default();
    let sections = known.keys().filter_map(|known| known.split_once('.')).map(|(section, _)| section);
    if let Some(word) = suggest::nearest(name, names().chain(sections)) {
        return format!("unknown setting; did you mean {word:?}?");
    }
    let in_section: Vec<&str> =
        names().filter(|known| known.split('.').next() == Some(section) && known.contains('.')).collect();
    let allowed = if in_section.is_empty() { names().collect() } else { in_section };
    format!("unknown setting; allowed: {}", allowed.join(", "))
}

#[cfg(test)]
mod tests;

//! The variables that say where models are and who asks. They are read once and handed around, so that nothing else
//! looks at the process's environment.

use std::{collections::BTreeMap, fmt, path::PathBuf};

/// Where the role of a machine is asked for.
const METADATA_ENDPOINT: &str = "AWS_METADATA_ENDPOINT";
/// Variables, one of which names a source of credentials for buckets. Without any the bucket has to be public: nothing is asked
/// of a cloud's metadata service, which elsewhere would only be waited for.
pub(crate) const CREDENTIALS: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    METADATA_ENDPOINT,
];

/// Variables by name. Their values are never shown: some are secrets.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// Those of this process that matter here: HF_*, AWS_*, and those that say where caches lie. What is not Unicode
    /// is left out.
    pub fn of_process() -> Self {
        let matters = |name: &str| {
            let prefixes = ["HF_", "HUGGING", "TRANSFORMERS_OFFLINE", "AWS_", "XDG_CACHE_HOME"];
            name == "HOME" || prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        std::env::vars_os().filter_map(text).filter(|(name, _)| matters(name)).collect()
    }

    /// Has buckets opened with the role of this machine, for which the metadata service at `endpoint` is asked, unless variables
    /// name other credentials.
    #[must_use]
    pub fn with_role_of_machine(mut self, endpoint: &str) -> Self {
        if !CREDENTIALS.iter().any(|name| self.get(name).is_some()) {
            self.variables.insert(METADATA_ENDPOINT.to_owned(), endpoint.to_owned());
        }
        self
    }

    /// The value of a variable; none when it is empty, as the tools that these variables come from have it.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The first of several that is set.
    pub(crate) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// All variables with a `prefix`.
    pub(crate) fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.variables
            .iter()
            .filter(move |(name, _)| name.starts_with(prefix))
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The folder of a variable, with `~` as the home folder.
    pub(crate) fn folder(&self, names: &[&str]) -> Option<PathBuf> {
        let given = self.first(names)?;
        match given.strip_prefix("~/") {
            Some(rest) => self.get("HOME").map(|home| PathBuf::from(home).join(rest)),
            None => Some(PathBuf::from(given)),
        }
    }

    /// Folder of caches: $XDG_CACHE_HOME or ~/.cache.
    pub(crate) fn cache_home(&self) -> Option<PathBuf> {
        let absolute = |folder: &PathBuf| folder.is_absolute();
        self.folder(&["XDG_CACHE_HOME"])
            .filter(absolute)
            .or_else(|| self.folder(&["HOME"]).filter(absolute).map(|home| home.join(".cache")))
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(variables: T) -> Self {
        Self { variables: variables.into_iter().collect() }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.variables.keys()).finish()
    }
}

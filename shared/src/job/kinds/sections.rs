//! A job's sections as they are stored.

use serde::{Deserialize, Serialize, de::DeserializeOwned, de::Error as _};
use serde_json::{Error, Map, Value};

/// The sections of a stored job, by their names, of which a kind takes its own.
pub(in crate::job) struct StoredSections(pub(in crate::job) Map<String, Value>);

impl StoredSections {
    /// # Errors
    /// It is not there, or is not what was written.
    pub(in crate::job) fn take<T: DeserializeOwned>(&mut self, section: &'static str) -> Result<T, Error> {
        serde_json::from_value(self.0.remove(section).ok_or_else(|| Error::missing_field(section))?)
    }

    /// The default of one that is not there.
    ///
    /// # Errors
    /// It is not what was written.
    pub(in crate::job) fn take_or_default<T: DeserializeOwned + Default>(
        &mut self,
        section: &'static str,
    ) -> Result<T, Error> {
        self.0.remove(section).map_or_else(|| Ok(T::default()), serde_json::from_value)
    }
}

/// A section of two parts, as it is written: what only one kind has of it stands before what it shares with others.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Joined<Own, Shared> {
    #[serde(flatten)]
    pub(super) own: Own,
    #[serde(flatten)]
    pub(super) shared: Shared,
}

//! A job as JSON and as TOML: one flat table of sections, of which a kind has some.

use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Map, Value};

use super::{CommonSpec, JobSpec, ModelSpec, OrdersSpec, OutputSpec, Work, kinds::StoredSections};

/// A language model as it is written: a job shows no key that it would refuse.
#[derive(Serialize)]
struct LanguageModel<'a> {
    base: &'a str,
    revision: &'a str,
}

/// The order is that of the text, which metadata and stored jobs have.
impl Serialize for JobSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let CommonSpec { name, model, cluster, debug, output, orders } = &self.common;
        let has_language_model = self.has_language_model();
        let mut sections = serializer.serialize_map(None)?;
        sections.serialize_entry("kind", &self.kind())?;
        sections.serialize_entry("name", name)?;
        if has_language_model {
            let ModelSpec { base, revision, .. } = model;
            sections.serialize_entry("model", &LanguageModel { base, revision })?;
        } else {
            sections.serialize_entry("model", model)?;
        }
        self.work.write(&mut sections)?;
        sections.serialize_entry("cluster", cluster)?;
        if !has_language_model {
            sections.serialize_entry("debug", debug)?;
        }
        // Earlier versions have no such sections.
        if *output != OutputSpec::default() {
            sections.serialize_entry("output", output)?;
        }
        if *orders != OrdersSpec::default() {
            sections.serialize_entry("orders", orders)?;
        }
        self.work.write_tables(&mut sections)?;
        sections.end()
    }
}

impl JobSpec {
    /// What was written, read without checks.
    ///
    /// # Errors
    /// Something that a job of its kind has is missing, or is not what was written.
    pub(super) fn read(sections: Map<String, Value>) -> Result<Self, serde_json::Error> {
        let mut sections = StoredSections(sections);
        let common = CommonSpec {
            name: sections.take("name")?,
            model: sections.take("model")?,
            cluster: sections.take("cluster")?,
            debug: sections.take_or_default("debug")?,
            output: sections.take_or_default("output")?,
            orders: sections.take_or_default("orders")?,
        };
        Ok(Self { common, work: Work::read(sections.take("kind")?, &mut sections)? })
    }
}

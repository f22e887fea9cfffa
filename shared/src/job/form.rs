//! A job as JSON and as TOML: one flat table of sections, of which a kind has some.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{
    ClusterSpec, CommonSpec, DebugSpec, JobDraft, JobKind, JobSpec, ModelSpec, Work,
    kinds::{
        generate::GenerateSpec,
        generate_text::GenerateTextSpec,
        gpt2_finetune::Gpt2Spec,
        textual_inversion::{ConceptSpec, DataSpec, TextualInversionSpec, TrainSpec},
    },
};

/// A job as it is written. The order of the fields is that of the text, which metadata and stored jobs have.
#[derive(Serialize)]
struct Written<'a> {
    kind: JobKind,
    name: &'a str,
    model: WrittenModel<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a DataSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    train: Option<&'a TrainSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generate: Option<&'a GenerateSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpt2: Option<&'a Gpt2Spec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generate_text: Option<&'a GenerateTextSpec>,
    cluster: &'a ClusterSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    debug: Option<&'a DebugSpec>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    concepts: &'a [ConceptSpec],
}

/// A model as it is written: a job shows no key that it would refuse.
#[derive(Serialize)]
#[serde(untagged)]
enum WrittenModel<'a> {
    Pictures(&'a ModelSpec),
    Language { base: &'a str, revision: &'a str },
}

impl<'a> WrittenModel<'a> {
    fn language(ModelSpec { base, revision, .. }: &'a ModelSpec) -> Self {
        Self::Language { base, revision }
    }
}

impl Serialize for JobSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let CommonSpec { name, model, cluster, debug } = &self.common;
        let written = Written {
            kind: self.kind(),
            name,
            model: WrittenModel::Pictures(model),
            data: None,
            train: None,
            generate: None,
            gpt2: None,
            generate_text: None,
            cluster,
            debug: Some(debug),
            concepts: &[],
        };
        let written = match &self.work {
            Work::TextualInversion(TextualInversionSpec { data, train, concepts }) => {
                let data = Some(data).filter(|data| !data.is_unused());
                Written { data, train: Some(train), concepts, ..written }
            }
            Work::Generate(generate) => Written { generate: Some(generate), ..written },
            Work::GenerateText(texts) => Written {
                generate_text: Some(texts),
                model: WrittenModel::language(model),
                debug: None,
                ..written
            },
            Work::Gpt2Finetune(gpt2) => {
                Written { gpt2: Some(gpt2), model: WrittenModel::language(model), debug: None, ..written }
            }
        };
        written.serialize(serializer)
    }
}

/// Fills in the defaults and checks every value, as for any other draft.
impl<'de> Deserialize<'de> for JobSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_draft(JobDraft::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// [`JobSpec`] as it was written, read without checks.
#[derive(Deserialize)]
pub(super) struct Unchecked {
    kind: JobKind,
    name: String,
    model: ModelSpec,
    #[serde(default)]
    data: DataSpec,
    train: Option<TrainSpec>,
    generate: Option<GenerateSpec>,
    gpt2: Option<Gpt2Spec>,
    generate_text: Option<GenerateTextSpec>,
    cluster: ClusterSpec,
    #[serde(default)]
    debug: DebugSpec,
    #[serde(default)]
    concepts: Vec<ConceptSpec>,
}

impl Unchecked {
    /// # Errors
    /// The section that a job of its kind has is missing.
    pub(super) fn into_spec(self) -> Result<JobSpec, serde_json::Error> {
        let Self { kind, name, model, data, train, generate, gpt2, generate_text, cluster, debug, concepts } =
            self;
        let missing = serde_json::Error::missing_field;
        let work = match kind {
            JobKind::TextualInversion => {
                let train = train.ok_or_else(|| missing("train"))?;
                Work::TextualInversion(TextualInversionSpec { data, train, concepts })
            }
            JobKind::Generate => Work::Generate(generate.ok_or_else(|| missing("generate"))?),
            JobKind::GenerateText => {
                Work::GenerateText(generate_text.ok_or_else(|| missing("generate_text"))?)
            }
            JobKind::Gpt2Finetune => Work::Gpt2Finetune(gpt2.ok_or_else(|| missing("gpt2"))?),
        };
        Ok(JobSpec { common: CommonSpec { name, model, cluster, debug }, work })
    }
}

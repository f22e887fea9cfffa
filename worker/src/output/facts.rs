//! Provenance of a learned embedding, as its files state it.

use std::collections::BTreeMap;

use ringtune_shared::ids::ContentHash;
use serde_json::{Value, json};

use super::{Learned, canonical_json};
use crate::engine::PredictionType;

/// The metadata entry that names the placeholder token. Prompts of `generate` use that word, whatever the tensor or
/// the file is called.
pub use ringtune_shared::embedding::PLACEHOLDER_ENTRY;

/// Provenance of a job's embeddings: all that decides their bits, and nothing else (no time, no job id, no path,
/// no ring size), so that equal runs write equal files.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingFacts {
    /// The job's name, for people.
    pub title: String,
    /// The model's name, without the folders around it. Where it has a commit it names the model for everybody
    /// and is in all files; else only the model card has it.
    pub base_model: String,
    /// Of a model from a hub, whose name is its repository's: the commit.
    pub base_model_commit: Option<String>,
    /// Hash of the model's weights.
    pub model_hash: String,
    /// Hash of the images' manifest.
    pub data_hash: String,
    /// The job spec as it was run, without places.
    pub job: Value,
    /// Numerics class of the ranks.
    pub numerics_class: String,
    /// Ringtune's version.
    pub version: String,
    /// Seed of all draws.
    pub seed: u64,
    /// Side of the training pictures, in pixels.
    pub resolution: u32,
    /// Prediction type of the model's UNet.
    pub prediction_type: PredictionType,
    /// The step after which training is over.
    pub max_train_steps: u64,
}

impl EmbeddingFacts {
    /// As the metadata entry `ringtune` has it: JSON with sorted keys.
    pub fn to_json(&self) -> String {
        canonical_json(&json!({
            "data_hash": self.data_hash,
            "job": self.job,
            "model_hash": self.model_hash,
            "numerics_class": self.numerics_class,
            "version": self.version,
        }))
    }

    /// SHA-256 of the canonical JSON of `job`, in hexadecimal.
    pub fn job_hash(&self) -> String {
        ContentHash::of(canonical_json(&self.job).as_bytes()).to_string()
    }

    /// "org/name@commit" of a model from a hub.
    pub fn base_model_reference(&self) -> Option<String> {
        let commit = self.base_model_commit.as_ref()?;
        Some(format!("{}@{commit}", self.base_model))
    }

    /// The entries of a file's `__metadata__`: `ringtune.*` one fact each, `ringtune` the rest, and `modelspec.*` as
    /// kohya's scripts write them (github.com/Stability-AI/ModelSpec), without its date.
    pub fn metadata(&self, learned: &Learned<'_>) -> BTreeMap<String, String> {
        let mut entries = BTreeMap::from([
            ("format", "pt".to_owned()),
            ("modelspec.implementation", "diffusers".to_owned()),
            ("modelspec.prediction_type", modelspec_prediction(self.prediction_type).to_owned()),
            ("modelspec.resolution", format!("{0}x{0}", self.resolution)),
            ("modelspec.title", self.title.clone()),
            ("ringtune", self.to_json()),
            ("ringtune.data_hash", self.data_hash.clone()),
            ("ringtune.job_hash", self.job_hash()),
            ("ringtune.model_hash", self.model_hash.clone()),
            (PLACEHOLDER_ENTRY, learned.concept.placeholder_token.clone()),
            ("ringtune.seed", self.seed.to_string()),
            ("ringtune.step", learned.step.to_string()),
            ("ringtune.version", self.version.clone()),
        ]);
        let concept = learned.concept;
        let (start, place) = match concept.initializer_embedding.is_empty() {
            true => ("ringtune.initializer_token", &concept.initializer_token),
            false => ("ringtune.initializer_embedding", &concept.initializer_embedding),
        };
        entries.insert(start, place.clone());
        if let Some(loss) = learned.validation_loss {
            entries.insert("ringtune.validation_loss", loss.to_string());
        }
        if let Some(reference) = self.base_model_reference() {
            entries.insert("ringtune.base_model", reference);
        }
        // Without an architecture that the specification knows, nothing claims to follow it.
        if let Some(architecture) = architecture(learned.shape()[1], self.prediction_type) {
            entries.insert("modelspec.architecture", format!("{architecture}/textual-inversion"));
            entries.insert("modelspec.sai_model_spec", "1.0.1".to_owned());
        }
        entries.into_iter().map(|(key, text)| (key.to_owned(), text)).collect()
    }
}

/// ModelSpec's names, which are kohya's. The text encoder's width tells SD 1.x from SD 2.x.
fn architecture(width: usize, prediction: PredictionType) -> Option<&'static str> {
    match (width, prediction) {
        (768, _) => Some("stable-diffusion-v1"),
        (1024, PredictionType::Epsilon) => Some("stable-diffusion-v2-512"),
        (1024, PredictionType::VPrediction) => Some("stable-diffusion-v2-768-v"),
        _ => None,
    }
}

fn modelspec_prediction(prediction: PredictionType) -> &'static str {
    match prediction {
        PredictionType::Epsilon => "epsilon",
        PredictionType::VPrediction => "v",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::output::{Concept, Taught};

    pub(crate) fn example() -> EmbeddingFacts {
        EmbeddingFacts {
            title: "my stars".to_owned(),
            base_model: "toy-sd".to_owned(),
            base_model_commit: None,
            model_hash: "m".to_owned(),
            data_hash: "d".to_owned(),
            job: json!({"train": {"seed": 7, "learning_rate": 0.002}, "kind": "textual_inversion"}),
            numerics_class: "c".to_owned(),
            version: "0.1.0".to_owned(),
            seed: 7,
            resolution: 64,
            prediction_type: PredictionType::Epsilon,
            max_train_steps: 9,
        }
    }

    pub(crate) fn learned(rows: &[f32]) -> Learned<'_> {
        static CONCEPT: LazyLock<Concept> = LazyLock::new(|| {
            let taught = Taught {
                placeholder_token: "<a>".to_owned(),
                initializer_token: "star".to_owned(),
                num_vectors: 2,
                ..Taught::default()
            };
            Concept::list(vec![taught]).remove(0)
        });
        Learned { concept: &CONCEPT, rows, step: 5, validation_loss: None }
    }

    #[test]
    fn every_fact_is_a_text_of_its_own() {
        let metadata = example().metadata(&learned(&[0.0; 6]));
        let expected = [
            ("format", "pt"),
            ("modelspec.implementation", "diffusers"),
            ("modelspec.prediction_type", "epsilon"),
            ("modelspec.resolution", "64x64"),
            ("modelspec.title", "my stars"),
            (
                "ringtune",
                r#"{"data_hash":"d","job":{"kind":"textual_inversion","train":{"learning_rate":0.002,"seed":7}},"model_hash":"m","numerics_class":"c","version":"0.1.0"}"#,
            ),
            ("ringtune.data_hash", "d"),
            ("ringtune.initializer_token", "star"),
            // printf '{"kind":"textual_inversion","train":{"learning_rate":0.002,"seed":7}}' | sha256sum
            ("ringtune.job_hash", "c320ae0f5e3def5018cd97ba34ea3984c58dfb0152da0808fbcef3792895cbe8"),
            ("ringtune.model_hash", "m"),
            ("ringtune.placeholder_token", "<a>"),
            ("ringtune.seed", "7"),
            ("ringtune.step", "5"),
            ("ringtune.version", "0.1.0"),
        ];
        let found: Vec<_> = metadata.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_validation_loss_is_a_fact_where_it_was_taken() {
        let judged = Learned { validation_loss: Some(0.125), ..learned(&[0.0; 6]) };
        let found = example().metadata(&judged).get("ringtune.validation_loss").cloned();
        assert_eq!(found.as_deref(), Some("0.125"));
    }

    #[test]
    fn a_checkpoint_of_a_hub_is_named_with_its_commit() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let facts = EmbeddingFacts {
            base_model: "acme/toy-sd".to_owned(),
            base_model_commit: Some(commit.to_owned()),
            ..example()
        };
        let metadata = facts.metadata(&learned(&[0.0; 6]));
        assert_eq!(metadata["ringtune.base_model"], format!("acme/toy-sd@{commit}"));
        assert!(!example().metadata(&learned(&[0.0; 6])).contains_key("ringtune.base_model"));
    }

    #[test]
    fn a_known_architecture_follows_modelspec() {
        let of = |width: usize, prediction_type| {
            let facts = EmbeddingFacts { prediction_type, ..example() };
            let metadata = facts.metadata(&learned(&vec![0.0; 2 * width]));
            ["modelspec.architecture", "modelspec.sai_model_spec", "modelspec.prediction_type"]
                .map(|key| metadata.get(key).cloned().unwrap_or_default())
        };
        let (epsilon, velocity) = (PredictionType::Epsilon, PredictionType::VPrediction);
        assert_eq!(of(768, epsilon), ["stable-diffusion-v1/textual-inversion", "1.0.1", "epsilon"]);
        assert_eq!(of(1024, epsilon)[0], "stable-diffusion-v2-512/textual-inversion");
        assert_eq!(of(1024, velocity), ["stable-diffusion-v2-768-v/textual-inversion", "1.0.1", "v"]);
        assert_eq!(of(64, epsilon), ["", "", "epsilon"]);
    }
}

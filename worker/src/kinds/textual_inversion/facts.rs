//! What a job's files say about where they come from.

use ringtune_shared::job::{
    kinds::textual_inversion::TextualInversionSpec,
    pictures::{OPTIONS_WITHOUT_EFFECT, PromptSpec},
};
use serde_json::{Value, json};

use super::prepare::Prepared;
use crate::{
    base_model::base_model_name, kinds::pictures::deciding_data, output::EmbeddingFacts, rank::Error,
    session::Assignment, training::deciding_job,
};

/// Everything that decides the learned bits and nothing that does not: where model and images lie is replaced by
/// what they are, and traces leave no mark.
pub(super) fn facts(
    assignment: &Assignment,
    job: &TextualInversionSpec,
    prepared: &Prepared,
) -> Result<EmbeddingFacts, Error> {
    let spec = &assignment.spec;
    let origin = prepared.base_model.origin.as_ref();
    let (train, data) = (&job.train, deciding_data(&job.data, &PromptSpec::default()));
    let mut job = deciding_job(assignment, &["model", "data", "debug"], "train", &OPTIONS_WITHOUT_EFFECT)?;
    if let Some(prediction) = spec.common.model.prediction_type {
        job.insert("model".to_owned(), json!({ "prediction_type": prediction.as_str() }));
    }
    if let Some(data) = data {
        job.insert("data".to_owned(), data);
    }
    let concepts = job.get_mut("concepts").and_then(Value::as_array_mut);
    for concept in concepts.into_iter().flatten().filter_map(Value::as_object_mut) {
        for key in ["images", "folders", "caption_column"] {
            concept.remove(key);
        }
    }
    Ok(EmbeddingFacts {
        title: spec.common.name.clone(),
        base_model: origin
            .map_or_else(|| base_model_name(&spec.common.model.base), |origin| origin.repository.clone()),
        base_model_commit: origin.map(|origin| origin.commit.clone()),
        model_hash: prepared.origin.model_hash.to_string(),
        data_hash: prepared.origin.data_hash.to_string(),
        job: Value::Object(job),
        numerics_class: prepared.origin.provenance.clone(),
        version: assignment.version.clone(),
        seed: train.seed,
        resolution: train.resolution,
        prediction_type: prepared.prediction_type,
        max_train_steps: train.max_train_steps,
    })
}

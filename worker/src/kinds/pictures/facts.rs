//! What a job's files say about where they come from.

use ringtune_shared::job::{
    JobSpec,
    pictures::{DataSpec, PromptSpec, TrainSpec},
};
use ringtune_sources::LocalModel;
use serde_json::{Map, Value, json};

use crate::{
    base_model::base_model_name, engine::PredictionType, output::EmbeddingFacts, session::Assignment,
    training::Origin,
};

/// What of `[data]` decides bits beside the pictures themselves.
pub(in crate::kinds) fn deciding_data(data: &DataSpec, prompt: &PromptSpec) -> Option<Value> {
    let texts = [("class_prompt", &prompt.class_prompt), ("instance_prompt", &prompt.instance_prompt)];
    let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
    let mut deciding: Map<String, Value> = texts.map(|(key, text)| (key.to_owned(), json!(text))).collect();
    if data.alpha_mask.is_some() {
        deciding.insert("alpha_mask".to_owned(), json!(true));
    }
    (!deciding.is_empty()).then_some(Value::Object(deciding))
}

/// Takes what says where things lie out of a job's deciding options: model and pictures stand there by what they are.
pub(in crate::kinds) fn without_places(job: &mut Map<String, Value>, spec: &JobSpec, data: Option<Value>) {
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
}

/// Those of learned rows. `job`: what of it decides bits.
pub(in crate::kinds) fn embedding_facts(
    assignment: &Assignment,
    train: &TrainSpec,
    job: Map<String, Value>,
    origin: &Origin,
    model: &LocalModel,
    prediction_type: PredictionType,
) -> EmbeddingFacts {
    let (spec, hub) = (&assignment.spec, model.origin.as_ref());
    EmbeddingFacts {
        title: spec.common.name.clone(),
        base_model: hub
            .map_or_else(|| base_model_name(&spec.common.model.base), |hub| hub.repository.clone()),
        base_model_commit: hub.map(|hub| hub.commit.clone()),
        model_hash: origin.model_hash.to_string(),
        data_hash: origin.data_hash.to_string(),
        job: Value::Object(job),
        numerics_class: origin.provenance.clone(),
        version: assignment.version.clone(),
        seed: train.seed,
        resolution: train.resolution,
        prediction_type,
        max_train_steps: train.max_train_steps,
    }
}

//! What a job's files say about where they come from.

use ringtune_shared::job::{
    kinds::textual_inversion::TextualInversionSpec,
    pictures::{OPTIONS_WITHOUT_EFFECT, PromptSpec},
};

use super::prepare::Prepared;
use crate::{
    kinds::pictures::{deciding_data, embedding_facts, without_places},
    output::EmbeddingFacts,
    rank::Error,
    session::Assignment,
    training::deciding_job,
};

/// Everything that decides the learned bits and nothing that does not: where model and images lie is replaced by
/// what they are, and traces leave no mark.
pub(super) fn facts(
    assignment: &Assignment,
    job: &TextualInversionSpec,
    prepared: &Prepared,
) -> Result<EmbeddingFacts, Error> {
    let mut deciding =
        deciding_job(assignment, &["model", "data", "debug"], "train", &OPTIONS_WITHOUT_EFFECT)?;
    without_places(&mut deciding, &assignment.spec, deciding_data(&job.data, &PromptSpec::default()));
    let Prepared { origin, base_model, prediction_type, .. } = prepared;
    Ok(embedding_facts(assignment, &job.train, deciding, origin, base_model, *prediction_type))
}

//! Texts without a job: what a rank would read, looked at on this machine alone. Nothing is loaded or computed.

use ringtune_shared::{
    ids::ContentHash,
    job::{JobSpec, kinds::generate_text::GenerateTextSpec},
};

use super::prepare::read_prompts;
use crate::{
    engine::Precision,
    kinds::rehearsal::{Alone, alone},
    rank::{Context, Error},
};

/// What was looked at.
#[derive(Clone, Debug)]
pub struct RehearsedTexts {
    /// The files of the model that are used.
    pub model_files: Vec<String>,
    /// They, by content.
    pub model_hash: ContentHash,
    /// Tokens of each prompt.
    pub prompt_tokens: Vec<usize>,
    /// What preparation warned of.
    pub warnings: Vec<String>,
}

/// Brings the job's model here, and reads its prompts with its tokenizer.
///
/// # Errors
/// What would end the job.
pub async fn rehearse_texts(
    spec: JobSpec,
    job: GenerateTextSpec,
    computes: (Precision, usize),
    context: &Context,
) -> Result<RehearsedTexts, Error> {
    let Alone { prepared, warnings, .. } = alone(spec, computes, context, async |rank| {
        let model = rank.bring_language_model(true).await?;
        let (_, prompts) = read_prompts(&model, &job).await?;
        Ok((model, prompts))
    })
    .await?;
    let (model, prompts) = prepared;
    let prompt_tokens = prompts.iter().map(Vec::len).collect();
    Ok(RehearsedTexts { model_files: model.files, model_hash: model.hash, prompt_tokens, warnings })
}

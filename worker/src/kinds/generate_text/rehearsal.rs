//! Texts without a job: what a rank would read, looked at on this machine alone. Nothing is loaded or computed.

use ringtune_shared::job::{JobSpec, kinds::generate_text::GenerateTextSpec};

use crate::{
    kinds::{
        rehearsal::{Alone, As, Found, TextsReport, alone},
        texts::Prompts,
    },
    rank::{Context, Error},
};

/// Brings the job's model here, and reads its prompts with its tokenizer.
///
/// # Errors
/// What would end the job.
pub(in crate::kinds) async fn rehearse(
    spec: &JobSpec,
    job: &GenerateTextSpec,
    with: As,
    context: &Context,
) -> Result<Found, Error> {
    let Alone { prepared: (model, prompts), warnings, .. } = alone(spec, with, context, async |rank| {
        let model = rank.bring_language_model(true).await?;
        let prompts = Prompts::read(&model.folder, job.prompts.clone()).await?;
        Ok((model, prompts))
    })
    .await?;
    let texts = TextsReport {
        base: spec.common.model.base.clone(),
        sha256: model.hash.to_string(),
        files: model.files,
        prompt_tokens: prompts.tokens.iter().map(Vec::len).collect(),
        texts: job.texts(),
        max_new_tokens: job.max_new_tokens,
    };
    Ok(Found { warnings, texts: Some(texts), ..Found::default() })
}

//! What a rank does before it makes texts: the model, its tokenizer, and the prompts' tokens.

use std::sync::Arc;

use ringtune_shared::{ids::ContentHash, job::kinds::generate_text::GenerateTextSpec};
use ringtune_sources::LocalModel;
use ringtune_text::Tokenizer;

use crate::{
    base_model::LanguageModelFiles,
    engine::{LanguageModelSource, OpenTextModel, TextModelInfo},
    fault::Refusal,
    generate_text::{GenerationOptions, Sampling, prompt_tokens},
    rank::{Error, Rank},
    session::{Progress, ProgressStage, RankEvent},
};

/// What texts follow from.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) tokenizer: Arc<Tokenizer>,
    /// Of each prompt, one at least.
    pub(super) prompts: Vec<Vec<i64>>,
    pub(super) options: GenerationOptions,
    pub(super) n_positions: usize,
    pub(super) model_hash: ContentHash,
    /// Held as long as it may be read.
    pub(super) _model: Arc<LocalModel>,
}

/// Prepares a rank. Every failure names the job's field or the file.
pub(super) async fn prepare(rank: &Rank, spec: &GenerateTextSpec) -> Result<Prepared, Error> {
    let model = rank.bring_language_model(true).await?;
    let (tokenizer, prompts) = read_prompts(&model, spec).await?;
    let loading = Progress { stage: ProgressStage::Load, done: 0, total: 0 };
    rank.journal.event(RankEvent::Progress(loading)).await;
    let request = OpenTextModel {
        source: LanguageModelSource::folder(model.folder.clone()),
        precision: rank.assignment.precision,
        threads: rank.assignment.threads,
    };
    let info = rank.context.engine.open_text_model(request).await.map_err(Error::of_engine)?;
    check_tokens(&prompts, info)?;
    let LanguageModelFiles { hash, name, local, .. } = model;
    rank.journal.info(format!("model: {name} ({hash})")).await;
    Ok(Prepared {
        options: options(spec, &tokenizer, info),
        tokenizer,
        prompts,
        n_positions: info.n_positions,
        model_hash: hash,
        _model: local,
    })
}

/// The model's tokenizer, and what it makes of the prompts.
pub(super) async fn read_prompts(
    model: &LanguageModelFiles,
    spec: &GenerateTextSpec,
) -> Result<(Arc<Tokenizer>, Vec<Vec<i64>>), Error> {
    let (folder, prompts) = (model.folder.clone(), spec.prompts.clone());
    let read = move || {
        let tokenizer = Tokenizer::open(&folder).map_err(|error| error.to_string())?;
        let tokens = prompts.iter().map(|prompt| prompt_tokens(&tokenizer, prompt));
        let tokens = tokens.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok::<_, String>((Arc::new(tokenizer), tokens))
    };
    let read = ringtune_shared::tasks::spawn_blocking(read).await?;
    Ok(read.map_err(|problem| Refusal::of("model.base", problem))?)
}

fn check_tokens(prompts: &[Vec<i64>], info: TextModelInfo) -> Result<(), Refusal> {
    let unknown = prompts.iter().flatten().find(|token| **token >= info.vocab_size as i64);
    let Some(token) = unknown else { return Ok(()) };
    let problem = format!(
        "its tokenizer gives the token {token}, and it has those from 0 to {}: they are not of one model",
        info.vocab_size - 1
    );
    Err(Refusal::of("model.base", problem))
}

fn options(spec: &GenerateTextSpec, tokenizer: &Tokenizer, info: TextModelInfo) -> GenerationOptions {
    let GenerateTextSpec { temperature, top_k, top_p, .. } = *spec;
    GenerationOptions {
        sampling: Sampling { temperature, top_k, top_p },
        seed: spec.seed,
        max_new_tokens: spec.max_new_tokens as usize,
        stop_at: spec.stop_at_end_of_text.then_some(i64::from(tokenizer.end_of_text())),
        tokens: info.vocab_size.min(tokenizer.vocabulary_size() as usize),
    }
}

#[cfg(test)]
mod tests {
    use ringtune_shared::job::kinds::generate_text;

    use super::*;
    use crate::generate_text::{COLDEST, HOTTEST};

    #[test]
    fn the_jobs_bounds_are_the_samplings() {
        assert_eq!((generate_text::COLDEST, generate_text::HOTTEST), (COLDEST, HOTTEST));
    }

    #[test]
    fn a_tokenizer_of_another_model_is_refused() {
        let info = TextModelInfo { vocab_size: 10, n_positions: 4 };
        assert!(check_tokens(&[vec![0, 9]], info).is_ok());
        let refused = check_tokens(&[vec![0], vec![9, 10]], info).unwrap_err();
        assert_eq!(refused.field, "model.base");
        assert!(
            refused.problem.contains("the token 10, and it has those from 0 to 9"),
            "{}",
            refused.problem
        );
    }
}

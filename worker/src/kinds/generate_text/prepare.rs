//! What a rank does before it makes texts: the model, its tokenizer, and the prompts' tokens.

use std::sync::Arc;

use ringtune_shared::{ids::ContentHash, job::kinds::generate_text::GenerateTextSpec};
use ringtune_sources::LocalModel;

use crate::{
    base_model::LanguageModelFiles,
    engine::{LanguageModelSource, OpenTextModel},
    generate_text::Sampling,
    kinds::texts::{Prompts, TextOptions, Texts},
    rank::{Error, Rank},
    session::{Progress, ProgressStage, RankEvent},
};

/// What texts follow from.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) texts: Texts,
    pub(super) model_hash: ContentHash,
    /// Held as long as it may be read.
    pub(super) _model: Arc<LocalModel>,
}

/// Prepares a rank. Every failure names the job's field or the file.
pub(super) async fn prepare(rank: &Rank, spec: &GenerateTextSpec) -> Result<Prepared, Error> {
    let model = rank.bring_language_model(true).await?;
    let prompts = Prompts::read(&model.folder, spec.prompts.clone()).await?;
    let loading = Progress { stage: ProgressStage::Load, done: 0, total: 0 };
    rank.journal.event(RankEvent::Progress(loading)).await;
    let request = OpenTextModel {
        source: LanguageModelSource::folder(model.folder.clone()),
        precision: rank.assignment.precision,
        threads: rank.assignment.threads,
    };
    let info = rank.context.engine.open_text_model(request).await.map_err(Error::of_engine)?;
    let texts = Texts::new(prompts, options(spec), info)?;
    let LanguageModelFiles { hash, name, local, .. } = model;
    rank.journal.info(format!("model: {name} ({hash})")).await;
    Ok(Prepared { texts, model_hash: hash, _model: local })
}

fn options(spec: &GenerateTextSpec) -> TextOptions {
    let GenerateTextSpec { temperature, top_k, top_p, seed, max_new_tokens, stop_at_end_of_text, .. } = *spec;
    let sampling = Sampling { temperature, top_k, top_p };
    TextOptions { sampling, seed, max_new_tokens: max_new_tokens as usize, stop_at_end_of_text }
}

#[cfg(test)]
mod tests {
    use ringtune_shared::job::kinds::generate_text;

    use crate::generate_text::{COLDEST, HOTTEST};

    #[test]
    fn the_jobs_bounds_are_the_samplings() {
        assert_eq!((generate_text::COLDEST, generate_text::HOTTEST), (COLDEST, HOTTEST));
    }
}

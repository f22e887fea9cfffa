//! What a rank does before it draws: embeddings, base model, words and sizes.

use std::sync::Arc;

use ringtune_shared::{
    embedding::LARGEST_FILE,
    ids::{ContentHash, ContentHasher},
    job::{EmbeddingPlace, PathUse, kinds::generate::GenerateSpec},
};
use ringtune_sources::LocalModel;

use super::error::refused;
use crate::{
    access::ConfinedPath,
    contents::one_file,
    engine::SamplerKind,
    fault::Refusal,
    generate::{Drawing, EmbeddingFile, ModelName, PictureOptions, sheet},
    rank::{Context, Error, Rank},
    session::{Progress, ProgressStage, RankEvent},
};

/// The job's field that names embeddings.
const FIELD: &str = "generate.embeddings";

/// What the pictures follow from.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) drawing: Arc<Drawing>,
    pub(super) model: ModelName,
    /// Of the embeddings' files, in their order.
    pub(super) embeddings: ContentHash,
    /// Held as long as it may be read.
    pub(super) _base_model: Arc<LocalModel>,
}

/// Prepares a rank. Every failure names the job's field or the file.
pub(super) async fn prepare(rank: &Rank, spec: &GenerateSpec) -> Result<Prepared, Error> {
    let Rank { assignment, journal, .. } = rank;
    // 1. The embeddings.
    let files = fetch_all(rank, spec).await?;
    // 2. The base model; its hash is taken beside.
    let mut loaded = rank.load_model(None, false).await?;
    // 3. Words and sizes.
    let (options, tokenizer, info) = (options(spec), loaded.tokenizer.clone(), loaded.info.clone());
    let resolve = move || Drawing::new(options, &tokenizer, info, &files);
    let drawing = ringtune_shared::tasks::spawn_blocking(resolve).await?.map_err(refused)?;
    for token in drawing.unused() {
        let warning = "which an embedding teaches: it changes no picture (generate.tokens names its word)";
        journal.warn(format!("generate.prompts: none has the word {token}, {warning}")).await;
    }
    let (rows, columns) = (spec.prompts.len(), spec.count as usize);
    if spec.sheet && !sheet::fits(rows, columns, drawing.size()) {
        let problem = "so many pictures of this size make too large a sheet";
        return Err(Refusal::of("generate.sheet", problem).into());
    }
    let model = ModelName {
        name: loaded.name(&assignment.spec),
        hash: loaded.finish(journal, std::future::ready(Ok::<_, Error>(()))).await?.0,
    };
    let (sampler, (width, height)) = (drawing.sampler(), drawing.size());
    journal.info(format!("model: {} ({})", model.name, model.hash)).await;
    journal.info(format!("scheduler {sampler}, {} steps, {width} x {height}", spec.steps)).await;
    let mut embeddings = ContentHasher::new();
    drawing.embedding_hashes().for_each(|hash| embeddings.update(&hash.0));
    Ok(Prepared {
        drawing: Arc::new(drawing),
        model,
        embeddings: embeddings.finish(),
        _base_model: loaded.local,
    })
}

/// The embeddings as files of this machine. The cache keeps its bound, also when something is not to be had.
async fn fetch_all(rank: &Rank, spec: &GenerateSpec) -> Result<Vec<EmbeddingFile>, Error> {
    let fetching = async {
        let total = spec.embeddings.len() as u64;
        let mut files = Vec::with_capacity(spec.embeddings.len());
        let words = spec.tokens.iter().map(String::as_str).chain(std::iter::repeat(""));
        for ((done, embedding), word) in (0..).zip(&spec.embeddings).zip(words) {
            let progress = Progress { stage: ProgressStage::Fetch, done, total };
            rank.journal.event(RankEvent::Progress(progress)).await;
            files.push(fetch(embedding, &rank.context).await?.with_token(word));
        }
        Ok::<_, Error>(files)
    };
    let files = fetching.await;
    let (cache, needed) = (rank.context.cache.clone(), uploaded(spec));
    ringtune_shared::tasks::spawn_blocking(move || cache.trim(&needed)).await?;
    files
}

fn uploaded(spec: &GenerateSpec) -> Vec<ContentHash> {
    let uploaded = |embedding: &String| match EmbeddingPlace::parse(embedding) {
        Ok(EmbeddingPlace::Uploaded { hash, .. }) => Some(hash),
        _ => None,
    };
    spec.embeddings.iter().filter_map(uploaded).collect()
}

async fn fetch(embedding: &str, context: &Context) -> Result<EmbeddingFile, Error> {
    match EmbeddingPlace::parse(embedding) {
        Ok(EmbeddingPlace::File(name)) => {
            let (access, given) = (context.access.clone(), name.clone());
            let place = move || access.place(PathUse::Embedding, FIELD, &given);
            let place = ringtune_shared::tasks::spawn_blocking(place).await??;
            Ok(EmbeddingFile { place, name, token: String::new() })
        }
        Ok(EmbeddingPlace::Uploaded { hash, name }) => {
            one_file(hash, LARGEST_FILE, &context.artifacts, &context.cache).await?;
            Ok(EmbeddingFile {
                place: ConfinedPath::at(context.cache.path(hash)),
                name,
                token: String::new(),
            })
        }
        Err(problem) => Err(Refusal::of(FIELD, problem).into()),
    }
}

fn options(spec: &GenerateSpec) -> PictureOptions {
    let given = |side: u32| (side > 0).then_some(side);
    PictureOptions {
        prompts: spec.prompts.clone(),
        negative_prompt: spec.negative_prompt.clone(),
        scheduler: SamplerKind::from_name(&spec.scheduler),
        steps: spec.steps,
        guidance: spec.guidance_scale,
        seed: spec.seed,
        count: spec.count,
        batch: spec.batch,
        width: given(spec.width),
        height: given(spec.height),
    }
}

#[cfg(test)]
mod tests {
    use ringtune_shared::job::kinds::generate::SCHEDULERS;

    use super::*;

    #[test]
    fn the_jobs_schedulers_are_the_engines() {
        assert_eq!(SCHEDULERS, SamplerKind::ALL.map(SamplerKind::name));
        assert_eq!(SamplerKind::from_name(""), None);
    }
}

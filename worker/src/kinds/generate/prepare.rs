//! What a rank does before it draws: embeddings, base model, words and sizes.

use std::sync::Arc;

use ringtune_shared::{
    embedding::LARGEST_FILE,
    ids::{ContentHash, ContentHasher},
    job::{
        FilePlace, PathUse,
        kinds::generate::{DrawnLora, GenerateSpec},
    },
};
use ringtune_sources::LocalModel;

use super::error::refused;
use crate::{
    access::ConfinedPath,
    contents::one_file,
    engine::SamplerKind,
    fault::Refusal,
    generate::{
        Drawing, EmbeddingFile, LARGEST_LORA, LoraChoice, ModelName, PictureOptions, put_loras, sheet,
    },
    rank::{Context, Error, Rank},
    session::{Progress, ProgressStage, RankEvent},
};

/// What the pictures follow from.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) drawing: Arc<Drawing>,
    pub(super) model: ModelName,
    /// Of the files of embeddings and LoRAs, in their order, with the LoRAs' weights.
    pub(super) files: ContentHash,
    /// Held as long as it may be read.
    pub(super) _base_model: Arc<LocalModel>,
}

/// Prepares a rank. Every failure names the job's field or the file.
pub(super) async fn prepare(rank: &Rank, spec: &GenerateSpec) -> Result<Prepared, Error> {
    let Rank { assignment, journal, .. } = rank;
    // 1. The embeddings and LoRAs.
    let (files, loras) = fetch_all(rank, spec).await?;
    // 2. The base model; its hash is taken beside.
    let mut loaded = rank.load_model(None, false, None).await?;
    let known = put_loras(&rank.context.engine, loaded.info.text_width, loras).await.map_err(refused)?;
    // 3. Words and sizes.
    let (options, tokenizer, info) = (options(spec), loaded.tokenizer.clone(), loaded.info.clone());
    let resolve = move || Drawing::new(options, &tokenizer, info, &files);
    let drawing = ringtune_shared::tasks::spawn_blocking(resolve).await?.map_err(refused)?.with_loras(known);
    for warning in drawing.warnings() {
        journal.warn(format!("generate.prompts: {warning}")).await;
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
    let mut files = ContentHasher::new();
    drawing.embedding_hashes().for_each(|hash| files.update(&hash.0));
    for lora in drawing.loras() {
        files.update(&lora.hash.0);
        files.update(&lora.weight.to_le_bytes());
    }
    Ok(Prepared { drawing: Arc::new(drawing), model, files: files.finish(), _base_model: loaded.local })
}

/// The embeddings and LoRAs as files of this machine. The cache keeps its bound, also when something is not to be had.
async fn fetch_all(rank: &Rank, spec: &GenerateSpec) -> Result<(Vec<EmbeddingFile>, Vec<LoraChoice>), Error> {
    let fetching = async {
        let total = (spec.embeddings.len() + spec.loras.len()) as u64;
        let (mut embeddings, mut loras) = (Vec::new(), Vec::new());
        let mut done = 0;
        let words = spec.tokens.iter().map(String::as_str).chain(std::iter::repeat(""));
        for (embedding, word) in spec.embeddings.iter().zip(words) {
            tell(rank, done, total).await;
            let (place, name) = fetch("generate.embeddings", embedding, LARGEST_FILE, &rank.context).await?;
            embeddings.push(EmbeddingFile { place, name, token: word.to_owned() });
            done += 1;
        }
        for DrawnLora { file, weight } in &spec.loras {
            tell(rank, done, total).await;
            let (place, name) = fetch("generate.loras", file, LARGEST_LORA, &rank.context).await?;
            loras.push(LoraChoice { place, name, weight: *weight });
            done += 1;
        }
        Ok::<_, Error>((embeddings, loras))
    };
    let files = fetching.await;
    let (cache, needed) = (rank.context.cache.clone(), uploaded(spec));
    ringtune_shared::tasks::spawn_blocking(move || cache.trim(&needed)).await?;
    files
}

async fn tell(rank: &Rank, done: u64, total: u64) {
    rank.journal.event(RankEvent::Progress(Progress { stage: ProgressStage::Fetch, done, total })).await;
}

fn uploaded(spec: &GenerateSpec) -> Vec<ContentHash> {
    let files = spec.embeddings.iter().chain(spec.loras.iter().map(|lora| &lora.file));
    let uploaded = |file: &String| match FilePlace::parse(file) {
        Ok(FilePlace::Uploaded { hash, .. }) => Some(hash),
        _ => None,
    };
    files.filter_map(uploaded).collect()
}

/// A file that `field` names, and its name.
async fn fetch(
    field: &'static str,
    given: &str,
    largest: u64,
    context: &Context,
) -> Result<(ConfinedPath, String), Error> {
    match FilePlace::parse(given) {
        Ok(FilePlace::File(name)) => {
            let (access, given) = (context.access.clone(), name.clone());
            let place = move || access.place(PathUse::Embedding, field, &given);
            Ok((ringtune_shared::tasks::spawn_blocking(place).await??, name))
        }
        Ok(FilePlace::Uploaded { hash, name }) => {
            one_file(hash, largest, &context.artifacts, &context.cache).await?;
            Ok((ConfinedPath::at(context.cache.path(hash)), name))
        }
        Err(problem) => Err(Refusal::of(field, problem).into()),
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

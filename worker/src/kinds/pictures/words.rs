//! What words that a job learns are in the model's vocabulary.

use std::{path::Path, sync::Arc};

use ringtune_shared::job::pictures::{
    TrainSpec,
    concepts::{ConceptSpec, LearnableProperty},
};

use super::{
    initializers::Initializer,
    prepare::{open_tokenizer, previews_of},
};

use crate::{
    data::{self, Placeholders, Prompts, caption_words::CaptionOptions, prompts::Caption, templates},
    engine::{EngineHandle, ModelInfo},
    inputs,
    output::Taught,
    rank::Error,
    training::PreviewPlan,
};

/// One concept's words.
#[derive(Debug)]
pub(in crate::kinds) struct ConceptWords {
    /// Its templates, filled in and encoded.
    pub(in crate::kinds) prompts: Prompts,
    /// The tokens whose rows its rows start from, one for each; none where it starts from an embedding.
    initializers: Vec<i64>,
}

/// Looks up and adds the words of all concepts, in their order; and what pictures are drawn from while training goes
/// on. Blocks. `field`: the full name of a concept's field, for messages. `captions`: of each concept's pictures.
///
/// # Errors
/// A word that the vocabulary makes impossible; a tokenizer that is not the text encoder's.
pub(in crate::kinds) fn read(
    concepts: &[ConceptSpec],
    field: impl Fn(usize, &str) -> String,
    train: &TrainSpec,
    model: &ModelInfo,
    folder: &Path,
    captions: Vec<Vec<Caption>>,
) -> Result<(Vec<ConceptWords>, PreviewPlan), Error> {
    let mut tokenizer = open_tokenizer(folder, model)?;
    let blame = |index: usize, key: &str| {
        let field = field(index, key);
        move |error: data::Error| inputs::Error::from(error).in_field(&field)
    };
    // 1. The initializers, before the placeholders are there: they can never be one of them.
    let mut initializers = Vec::with_capacity(concepts.len());
    for (index, concept) in concepts.iter().enumerate() {
        if concept.initializer_token.is_empty() {
            initializers.push(Vec::new());
            continue;
        }
        let found = tokenizer.initializer_ids(&concept.initializer_token, concept.num_vectors as usize);
        initializers.push(found.map_err(blame(index, "initializer_token"))?);
    }
    // 2. The placeholders, whose ids count up from the vocabulary's size.
    let mut placeholders: Vec<Placeholders> = Vec::with_capacity(concepts.len());
    for (index, concept) in concepts.iter().enumerate() {
        let added = tokenizer.add_placeholders(&concept.placeholder_token, concept.num_vectors as usize);
        placeholders.push(added.map_err(blame(index, "placeholder_token"))?);
    }
    // 3. The prompts, in which all of them are known.
    let tokenizer = Arc::new(tokenizer);
    let options = CaptionOptions { shuffle_tags: train.shuffle_tags, keep_tags: train.keep_tags as usize };
    let mut words = Vec::with_capacity(concepts.len());
    for (index, ((concept, initializers), captions)) in
        concepts.iter().zip(initializers).zip(captions).enumerate()
    {
        let (own, others) = own_and_others(&placeholders, index);
        let known = data::prompts::ConceptWords { tokenizer: &tokenizer, placeholders: own, others: &others };
        let prompts =
            prompts(concept, &known).and_then(|prompts| prompts.with_captions(&known, captions, options));
        words.push(ConceptWords { prompts: prompts.map_err(blame(index, "templates"))?, initializers });
    }
    // 4. What is drawn.
    let several = placeholders.iter().filter(|placeholders| placeholders.tokens.len() > 1);
    let several = several.map(|placeholders| (placeholders.tokens[0].clone(), placeholders.text()));
    let previews = previews_of(train, model, tokenizer, several.collect())?;
    Ok((words, previews))
}

fn own_and_others(all: &[Placeholders], index: usize) -> (&Placeholders, Vec<Placeholders>) {
    let others = all.iter().enumerate().filter(|(other, _)| *other != index);
    (&all[index], others.map(|(_, other)| other.clone()).collect())
}

fn prompts(concept: &ConceptSpec, words: &data::prompts::ConceptWords<'_>) -> Result<Prompts, data::Error> {
    if !concept.templates.is_empty() {
        return Prompts::encode(words, &concept.templates);
    }
    let templates: &[&str] = match concept.learnable_property {
        LearnableProperty::Object => &templates::OBJECT,
        LearnableProperty::Style => &templates::STYLE,
    };
    Prompts::encode(words, templates)
}

/// What the rows of all concepts are before the first step, [rows, width] flat.
///
/// # Errors
/// An embedding was learned for a text encoder of another width; the engine's.
pub(in crate::kinds) async fn first_rows(
    words: &[ConceptWords],
    starts: Vec<Option<Initializer>>,
    width: usize,
    engine: &EngineHandle,
) -> Result<Vec<f32>, Error> {
    let mut rows = Vec::new();
    for (word, start) in words.iter().zip(starts) {
        rows.extend(start.map(|start| start.rows(width)).transpose()?.unwrap_or_default());
        for initializer in &word.initializers {
            rows.extend(engine.token_row(*initializer).await.map_err(Error::of_engine)?);
        }
    }
    Ok(rows)
}

/// As files have it.
pub(in crate::kinds) fn taught(concept: ConceptSpec) -> Taught {
    Taught {
        placeholder_token: concept.placeholder_token,
        initializer_token: concept.initializer_token,
        initializer_embedding: concept.initializer_embedding,
        num_vectors: concept.num_vectors as usize,
    }
}

//! Texts of a language model that an engine has open, one after the other.

use std::path::Path;

use ringtune_text::{TextStream, Tokenizer};

pub(super) use crate::generate_text::TextOptions;
use crate::{
    engine::{EngineHandle, TextContext, TextModelInfo},
    fault::Refusal,
    generate_text::{self, Generation, GenerationOptions, Next, prompt_tokens},
    output::texts::MadeText,
    rank::Error,
};

/// What the texts begin with, in words and in a model's tokens.
#[derive(Debug)]
pub(super) struct Prompts {
    tokenizer: Tokenizer,
    words: Vec<String>,
    /// Of each prompt, one at least.
    pub(super) tokens: Vec<Vec<i64>>,
}

impl Prompts {
    /// Reads them with the tokenizer of a model's folder.
    ///
    /// # Errors
    /// There is none, or none for these prompts.
    pub(super) async fn read(model: &Path, words: Vec<String>) -> Result<Self, Error> {
        let folder = model.to_owned();
        let read = move || {
            let tokenizer = Tokenizer::open(&folder)?;
            let tokens =
                words.iter().map(|words| prompt_tokens(&tokenizer, words)).collect::<Result<_, _>>()?;
            Ok::<_, ringtune_text::Error>(Self { tokenizer, words, tokens })
        };
        let read = ringtune_shared::tasks::spawn_blocking(read).await?;
        Ok(read.map_err(|problem| Refusal::of("model.base", problem.to_string()))?)
    }

    fn check(&self, info: TextModelInfo) -> Result<(), Refusal> {
        let unknown = self.tokens.iter().flatten().find(|token| **token >= info.vocab_size as i64);
        let Some(token) = unknown else { return Ok(()) };
        let problem = format!(
            "its tokenizer gives the token {token}, and it has those from 0 to {}: they are not of one model",
            info.vocab_size - 1
        );
        Err(Refusal::of("model.base", problem))
    }
}

/// One of the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextNumber {
    /// From 0, of those that were read.
    pub(super) prompt: u32,
    /// From 0, among the texts of that prompt.
    pub(super) sample: u32,
}

/// Makes them.
#[derive(Debug)]
pub(super) struct Texts {
    prompts: Prompts,
    info: TextModelInfo,
    options: GenerationOptions,
    /// Of the prompt that it was last begun with, which is then not computed again. None while a text is made: one that is
    /// dropped half-way cannot be gone on with.
    generation: Option<(u32, Generation)>,
}

impl Texts {
    /// `info`: of the model that the engine has open.
    ///
    /// # Errors
    /// The tokenizer is another model's.
    pub(super) fn new(prompts: Prompts, options: TextOptions, info: TextModelInfo) -> Result<Self, Refusal> {
        prompts.check(info)?;
        let options = options.of_model(info, &prompts.tokenizer);
        Ok(Self { prompts, info, options, generation: None })
    }

    /// A whole text.
    ///
    /// # Errors
    /// The engine's; logits that are not finite.
    pub(super) async fn make(
        &mut self,
        engine: &EngineHandle,
        TextNumber { prompt, sample }: TextNumber,
    ) -> Result<MadeText, Error> {
        let mut generation = self.take_generation(engine, prompt);
        generation.begin(sample);
        let (mut stream, mut text) = (TextStream::new(), String::new());
        let ended = loop {
            match generation.next().await.map_err(refused)? {
                Next::Token(token) => {
                    let token = u32::try_from(token).unwrap_or(u32::MAX);
                    text.push_str(&stream.push(self.prompts.tokenizer.bytes(token)));
                }
                Next::Ended(ended) => break ended,
            }
        };
        text.push_str(&stream.finish());
        let (all, tokens) = (generation.context().tokens(), generation.context().made().to_vec());
        let made = MadeText {
            prompt_number: prompt,
            sample,
            prompt: self.prompts.words.get(prompt as usize).cloned().unwrap_or_default(),
            text,
            prompt_tokens: all[..all.len() - tokens.len()].to_vec(),
            tokens,
            ended: ended.name().to_owned(),
        };
        self.generation = Some((prompt, generation));
        Ok(made)
    }

    /// The generation of a prompt's texts.
    fn take_generation(&mut self, engine: &EngineHandle, prompt: u32) -> Generation {
        match self.generation.take() {
            Some((of, generation)) if of == prompt => generation,
            _ => {
                let tokens = self.prompts.tokens.get(prompt as usize).cloned().unwrap_or_default();
                let context = TextContext::new(tokens, self.info.n_positions);
                Generation::new(engine.clone(), self.options, context)
            }
        }
    }
}

/// What the command line says of its options and files, by the job's fields.
fn refused(error: generate_text::Error) -> Error {
    match error {
        generate_text::Error::Engine(error) => Error::of_engine(error),
        generate_text::Error::Model(error) => crate::base_model::Error::Source(error).into(),
        generate_text::Error::Task(error) => Error::Task(error),
        other @ (generate_text::Error::Option { .. }
        | generate_text::Error::Prompt { .. }
        | generate_text::Error::Text(_)
        | generate_text::Error::Vocabulary { .. }
        | generate_text::Error::NotFinite(_)
        | generate_text::Error::Output(_)
        | generate_text::Error::Stopped) => Refusal::of("model.base", other.to_string()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tokenizer_of_another_model_is_refused() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/bpe-tokenizer");
        let prompts = Prompts::read(Path::new(folder), vec!["<|endoftext|>".to_owned()]).await.unwrap();
        assert!(prompts.check(TextModelInfo { vocab_size: 557, n_positions: 4 }).is_ok());
        let refused = prompts.check(TextModelInfo { vocab_size: 556, n_positions: 4 }).unwrap_err();
        assert_eq!(refused.field, "model.base");
        assert!(
            refused.problem.contains("the token 556, and it has those from 0 to 555"),
            "{}",
            refused.problem
        );
    }
}

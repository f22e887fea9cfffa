//! The making of texts behind one prompt: the engine has the model, and here is which token comes next. Whoever wants texts
//! asks for one token after the other; the command is one of those.

use ringtune_text::Tokenizer;

use super::{
    Error,
    sampling::{DrawName, Sampling},
};
use crate::{
    engine::{EngineHandle, TextContext, TextModelInfo},
    output::texts::END_OF_TEXT,
};

/// The options that decide texts, of any model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextOptions {
    /// Sampling of each token.
    pub sampling: Sampling,
    /// Seed of all draws.
    pub seed: u64,
    /// Tokens behind the prompt, at most.
    pub max_new_tokens: usize,
    /// Whether the end-of-text token ends a text, and is no part of it.
    pub stop_at_end_of_text: bool,
}

impl TextOptions {
    /// The command's, and those of texts that are ordered. Temperature, `top_k` and seed are those of nanoGPT's sample.py.
    pub const DEFAULT: Self = Self {
        sampling: Sampling { temperature: 0.8, top_k: 200, top_p: 1.0 },
        seed: 1337,
        max_new_tokens: 200,
        stop_at_end_of_text: true,
    };

    /// For a model and its tokenizer.
    pub fn of_model(self, model: TextModelInfo, tokenizer: &Tokenizer) -> GenerationOptions {
        let Self { sampling, seed, max_new_tokens, stop_at_end_of_text } = self;
        let stop_at = stop_at_end_of_text.then_some(i64::from(tokenizer.end_of_text()));
        let tokens = model.vocab_size.min(tokenizer.vocabulary_size() as usize);
        GenerationOptions { sampling, seed, max_new_tokens, stop_at, tokens }
    }
}

/// The same of one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerationOptions {
    /// Sampling of each token.
    pub sampling: Sampling,
    /// Seed of all draws.
    pub seed: u64,
    /// Tokens behind the prompt, at most.
    pub max_new_tokens: usize,
    /// The token that ends a text and is no part of it.
    pub stop_at: Option<i64>,
    /// Ids from 0 to before this may be drawn: a model may have more than its tokenizer, as rows that fill its table up.
    pub tokens: usize,
}

/// The next token, or the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This token.
    Token(i64),
    /// Nothing.
    Ended(Ended),
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has as many tokens as were asked for.
    MaxNewTokens,
    /// The model ended it.
    EndOfText,
    /// Somebody asked to stop.
    Interrupted,
}

impl Ended {
    /// In JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::MaxNewTokens => "max_new_tokens",
            Self::EndOfText => END_OF_TEXT,
            Self::Interrupted => "interrupted",
        }
    }
}

/// Makes the texts behind one prompt, one after the other. The prompt is computed once, but for one that has to be cropped.
#[derive(Debug)]
pub struct Generation {
    engine: EngineHandle,
    options: GenerationOptions,
    context: TextContext,
    /// The number of the text.
    sample: u32,
    /// Of the token behind the prompt.
    first: Option<Vec<f32>>,
}

impl Generation {
    /// On an engine with an open model, whose positions `context` goes by; its prompt has one token at least.
    pub fn new(engine: EngineHandle, options: GenerationOptions, context: TextContext) -> Self {
        Self { engine, options, context, sample: 0, first: None }
    }

    /// Begins text number `sample`.
    pub fn begin(&mut self, sample: u32) {
        self.sample = sample;
        self.context.back_to_prompt();
        if !self.context.has_prompt() {
            // A text before became longer than the model sees. The prompt is fed alone again: together with the first token it
            // would go through other kernels, and its last bits would depend on what was made before.
            self.first = None;
        }
    }

    /// The prompt, and what was made of the text.
    pub fn context(&self) -> &TextContext {
        &self.context
    }

    /// The next token of the text, or why there is none. Dropped half-way, the text cannot be continued.
    ///
    /// # Errors
    /// The engine's; logits that are not finite.
    pub async fn next(&mut self) -> Result<Next, Error> {
        let made = self.context.made().len();
        if made >= self.options.max_new_tokens {
            return Ok(Next::Ended(Ended::MaxNewTokens));
        }
        let token = match &self.first {
            Some(first) if made == 0 => self.draw(first)?,
            _ => {
                let logits = self.engine.next_logits(self.context.feed()).await?;
                let token = self.draw(&logits)?;
                if made == 0 {
                    self.first = Some(logits);
                }
                token
            }
        };
        if self.options.stop_at == Some(token) {
            return Ok(Next::Ended(Ended::EndOfText));
        }
        self.context.push(token);
        Ok(Next::Token(token))
    }

    fn draw(&self, logits: &[f32]) -> Result<i64, Error> {
        let GenerationOptions { sampling, seed, tokens, .. } = self.options;
        let name = DrawName { seed, sample: self.sample, place: self.context.tokens().len() as u64 };
        Ok(i64::from(sampling.draw(&logits[..tokens.min(logits.len())], name)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{FakeEngine, FakeScript, FeedTokens};

    const OPTIONS: GenerationOptions = GenerationOptions {
        sampling: Sampling { temperature: 1.0, top_k: 0, top_p: 1.0 },
        seed: 5,
        max_new_tokens: 30,
        stop_at: None,
        tokens: usize::MAX,
    };

    async fn generation(options: GenerationOptions) -> Generation {
        let engine = EngineHandle::start(|| Ok(FakeEngine::new(FakeScript::default()))).unwrap();
        let info = engine.open_text_model(FakeEngine::any_text_model()).await.unwrap();
        Generation::new(engine, options, TextContext::new(vec![3, 1, 4], info.n_positions))
    }

    async fn text(generation: &mut Generation, sample: u32) -> (Vec<i64>, Ended) {
        generation.begin(sample);
        loop {
            if let Next::Ended(ended) = generation.next().await.unwrap() {
                return (generation.context().made().to_vec(), ended);
            }
        }
    }

    #[tokio::test]
    async fn a_text_is_the_same_whatever_else_is_made() {
        // Longer than the fake's positions.
        let mut many = generation(OPTIONS).await;
        let first = text(&mut many, 0).await;
        assert_eq!((first.0.len(), first.1), (30, Ended::MaxNewTokens));
        let third = text(&mut many, 2).await;
        assert_ne!(first, third);
        assert_eq!(text(&mut many, 0).await, first);
        assert_eq!(text(&mut generation(OPTIONS).await, 2).await, third);
        let short = GenerationOptions { max_new_tokens: 7, ..OPTIONS };
        assert_eq!(text(&mut generation(short).await, 2).await.0, third.0[..7]);
        let other = GenerationOptions { seed: 6, ..OPTIONS };
        assert_ne!(text(&mut generation(other).await, 0).await, first);
    }

    #[tokio::test]
    async fn a_prompt_is_fed_alone_whatever_was_made_before() {
        // The fake computes the same however it is fed, and a real engine does not.
        for max_new_tokens in [1, 7, 30] {
            let mut many = generation(GenerationOptions { max_new_tokens, ..OPTIONS }).await;
            for sample in 0..4 {
                many.begin(sample);
                let Next::Token(token) = many.next().await.unwrap() else { panic!("it has ended") };
                let next = many.context.clone().feed();
                assert_eq!(next, FeedTokens { keep: 3, tokens: vec![token] }, "text {sample}");
                while let Next::Token(_) = many.next().await.unwrap() {}
                assert_eq!(many.context().is_cropped(), max_new_tokens == 30);
            }
        }
    }

    #[tokio::test]
    async fn a_text_ends_with_the_token_that_ends_it() {
        let (whole, _) = text(&mut generation(OPTIONS).await, 0).await;
        let stop = whole[12];
        let before = whole.iter().position(|token| *token == stop).unwrap();
        let options = GenerationOptions { stop_at: Some(stop), ..OPTIONS };
        assert_eq!(
            text(&mut generation(options).await, 0).await,
            (whole[..before].to_vec(), Ended::EndOfText)
        );
    }

    #[tokio::test]
    async fn ids_that_no_token_has_are_not_drawn() {
        let few = GenerationOptions { tokens: 4, ..OPTIONS };
        let (made, _) = text(&mut generation(few).await, 0).await;
        assert!(made.iter().all(|token| *token < 4), "{made:?}");
        let (made, _) = text(&mut generation(OPTIONS).await, 0).await;
        assert!(made.iter().any(|token| *token >= 4), "{made:?}");
    }
}

//! Text from a causal language model, token by token: what the command `generate-text` needs, and kinds that preview.
//!
//! The engine holds the parameters, in the type that it computes with and without anything that only a training needs, and
//! the keys and values of one text. Which token comes next is its caller's affair, as every random draw is: it gets the
//! logits.

use crate::{Engine, EngineError, LanguageModelSource, Precision};

/// Continues texts with one language model, which stays open until another model is opened or loaded.
pub trait GenerateText: Engine {
    /// Opens a model to make text with, in the place of whatever was loaded.
    ///
    /// # Errors
    /// Files that are no such model; a field of the request beyond its limits, by its name.
    fn open_text_model(&mut self, request: &OpenTextModel) -> Result<TextModelInfo, EngineError>;

    /// Makes text with a copy of the language model that is trained, with the values that its parameters have now. The training is
    /// not touched; its next gradient lets go of the copy.
    ///
    /// # Errors
    /// No language model is trained; there is no memory for a copy.
    fn open_trained_text(&mut self) -> Result<TextModelInfo, EngineError>;

    /// The logits of the token that follows the text: [`TextModelInfo::vocab_size`] of them, in fp32.
    ///
    /// The text is the first [`FeedTokens::keep`] tokens of the one that was fed before, and [`FeedTokens::tokens`] behind
    /// them. Only these are computed; what is known of the others is kept. [`crate::TextContext`] says what to feed.
    ///
    /// # Errors
    /// A field beyond its limits, by its name: then the text is the one of before. What the machine cannot do: then there is
    /// no text, and `keep` is 0 the next time.
    fn next_logits(&mut self, feed: &FeedTokens) -> Result<Vec<f32>, EngineError>;
}

/// Which language model to make text with, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenTextModel {
    /// Where its parameters come from.
    pub source: LanguageModelSource,
    /// What products and attention are computed in; the residual stream, norms and logits are fp32.
    pub precision: Precision,
    /// Threads within one operation; at least 1.
    pub threads: usize,
}

/// What an open model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextModelInfo {
    /// Tokens that there are: ids are 0 .. this.
    pub vocab_size: usize,
    /// The longest text, in tokens.
    pub n_positions: usize,
}

/// Tokens to go on with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedTokens {
    /// Tokens at the beginning of the text that was fed before which stay; 0: a new text.
    pub keep: usize,
    /// Ids that come behind them, at least 1; with `keep` at most `n_positions`.
    pub tokens: Vec<i64>,
}

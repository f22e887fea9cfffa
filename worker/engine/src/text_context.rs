//! What of a text the engine is to be fed next: pure.

use crate::FeedTokens;

/// A prompt and what was made behind it, and how much of that the engine has.
///
/// A text longer than the model's positions is cropped as in nanoGPT's `generate` (model.py): the next token follows from
/// the last `n_positions` tokens alone. Their positions are then other ones for each new token, so that nothing that was
/// computed can be kept, and all of them are computed anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextContext {
    tokens: Vec<i64>,
    /// Tokens of the prompt.
    prompt: usize,
    /// Tokens from the beginning on that the engine has.
    fed: usize,
    n_positions: usize,
}

impl TextContext {
    /// A prompt for a model of so many positions.
    pub fn new(prompt: Vec<i64>, n_positions: usize) -> Self {
        Self { prompt: prompt.len(), tokens: prompt, fed: 0, n_positions: n_positions.max(1) }
    }

    /// Everything: the prompt, and what was made.
    pub fn tokens(&self) -> &[i64] {
        &self.tokens
    }

    /// What was made.
    pub fn made(&self) -> &[i64] {
        self.tokens.get(self.prompt..).unwrap_or_default()
    }

    /// Whether the beginning of the text is no longer seen.
    pub fn is_cropped(&self) -> bool {
        self.tokens.len() > self.n_positions
    }

    /// Whether the engine can go on behind the prompt: it has all of it, or is fed all that it sees each time.
    pub fn has_prompt(&self) -> bool {
        self.fed >= self.prompt || self.prompt > self.n_positions
    }

    /// What the engine needs to say what comes behind the last token; from here on it counts as fed.
    pub fn feed(&mut self) -> FeedTokens {
        if self.is_cropped() {
            // What the engine then has is another text, with other positions.
            self.fed = 0;
            return FeedTokens {
                keep: 0,
                tokens: self.tokens[self.tokens.len() - self.n_positions..].to_vec(),
            };
        }
        let keep = std::mem::replace(&mut self.fed, self.tokens.len());
        FeedTokens { keep, tokens: self.tokens[keep..].to_vec() }
    }

    /// Puts a token behind the text.
    pub fn push(&mut self, token: i64) {
        self.tokens.push(token);
    }

    /// Takes away what was made. What the engine has of the prompt stays of use.
    pub fn back_to_prompt(&mut self) {
        self.tokens.truncate(self.prompt);
        self.fed = self.fed.min(self.prompt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(keep: usize, tokens: &[i64]) -> FeedTokens {
        FeedTokens { keep, tokens: tokens.to_vec() }
    }

    #[test]
    fn a_prompt_is_fed_once_and_then_one_token_at_a_time() {
        let mut context = TextContext::new(vec![5, 6, 7], 8);
        assert_eq!(context.feed(), feed(0, &[5, 6, 7]));
        context.push(1);
        assert_eq!(context.feed(), feed(3, &[1]));
        context.push(2);
        assert_eq!(context.feed(), feed(4, &[2]));
        assert_eq!((context.tokens(), context.made()), (&[5, 6, 7, 1, 2][..], &[1, 2][..]));
        // Another text behind the same prompt.
        context.back_to_prompt();
        assert!(context.has_prompt());
        context.push(9);
        assert_eq!(context.feed(), feed(3, &[9]));
    }

    #[test]
    fn a_long_text_is_cropped_to_the_last_positions_and_computed_anew() {
        let mut context = TextContext::new(vec![1, 2], 3);
        assert_eq!(context.feed(), feed(0, &[1, 2]));
        context.push(3);
        assert_eq!(context.feed(), feed(2, &[3]));
        for token in 4..7 {
            context.push(token);
            assert!(context.is_cropped());
            assert_eq!(context.feed(), feed(0, &[token - 2, token - 1, token]));
        }
        // The engine has another text now: the prompt has to be fed again.
        context.back_to_prompt();
        assert!(!context.has_prompt());
        context.push(8);
        assert_eq!(context.feed(), feed(0, &[1, 2, 8]));
        // So is a prompt that is too long.
        let mut long = TextContext::new((0..9).collect(), 4);
        assert_eq!(long.feed(), feed(0, &[5, 6, 7, 8]));
        long.back_to_prompt();
        assert!(long.has_prompt());
        assert_eq!(long.feed(), feed(0, &[5, 6, 7, 8]));
    }
}

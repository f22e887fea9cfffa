//! The tokens that a job teaches.

use tokenizers::AddedToken;

use super::{super::Error, ClipTokenizer, twins};

/// The learned tokens of a job, in the tokenizer since [`ClipTokenizer::add_placeholders`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placeholders {
    /// `<token>`, `<token>_1`, `<token>_2`, …
    pub tokens: Vec<String>,
    /// Their ids: count up from the vocabulary's size.
    pub ids: Vec<i64>,
}

impl Placeholders {
    /// The concept's text in a prompt: all tokens, separated by spaces.
    pub fn text(&self) -> String {
        self.tokens.join(" ")
    }
}

impl ClipTokenizer {
    /// Adds `token` and, for further vectors, `token_1` … `token_{count - 1}` to the vocabulary.
    /// `count`: train.num_vectors, at least 1. On an error this tokenizer is as it was.
    ///
    /// Added tokens are found before anything else is split, with or without blanks around them, and (as in
    /// transformers) without regard to case.
    ///
    /// # Errors
    /// One of them is in the vocabulary (as a word or as a piece of one), or no text could ever name it.
    pub fn add_placeholders(&mut self, token: &str, count: usize) -> Result<Placeholders, Error> {
        if token.trim() != token || token.is_empty() {
            let problem = "it is empty or has blanks around it".to_string();
            return Err(Error::PlaceholderUnusable { token: token.to_string(), problem });
        }
        let first_id = self.vocabulary_size() as i64;
        let mut tokens = vec![token.to_string()];
        tokens.extend((1..count).map(|number| format!("{token}_{number}")));
        for token in &tokens {
            // Pieces that end a word have a suffix in CLIP's vocabulary.
            let known = |piece: &str| self.tokenizer.token_to_id(piece).is_some();
            if known(token) || known(&format!("{token}</w>")) {
                return Err(Error::PlaceholderTaken { token: token.clone() });
            }
        }
        let ids: Vec<i64> = (first_id..).take(count).collect();
        let placeholders = Placeholders { tokens, ids };
        let mut extended = self.clone();
        extended.add_in_order(&placeholders)?;
        *self = extended;
        Ok(placeholders)
    }

    fn add_in_order(&mut self, placeholders: &Placeholders) -> Result<(), Error> {
        let unusable = |problem: String| {
            let token = placeholders.tokens.first().cloned().unwrap_or_default();
            Error::PlaceholderUnusable { token, problem }
        };
        let added = placeholders.tokens.iter().map(|token| AddedToken::from(token.as_str(), false));
        self.tokenizer.add_tokens(added).map_err(|error| unusable(error.to_string()))?;
        self.twins = twins::find(&self.tokenizer).map_err(|error| unusable(error.to_string()))?;
        let twins = |token: &String| self.twins.get(&self.tokenizer.token_to_id(token)?);
        if let Some(tokens) = placeholders.tokens.iter().find_map(twins) {
            let tokens = tokens.join(" and ");
            return Err(unusable(format!(
                "{tokens} differ in their case alone, which prompts cannot tell; choose another word"
            )));
        }
        // The proof that a prompt with this text yields these ids and no others.
        let encoded: Vec<i64> = self.token_ids(&placeholders.text())?.into_iter().map(i64::from).collect();
        if encoded == placeholders.ids {
            return Ok(());
        }
        Err(unusable(format!(
            "its text gives the token ids {encoded:?} where {:?} are expected; use a word such as \"<my-concept>\"",
            placeholders.ids
        )))
    }
}

//! GPT-2's byte-level byte-pair encoding, with a checkpoint's own vocabulary: the ids of tiktoken's `encode_ordinary`.
//!
//! A text is cut into words ([`words`]), the bytes of a word are tokens at first, and pairs of tokens become one token, in
//! the order of the merges ([`merges`]). What a short word becomes is remembered ([`cache`]): most words come again.
//! Special tokens that stand in a document are ordinary text; in a prompt they are tokens ([`prompts`]). The way back is
//! [`decoding`].
//!
//! Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2, and OpenAI's
//! `encoder.py` (github.com/openai/gpt-2).

mod alphabet;
mod cache;
mod decoding;
mod files;
mod merges;
mod prompts;
mod settings;
#[cfg(test)]
mod tests;
mod words;

use std::path::Path;

use ringtune_shared::ids::ContentHash;

use crate::Error;
use cache::{Cache, Kept};
use decoding::Pieces;
pub use decoding::TextStream;
use merges::{Merger, Merges};
use prompts::PromptRules;
use words::Classes;

/// The token that ends each document.
pub const END_OF_TEXT: &str = "<|endoftext|>";
/// Ids that 16 bits have room for.
const MOST_TOKENS: u32 = 1 << 16;

/// A vocabulary and its merges. Shared by the threads that encode.
#[derive(Debug)]
pub struct Tokenizer {
    merges: Merges,
    classes: Classes,
    pieces: Pieces,
    vocabulary_size: u32,
    end_of_text: u16,
    hash: ContentHash,
    rules: PromptRules,
}

impl Tokenizer {
    /// Opens a folder with tokenizer.json, or with vocab.json and merges.txt. Blocks.
    ///
    /// # Errors
    /// A file is missing or broken, or the tokenizer is not of GPT-2's kind: the error names the file. So is a vocabulary of
    /// more than 65,536 tokens, or one without `<|endoftext|>`.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let read = files::read(folder)?;
        let broken = |problem| Error::unusable(&read.file, problem);
        let largest = read.vocabulary.values().copied().max().unwrap_or_default();
        if largest >= MOST_TOKENS {
            return Err(broken(format!(
                "has a token with the id {largest}; allowed: vocabularies of at most {MOST_TOKENS} tokens, whose ids fit \
                 into 16 bits"
            )));
        }
        let end_of_text = read.vocabulary.get(END_OF_TEXT).copied();
        let end_of_text = end_of_text
            .ok_or_else(|| broken(format!("has no token {END_OF_TEXT}, which ends each document")))?;
        let merges = Merges::new(&read.vocabulary, &read.merges).map_err(broken)?;
        Ok(Self {
            merges,
            classes: Classes::new()?,
            pieces: Pieces::new(&read.vocabulary, &read.added, largest),
            vocabulary_size: largest + 1,
            end_of_text: end_of_text as u16,
            hash: read.hash,
            rules: read.rules,
        })
    }

    /// One more than the largest id: 50,257 of GPT-2.
    pub fn vocabulary_size(&self) -> u32 {
        self.vocabulary_size
    }

    /// The id of `<|endoftext|>`.
    pub fn end_of_text(&self) -> u16 {
        self.end_of_text
    }

    /// The tokens of a prompt, as transformers' tokenizer of the same folder has them: added tokens in it are tokens. Nothing
    /// is added to them.
    ///
    /// # Errors
    /// The folder asks for what is not done here: names the file and the key.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u16>, Error> {
        self.rules.encode(&mut self.encoder(), prompt)
    }

    /// Refuses a tokenizer that makes other tokens of documents than [`Encoder::encode_ordinary`]. `folder`: where it is.
    ///
    /// # Errors
    /// What it would do.
    pub fn check_for_documents(&self, folder: &Path) -> Result<(), Error> {
        if !self.rules.prefix_space {
            return Ok(());
        }
        let problem = "has add_prefix_space true, which puts a blank before each text: that is not done with documents; \
                       allowed: false";
        Err(Error::unusable(&folder.join("tokenizer_config.json"), problem))
    }

    /// Of the files that decide about documents.
    pub fn hash(&self) -> ContentHash {
        self.hash
    }

    /// The bytes of a token, which need not be whole characters; nothing of an id that no token has. [`TextStream`] makes
    /// text of them.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.pieces.bytes(token)
    }

    /// A thread's encoder.
    pub fn encoder(&self) -> Encoder<'_> {
        Encoder { tokenizer: self, cache: Cache::new(), merger: Merger::default() }
    }
}

/// Encodes texts, one after the other. It remembers words: 2 MB.
#[derive(Debug)]
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    cache: Cache,
    merger: Merger,
}

impl Encoder<'_> {
    /// Appends the tokens of `text`, at most one for each of its bytes. Nothing is added to them.
    pub fn encode_ordinary(&mut self, text: &str, tokens: &mut Vec<u16>) {
        let Self { tokenizer, cache, merger } = self;
        for word in tokenizer.classes.words(text) {
            match cache.find(word.as_bytes()) {
                Kept::Tokens(kept) => tokens.extend_from_slice(kept),
                Kept::Nothing(slot) => {
                    let merged = merger.merge(&tokenizer.merges, word.as_bytes());
                    slot.keep(merged);
                    tokens.extend_from_slice(merged);
                }
            }
        }
    }
}

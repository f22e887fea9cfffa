//! A model's own tokenizer: the same ids as transformers' `CLIPTokenizer` on the same folder.

mod files;
mod long_prompts;
mod placeholders;
#[cfg(test)]
mod tests;
mod twins;

use std::path::{Path, PathBuf};

use tokenizers::{Decoder as _, Tokenizer, pre_tokenizers::byte_level::ByteLevel};

pub use placeholders::Placeholders;
use twins::Twins;

use super::Error;

/// Files of tokenizers' folders, sorted; no folder needs all of them.
pub const FOLDER_FILES: [&str; 6] = [
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
];

/// The folder of the tokenizer of `model`: `given` where it is not empty, else `tokenizer` within a folder or
/// beside a single file.
///
/// # Errors
/// A text for the user: a single file without one.
pub fn tokenizer_folder(model: &Path, given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(given) = given.filter(|given| !given.as_os_str().is_empty()) {
        return Ok(given.to_path_buf());
    }
    if !model.is_file() {
        return Ok(model.join("tokenizer"));
    }
    let beside = model.with_file_name("tokenizer");
    if beside.is_dir() {
        return Ok(beside);
    }
    Err(format!(
        "missing; a model in one file has no vocabulary in it: give the tokenizer folder of a model of the \
         same kind in diffusers layout (Stable Diffusion 1.x and 2.x differ), or put it there as {}",
        beside.display()
    ))
}

/// CLIP's byte-pair encoding with the model's vocabulary, special tokens and padding.
#[derive(Clone, Debug)]
pub struct ClipTokenizer {
    tokenizer: Tokenizer,
    /// Token ids in every prompt.
    length: usize,
    begin: u32,
    end: u32,
    padding: u32,
    twins: Twins,
    unused: Unused,
}

/// Rows of the text encoder's table that no token has.
#[derive(Clone, Copy, Debug, Default)]
struct Unused {
    /// The first of them.
    from: u32,
    rows: u32,
}

impl Unused {
    /// The id of the token that the library has as `id`.
    fn skipped(self, id: u32) -> u32 {
        if id < self.from { id } else { id + self.rows }
    }
}

impl ClipTokenizer {
    /// Opens a model's `tokenizer` folder: tokenizer.json where there is one, else vocab.json + merges.txt;
    /// special and added tokens from tokenizer_config.json, special_tokens_map.json and added_tokens.json.
    ///
    /// `max_length`: the text encoder's `max_position_embeddings` (77 in Stable Diffusion), at least 2. A smaller
    /// `model_max_length` in tokenizer_config.json wins, as in the training script.
    ///
    /// # Errors
    /// A file is missing or broken: the error names it.
    pub fn open(folder: &Path, max_length: usize) -> Result<Self, Error> {
        let opened = files::open(folder)?;
        Ok(Self {
            tokenizer: opened.tokenizer,
            length: opened.model_max_length.map_or(max_length, |length| length.min(max_length)).max(2),
            begin: opened.begin,
            end: opened.end,
            padding: opened.padding,
            twins: opened.twins,
            unused: Unused::default(),
        })
    }

    /// Tokens in the vocabulary, added ones included, and the text encoder's rows behind them that no token has
    /// ([`ClipTokenizer::fit`]): the first id that a new token gets.
    pub fn vocabulary_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true) + self.unused.rows as usize
    }

    /// Makes its ids those of a text encoder with a table of `rows` that reads prompts of `length`; false where the two are
    /// not of one model. Tables are often filled up to a round number of rows, which no text names: new tokens come
    /// behind them, so that all rows of the table stay as they are. Call it before any token is added.
    ///
    /// Source of the filling up: transformers, `resize_token_embeddings(pad_to_multiple_of=…)`.
    #[must_use]
    pub fn fit(&mut self, rows: usize, length: usize) -> bool {
        let tokens = self.tokenizer.get_vocab_size(true);
        let unused = rows.checked_sub(tokens).and_then(|unused| u32::try_from(unused).ok());
        let Some(unused) = unused.filter(|_| length == self.length) else { return false };
        self.unused = Unused { from: tokens as u32, rows: unused };
        true
    }

    /// Token ids in every prompt: 77 in Stable Diffusion.
    pub fn length(&self) -> usize {
        self.length
    }

    /// How many of a text's tokens a prompt holds: all but its begin and its end.
    pub fn room(&self) -> usize {
        self.length - 2
    }

    /// The ids of a prompt, [length]: begin, at most length - 2 tokens, end, padding.
    ///
    /// # Errors
    /// The tokenizer library refuses the text.
    pub fn encode(&self, prompt: &str) -> Result<Vec<i64>, Error> {
        let mut tokens = self.token_ids(prompt)?;
        tokens.truncate(self.room());
        Ok(self.framed(tokens))
    }

    /// [length] ids: begin, the tokens (at most [`Self::room`]), end, padding.
    fn framed(&self, tokens: Vec<u32>) -> Vec<i64> {
        let mut ids = vec![i64::from(self.begin)];
        ids.extend(tokens.into_iter().map(i64::from));
        ids.push(i64::from(self.end));
        ids.resize(self.length, i64::from(self.padding));
        ids
    }

    /// The ids of a prompt's tokens, nothing added and nothing cut.
    ///
    /// # Errors
    /// The tokenizer library refuses the text.
    pub fn encode_whole(&self, prompt: &str) -> Result<Vec<i64>, Error> {
        Ok(self.token_ids(prompt)?.into_iter().map(i64::from).collect())
    }

    /// The ids of `train.initializer_token`, one for each of `num_vectors` learned rows, which start from these rows of
    /// the token table. Where it has fewer tokens than there are rows they come again, from the first: a single one
    /// is the start of every row, as in diffusers' script.
    /// Source for several: kohya-ss/sd-scripts, train_textual_inversion.py (init_word).
    ///
    /// # Errors
    /// It has no token, or more than there are rows: the error lists the tokens it is made of.
    pub fn initializer_ids(&self, words: &str, num_vectors: usize) -> Result<Vec<i64>, Error> {
        let ids = self.token_ids(words)?;
        if ids.is_empty() || ids.len() > num_vectors {
            let text = |id: &u32| self.tokenizer.id_to_token(*id).unwrap_or_else(|| format!("#{id}"));
            let tokens = ids.iter().map(text).collect();
            return Err(Error::InitializerTokens { given: words.to_string(), tokens, num_vectors });
        }
        Ok(ids.into_iter().map(i64::from).cycle().take(num_vectors).collect())
    }

    /// The ids of a text alone, without begin, end and padding.
    ///
    /// # Errors
    /// The tokenizer cannot take it.
    pub fn words_of(&self, text: &str) -> Result<Vec<i64>, Error> {
        Ok(self.token_ids(text)?.into_iter().map(i64::from).collect())
    }

    /// The text of a prompt's ids, for people: without begin, end and padding; `name` gives what ids mean that are
    /// in no vocabulary, set off by blanks.
    pub fn text_of(&self, ids: &[i64], name: impl Fn(i64) -> Option<String>) -> String {
        let content = ids.iter().skip(1).take_while(|id| **id != i64::from(self.end));
        let mut tokens = Vec::new();
        for id in content {
            let known = u32::try_from(*id).ok().and_then(|id| self.tokenizer.id_to_token(id));
            tokens.push(match name(*id) {
                Some(name) => format!("{name}</w>"),
                None => known.unwrap_or_else(|| format!("#{id}</w>")),
            });
        }
        // Tokens are bytes written as letters; a text that they do not make is shown as it is.
        let joined = tokens.concat();
        let text = ByteLevel::default().decode_chain(vec![joined.clone()]).map(|parts| parts.concat());
        text.unwrap_or(joined).replace("</w>", " ").trim_end().to_owned()
    }

    /// Number of a prompt's tokens, without begin and end; [`ClipTokenizer::length`] - 2 of them are read.
    ///
    /// # Errors
    /// The tokenizer library refuses the text.
    pub fn count_tokens(&self, prompt: &str) -> Result<usize, Error> {
        Ok(self.token_ids(prompt)?.len())
    }

    /// A prompt's tokens: no begin, end or padding, nothing cut.
    ///
    /// # Errors
    /// The library refuses the text; a token in it is not decided by the files.
    fn token_ids(&self, text: &str) -> Result<Vec<u32>, Error> {
        let encoding = self
            .tokenizer
            .encode(text, false)
            .map_err(|error| Error::Encode { text: text.to_string(), problem: error.to_string() })?;
        let ids = encoding.get_ids();
        match ids.iter().find_map(|id| self.twins.get(id)) {
            None => Ok(ids.iter().map(|id| self.unused.skipped(*id)).collect()),
            Some(tokens) => Err(Error::Twins { text: text.to_string(), tokens: tokens.clone() }),
        }
    }
}

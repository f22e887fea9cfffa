//! The prompt: where it comes from, and its tokens.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use ringtune_text::Tokenizer;

use super::{Error, GenerateTextArguments};

/// Bytes of a prompt: far more than any model sees of it.
const LONGEST: u64 = 16 << 20;

/// Source of a prompt.
#[derive(Clone, Debug)]
pub(super) enum PromptSource {
    Given(String),
    File(PathBuf),
}

impl PromptSource {
    pub(super) fn of(arguments: &GenerateTextArguments) -> Self {
        match &arguments.prompt_file {
            Some(file) => Self::File(file.clone()),
            None => Self::Given(arguments.prompt.clone().unwrap_or_default()),
        }
    }

    /// Its text. Blocks.
    ///
    /// # Errors
    /// A file that cannot be read, is too long, or is no UTF-8.
    pub(super) fn read(self) -> Result<String, Error> {
        let file = match self {
            Self::Given(text) => return Ok(text),
            Self::File(file) => file,
        };
        let wrong = |problem: String| Error::Prompt { file: file.clone(), problem };
        let read = if file == Path::new("-") {
            read_whole(io::stdin().lock())
        } else {
            File::open(&file).and_then(read_whole)
        };
        let bytes = read.map_err(|error| wrong(format!("cannot be read: {error}")))?;
        if bytes.len() as u64 > LONGEST {
            return Err(wrong(format!("is longer than {LONGEST} bytes, which are allowed")));
        }
        String::from_utf8(bytes).map_err(|error| {
            let place = error.utf8_error().valid_up_to();
            wrong(format!("is no UTF-8 from byte {place} on; allowed: text in UTF-8"))
        })
    }
}

/// Reads all bytes, or a few more than allowed.
fn read_whole(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(LONGEST + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A prompt's tokens; of an empty one the token that documents end with, as every text that GPT-2 learned from follows it.
/// `<|endoftext|>` in a prompt is that token, as transformers' GPT2Tokenizer and nanoGPT's `sample.py` have it, and so are
/// those that were added to the vocabulary.
///
/// # Errors
/// The tokenizer's folder asks for what is not done here.
pub fn tokens(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<i64>, ringtune_text::Error> {
    let mut tokens = tokenizer.encode_prompt(prompt)?;
    if tokens.is_empty() {
        tokens.push(tokenizer.end_of_text());
    }
    Ok(tokens.into_iter().map(i64::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by the GPT2Tokenizer of transformers 5.23, of the same files.
    #[test]
    fn the_token_that_documents_end_with_may_stand_in_a_prompt() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/bpe-tokenizer");
        let tokenizer = Tokenizer::open(Path::new(folder)).unwrap();
        for (prompt, expected) in [
            ("", &[556][..]),
            ("<|endoftext|>", &[556]),
            ("<|endoftext|><|endoftext|>x", &[556, 556, 87]),
            ("a <|endoftext|> b", &[64, 220, 556, 220, 65]),
            ("a<|endoftext|>\n", &[64, 556, 198]),
            ("The ring<|endoftext|>The star", &[51, 71, 68, 512, 263, 70, 556, 51, 71, 68, 285, 64, 81]),
            ("<|endoftext|", &[27, 91, 551, 78, 69, 282, 87, 83, 91]),
        ] {
            assert_eq!(tokens(&tokenizer, prompt).unwrap(), expected, "{prompt:?}");
        }
    }
}

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

/// Where a prompt comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Given(String),
    File(PathBuf),
}

impl Source {
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

/// All bytes, or a few more than are allowed.
fn read_whole(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(LONGEST + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A prompt's tokens; of an empty one the token that documents end with, as every text that GPT-2 learned from follows it.
pub fn tokens(tokenizer: &Tokenizer, prompt: &str) -> Vec<i64> {
    let mut tokens = Vec::new();
    tokenizer.encoder().encode_ordinary(prompt, &mut tokens);
    if tokens.is_empty() {
        tokens.push(tokenizer.end_of_text());
    }
    tokens.into_iter().map(i64::from).collect()
}

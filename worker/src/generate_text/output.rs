//! Output to stdout: texts as they are made, or a JSON object of each.

use std::io;

use ringtune_text::TextStream;
use serde_json::json;
use tokio::io::{AsyncWriteExt as _, Stdout};

use super::{Format, generation::Ended};

/// The line between texts, as nanoGPT's sample.py has it.
const BETWEEN: &str = "---------------\n";

/// Prints texts, each of its prompt and what is made.
#[derive(Debug)]
pub(super) struct Output {
    stdout: Stdout,
    format: Format,
    prompt: String,
    stream: TextStream,
    /// Of this text, behind the prompt.
    text: String,
}

/// Facts of a text in its JSON object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) sample: u32,
    pub(super) prompt_tokens: &'a [i64],
    pub(super) tokens: &'a [i64],
    pub(super) seconds: f64,
    pub(super) ended: Ended,
}

impl Output {
    pub(super) fn new(format: Format, prompt: String) -> Self {
        let (stdout, stream) = (tokio::io::stdout(), TextStream::new());
        Self { stdout, format, prompt, stream, text: String::new() }
    }

    /// Begins text number `sample`.
    ///
    /// # Errors
    /// Nobody takes it.
    pub(super) async fn begin(&mut self, sample: u32) -> io::Result<()> {
        self.text.clear();
        self.stream = TextStream::new();
        if self.format == Format::Json {
            return Ok(());
        }
        let between = if sample > 0 { BETWEEN } else { "" };
        let beginning = format!("{between}{}", self.prompt);
        self.write(&beginning).await
    }

    /// Goes on with a token's bytes; characters come when they are whole.
    ///
    /// # Errors
    /// Nobody takes it.
    pub(super) async fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        let text = self.stream.push(bytes);
        self.add(text).await
    }

    /// Ends the text.
    ///
    /// # Errors
    /// Nobody takes it.
    pub(super) async fn finish(&mut self, facts: Facts<'_>) -> io::Result<()> {
        let rest = self.stream.finish();
        self.add(rest).await?;
        let line = match self.format {
            Format::Text => "\n".to_owned(),
            Format::Json => {
                let Facts { sample, prompt_tokens, tokens, seconds, ended } = facts;
                let object = json!({
                    "sample": sample,
                    "text": self.text,
                    "tokens": tokens,
                    "prompt_tokens": prompt_tokens,
                    "seconds": seconds,
                    "ended": ended.name(),
                });
                format!("{object}\n")
            }
        };
        self.write(&line).await
    }

    async fn add(&mut self, text: String) -> io::Result<()> {
        match self.format {
            Format::Json => self.text.push_str(&text),
            Format::Text => self.write(&text).await?,
        }
        Ok(())
    }

    async fn write(&mut self, text: &str) -> io::Result<()> {
        if !text.is_empty() {
            self.stdout.write_all(text.as_bytes()).await?;
            self.stdout.flush().await?;
        }
        Ok(())
    }
}

//! Texts of a language model: a file of one text each, and `texts.jsonl` of all, whose lines are those files.

use std::path::Path;

use ringtune_shared::files::write_atomically;
use serde::{Deserialize, Serialize};

use super::{Error, read_back::different};

/// File of all texts of a job, in order.
pub const ALL_TEXTS: &str = "texts.jsonl";

/// A text that was made. Equal jobs have equal ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MadeText {
    /// The place of its prompt among the job's, from 0.
    pub prompt_number: u32,
    /// The number of the text among those of its prompt, from 0.
    pub sample: u32,
    /// Its prompt.
    pub prompt: String,
    /// The generated text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<i64>,
    /// The prompt's.
    pub prompt_tokens: Vec<i64>,
    /// `max_new_tokens` or `end_of_text`.
    pub ended: String,
}

/// Characters of a text that the log shows; the file has all.
const SHOWN: usize = 4000;
/// Of [`MadeText::ended`].
pub const END_OF_TEXT: &str = "end_of_text";

impl MadeText {
    /// What the log says of it: it is a model's, and is shown in terminals.
    pub fn said(&self) -> String {
        let whole = format!("{}{}", self.prompt, self.text);
        let clean =
            |letter: char| if letter.is_control() && !"\n\t".contains(letter) { '\u{fffd}' } else { letter };
        let shown: String = whole.chars().take(SHOWN).map(clean).collect();
        let rest = if whole.chars().nth(SHOWN).is_some() { " …" } else { "" };
        let end = if self.ended == END_OF_TEXT { ", ended by the model" } else { "" };
        format!("({} tokens{end}):\n{shown}{rest}", self.tokens.len())
    }
}

/// That of the text which order `order` had made after `step`.
pub fn file_name_of_order(order: u64, step: u64) -> String {
    format!("sample-{order}-{step}.json")
}

/// `text-0001.json`: counted over all prompts, those of the first prompt first.
pub fn text_name(prompt: u32, sample: u32, samples: u32) -> String {
    format!("text-{:04}.json", u64::from(prompt) * u64::from(samples) + u64::from(sample) + 1)
}

/// Writes a text as an object in a line, and reads it back. Blocks.
///
/// # Errors
/// It cannot be written, or is another text when it is read.
pub fn write_text(file: &Path, text: &MadeText) -> Result<(), Error> {
    let wrong = |problem: String| different(file, problem);
    let line = serde_json::to_string(text).map_err(|error| wrong(error.to_string()))? + "\n";
    write_atomically(file, line.as_bytes()).map_err(|error| wrong(error.to_string()))?;
    let found = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
    match read_text(&found) {
        Ok(found) if found == *text => Ok(()),
        Ok(_) => Err(wrong("it reads back as another text".to_owned())),
        Err(problem) => Err(wrong(problem)),
    }
}

/// Reads what [`write_text`] wrote: one line with one text.
///
/// # Errors
/// Why it is none.
pub fn read_text(content: &[u8]) -> Result<MadeText, String> {
    let line = content.strip_suffix(b"\n").ok_or("its line has no end")?;
    if line.contains(&b'\n') {
        return Err("it has more than one line".to_owned());
    }
    serde_json::from_slice(line).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> MadeText {
        MadeText {
            prompt_number: 1,
            sample: 2,
            prompt: "Dear\n\"friend\"".to_owned(),
            text: " \u{fffd}é\t\u{1b}[0m".to_owned(),
            tokens: vec![7, 50_256],
            prompt_tokens: vec![1],
            ended: "end_of_text".to_owned(),
        }
    }

    #[test]
    fn the_log_shows_a_text_without_what_steers_a_terminal() {
        let said_of =
            |words: &str| MadeText { text: words.to_owned(), prompt: "Dear".to_owned(), ..text() }.said();
        assert_eq!(
            said_of(" \u{1b}[2J\r\nfriend\t"),
            "(2 tokens, ended by the model):\nDear \u{fffd}[2J\u{fffd}\nfriend\t"
        );
        let long = said_of(&"é".repeat(SHOWN));
        assert!(long.ends_with("éé …") && long.chars().filter(|letter| *letter == 'é').count() == SHOWN - 4);
    }

    #[test]
    fn a_text_is_one_line_and_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(text_name(1, 2, 3));
        assert!(file.ends_with("text-0006.json"));
        write_text(&file, &text()).unwrap();
        let content = std::fs::read_to_string(&file).unwrap();
        let expected = "{\"prompt_number\":1,\"sample\":2,\"prompt\":\"Dear\\n\\\"friend\\\"\",\"text\":\" \u{fffd}é\\t\\u001b[0m\",\
                        \"tokens\":[7,50256],\"prompt_tokens\":[1],\"ended\":\"end_of_text\"}\n";
        assert_eq!(content, expected);
        assert_eq!(read_text(content.as_bytes()), Ok(text()));
        for broken in [&content[..10], content.trim_end(), &content.repeat(2), "\n", ""] {
            assert!(read_text(broken.as_bytes()).is_err(), "{broken}");
        }
        assert!(write_text(&folder.path().join("nowhere/text-0001.json"), &text()).is_err());
    }
}

//! Errors of a job's pictures and words.

use std::path::PathBuf;

/// Each message names the file or the field, what was found, and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// data.images is not a folder that can be listed.
    #[error("image folder {}: {source}", folder.display())]
    ImageFolder {
        /// The folder as it was given.
        folder: PathBuf,
        /// Why it cannot be listed.
        source: std::io::Error,
    },
    /// data.images has no picture in it.
    #[error("image folder {} has no .jpg, .jpeg, .png or .webp file in it{}", folder.display(), describe_skipped(skipped))]
    NoImages {
        /// The folder as it was given.
        folder: PathBuf,
        /// Files that are there instead.
        skipped: Vec<String>,
    },
    /// More pictures than a job may have.
    #[error("image folder {} has {found} pictures; at most {allowed} are allowed", folder.display())]
    TooManyImages {
        /// The folder as it was given.
        folder: PathBuf,
        /// Pictures in it.
        found: usize,
        /// The limit.
        allowed: usize,
    },
    /// A file of many pictures that cannot be read from disk.
    #[error("{}: {source}", file.display())]
    ReadFile {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of many pictures that is not as it has to be.
    #[error("{}: {problem}", file.display())]
    UnusableFile {
        /// The file.
        file: PathBuf,
        /// What is wrong, with its member or row.
        problem: String,
    },
    /// A picture file above the limit.
    #[error("image {name} has {bytes} bytes; at most {allowed} are allowed")]
    ImageTooLarge {
        /// File name.
        name: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        allowed: u64,
    },
    /// A picture file that cannot be read from disk.
    #[error("image {name}: {source}")]
    ReadImage {
        /// File name.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// A picture file that is not any more what it was when the job's pictures were listed.
    #[error(
        "image {name} has changed since the job began: put it back as it was, or submit the job again; pictures of a \
         folder have to stay as they are until their job is done"
    )]
    ImageChanged {
        /// File name.
        name: String,
    },
    /// A picture file whose content is no JPEG, PNG or WebP picture, or a broken or enormous one.
    #[error("image {name} cannot be decoded: {source}")]
    UndecodableImage {
        /// File name.
        name: String,
        /// The decoder's error.
        source: image::ImageError,
    },
    /// The model's tokenizer folder lacks a file or holds a broken one.
    #[error("tokenizer file {}: {problem}", file.display())]
    TokenizerFile {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The tokenizer library refused a text.
    #[error("the tokenizer cannot encode {text:?}: {problem}")]
    Encode {
        /// The text.
        text: String,
        /// The library's message.
        problem: String,
    },
    /// A text that names a token of several, which nothing tells apart.
    #[error(
        "{text:?} names one of the tokens {}, and nothing decides which: the tokenizer finds them without regard to \
         case; take all but one of them out of the tokenizer's files, or leave the word out",
        tokens.join(", ")
    )]
    Twins {
        /// The text.
        text: String,
        /// The tokens and their ids.
        tokens: Vec<String>,
    },
    /// A prompt that cannot be drawn.
    #[error("the prompt {prompt:?}: {problem}")]
    Prompt {
        /// Its beginning.
        prompt: String,
        /// The problem.
        problem: String,
    },
    /// train.placeholder_token names a token that the vocabulary has.
    #[error(
        "the tokenizer already contains the token {token:?}; choose one that is not in \
         its vocabulary, such as \"<{token}>\""
    )]
    PlaceholderTaken {
        /// The token, or one of its numbered followers.
        token: String,
    },
    /// train.placeholder_token cannot stand for a token of its own.
    #[error("{token:?} cannot be a token: {problem}")]
    PlaceholderUnusable {
        /// The token.
        token: String,
        /// Why.
        problem: String,
    },
    /// train.initializer_token is no token of the vocabulary, or more of them than there are rows to start.
    #[error(
        "{given:?} is {} tokens of the model's vocabulary, {tokens:?}; allowed: {}",
        tokens.len(), allowed_tokens(tokens.len(), *num_vectors)
    )]
    InitializerTokens {
        /// The text as it was given.
        given: String,
        /// The tokens that it is made of.
        tokens: Vec<String>,
        /// Rows to start.
        num_vectors: usize,
    },
    /// A picture that no bucket takes.
    #[error(
        "image {name} ({width}x{height}) fits no bucket: it is smaller than train.bucket_reso_steps, or its sides \
         differ too much"
    )]
    NoBucket {
        /// File name.
        name: String,
        /// Its columns.
        width: u32,
        /// Its rows.
        height: u32,
    },
    /// A picture's caption that makes no prompt.
    #[error("the caption of {file}: {problem}")]
    Caption {
        /// The picture's file.
        file: String,
        /// The problem.
        problem: String,
    },
    /// A prompt template in which the learned token does not appear as it should.
    #[error("{template:?}: {problem}")]
    Template {
        /// The template, with its `{{}}`.
        template: String,
        /// The problem.
        problem: String,
    },
}

fn allowed_tokens(given: usize, num_vectors: usize) -> String {
    match (given, num_vectors) {
        (0, _) => "at least one".to_owned(),
        (_, 1) => format!("one, or num_vectors = {given}: a vector for each"),
        _ => format!("at most {num_vectors}, or num_vectors = {given}: a vector for each"),
    }
}

fn describe_skipped(skipped: &[String]) -> String {
    const NAMED: usize = 5;
    if skipped.is_empty() {
        return " (it is empty)".to_string();
    }
    let names = skipped.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match skipped.len().checked_sub(NAMED) {
        Some(more) if more > 0 => format!(", only {names} and {more} more"),
        _ => format!(", only {names}"),
    }
}

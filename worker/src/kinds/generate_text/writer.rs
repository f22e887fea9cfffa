//! The texts that one rank makes.

use std::{
    fs::File,
    io::{BufWriter, Read as _, Write as _},
    path::{Path, PathBuf},
};

use ringtune_shared::{
    ids::{ContentHash, ContentHasher},
    job::kinds::generate_text::GenerateTextSpec,
};
use ringtune_text::TextStream;

use super::{
    super::shared_out::{Parts, hashes_of},
    prepare::Prepared,
};
use crate::{
    contents::UploadQueue,
    engine::TextContext,
    fault::Refusal,
    generate_text::{self, Ended, Generation, Next},
    output::{
        self,
        read_back::different,
        texts::{ALL_TEXTS, MadeText, read_text, text_name, write_text},
    },
    rank::{Error, Rank},
    session::ProgressStage,
};

/// A text as a file: far above the longest that can be asked for.
const MOST_TEXT_BYTES: u64 = 256 << 20;
/// Characters of a text that the log shows; the file has all.
const SHOWN: usize = 4000;

/// Makes texts: each is on its way when the next begins.
#[derive(Debug)]
pub(crate) struct Writer {
    spec: GenerateTextSpec,
    prepared: Prepared,
    /// Of the prompt that it was last begun with, which is then not computed again. None while a text is made: one that is
    /// dropped half-way cannot be gone on with.
    generation: Option<(u32, Generation)>,
}

/// One of the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextNumber {
    prompt: u32,
    sample: u32,
}

impl Writer {
    pub(super) fn new(spec: GenerateTextSpec, prepared: Prepared) -> Self {
        Self { spec, prepared, generation: None }
    }

    fn name(&self, TextNumber { prompt, sample }: TextNumber) -> String {
        text_name(prompt, sample, self.spec.num_samples)
    }

    /// The generation of a prompt's texts.
    fn take_generation(&mut self, rank: &Rank, prompt: u32) -> Generation {
        match self.generation.take() {
            Some((of, generation)) if of == prompt => generation,
            _ => {
                let tokens = self.prepared.prompts.get(prompt as usize).cloned().unwrap_or_default();
                let context = TextContext::new(tokens, self.prepared.n_positions);
                Generation::new(rank.context.engine.clone(), self.prepared.options, context)
            }
        }
    }

    /// A whole text.
    async fn text(&mut self, rank: &Rank, number: TextNumber) -> Result<MadeText, Error> {
        let TextNumber { prompt, sample } = number;
        let mut generation = self.take_generation(rank, prompt);
        generation.begin(sample);
        let (mut stream, mut text) = (TextStream::new(), String::new());
        let ended = loop {
            match generation.next().await.map_err(refused)? {
                Next::Token(token) => {
                    let token = u32::try_from(token).unwrap_or(u32::MAX);
                    text.push_str(&stream.push(self.prepared.tokenizer.bytes(token)));
                }
                Next::Ended(ended) => break ended,
            }
        };
        text.push_str(&stream.finish());
        let (all, tokens) = (generation.context().tokens(), generation.context().made().to_vec());
        let made = MadeText {
            prompt_number: prompt,
            sample,
            prompt: self.spec.prompts.get(prompt as usize).cloned().unwrap_or_default(),
            text,
            prompt_tokens: all[..all.len() - tokens.len()].to_vec(),
            tokens,
            ended: ended.name().to_owned(),
        };
        self.generation = Some((prompt, generation));
        Ok(made)
    }
}

/// What the command line says of its options and files, by the job's fields.
fn refused(error: generate_text::Error) -> Error {
    match error {
        generate_text::Error::Engine(error) => Error::of_engine(error),
        generate_text::Error::Model(error) => crate::base_model::Error::Source(error).into(),
        generate_text::Error::Task(error) => Error::Task(error),
        other @ (generate_text::Error::Option { .. }
        | generate_text::Error::Prompt { .. }
        | generate_text::Error::Text(_)
        | generate_text::Error::Vocabulary { .. }
        | generate_text::Error::NotFinite(_)
        | generate_text::Error::Output(_)
        | generate_text::Error::Stopped) => Refusal::of("model.base", other.to_string()).into(),
    }
}

impl Parts for Writer {
    type Part = TextNumber;

    const STAGE: ProgressStage = ProgressStage::Write;
    const DONE: &'static str = "all texts are made";

    fn common(&self) -> Vec<(&'static str, ContentHash)> {
        vec![("model (model.base)", self.prepared.model_hash)]
    }

    fn state(&self) -> ContentHash {
        self.prepared.model_hash
    }

    fn parts(&self) -> Vec<TextNumber> {
        let prompts = 0..u32::try_from(self.spec.prompts.len()).unwrap_or(u32::MAX);
        let samples = 0..self.spec.num_samples;
        prompts.flat_map(|prompt| samples.clone().map(move |sample| TextNumber { prompt, sample })).collect()
    }

    fn names(&self, number: &TextNumber) -> Vec<String> {
        vec![self.name(*number)]
    }

    async fn make(
        &mut self,
        rank: &Rank,
        number: TextNumber,
        uploads: &mut UploadQueue,
    ) -> Result<(), Error> {
        let text = self.text(rank, number).await?;
        let said = said(&text, self.spec.num_samples, self.spec.texts());
        let file = rank.folder.join(self.name(number));
        let target = file.clone();
        ringtune_shared::tasks::spawn_blocking(move || write_text(&target, &text)).await??;
        uploads.push(file).await;
        rank.context.metrics.texts.inc();
        rank.journal.info(said).await;
        Ok(())
    }

    fn has_whole(&self) -> bool {
        true
    }

    /// Puts all texts into one file, in their order.
    async fn make_whole(&mut self, rank: &Rank, uploads: &mut UploadQueue) -> Result<(), Error> {
        let (client, job) = (&rank.context.artifacts, rank.assignment.ring.job);
        let names: Vec<String> = self.parts().iter().map(|number| self.name(*number)).collect();
        let hashes = hashes_of(client, job, &names).await?;
        let path = rank.folder.join(ALL_TEXTS);
        let target = path.clone();
        let mut all = ringtune_shared::tasks::spawn_blocking(move || AllTexts::create(target)).await??;
        for (name, hash) in names.into_iter().zip(hashes) {
            let line = client.download(hash, MOST_TEXT_BYTES).await?;
            let add = move || all.add(&name, &line).map(|()| all);
            all = ringtune_shared::tasks::spawn_blocking(add).await??;
        }
        ringtune_shared::tasks::spawn_blocking(move || all.finish()).await??;
        uploads.push(path).await;
        Ok(())
    }
}

/// The file of all texts as it grows.
struct AllTexts {
    path: PathBuf,
    file: BufWriter<File>,
    hash: ContentHasher,
}

impl AllTexts {
    fn create(path: PathBuf) -> Result<Self, output::Error> {
        let file = File::create(&path).map_err(|error| different(&path, error.to_string()))?;
        Ok(Self { path, file: BufWriter::new(file), hash: ContentHasher::new() })
    }

    /// Adds a text's line, as its file has it.
    fn add(&mut self, name: &str, line: &[u8]) -> Result<(), output::Error> {
        read_text(line).map_err(|problem| different(Path::new(name), problem))?;
        self.hash.update(line);
        self.file.write_all(line).map_err(|error| different(&self.path, error.to_string()))
    }

    /// Puts it on the disk and reads it back.
    fn finish(self) -> Result<(), output::Error> {
        let wrong = |problem: String| different(&self.path, problem);
        let file = self.file.into_inner().map_err(|error| wrong(error.to_string()))?;
        file.sync_all().map_err(|error| wrong(error.to_string()))?;
        let mut found = ContentHasher::new();
        let mut file = File::open(&self.path).map_err(|error| wrong(error.to_string()))?;
        let mut piece = vec![0; 1 << 16];
        loop {
            match file.read(&mut piece).map_err(|error| wrong(error.to_string()))? {
                0 => break,
                read => found.update(&piece[..read]),
            }
        }
        if found.finish() != self.hash.finish() {
            return Err(wrong("it reads back as other texts".to_owned()));
        }
        Ok(())
    }
}

/// What the log says of a text: it is a model's, and is shown in terminals.
fn said(made: &MadeText, samples: u32, all: u32) -> String {
    let number = made.prompt_number * samples + made.sample + 1;
    let whole = format!("{}{}", made.prompt, made.text);
    let clean =
        |letter: char| if letter.is_control() && !"\n\t".contains(letter) { '\u{fffd}' } else { letter };
    let shown: String = whole.chars().take(SHOWN).map(clean).collect();
    let rest = if whole.chars().nth(SHOWN).is_some() { " …" } else { "" };
    let end = if made.ended == Ended::EndOfText.name() { ", ended by the model" } else { "" };
    format!("text {number} of {all} ({} tokens{end}):\n{shown}{rest}", made.tokens.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> MadeText {
        MadeText {
            prompt_number: 1,
            sample: 2,
            prompt: "Dear".to_owned(),
            text: text.to_owned(),
            tokens: vec![1, 2],
            prompt_tokens: vec![3],
            ended: "end_of_text".to_owned(),
        }
    }

    #[test]
    fn the_log_shows_a_text_without_what_steers_a_terminal() {
        let said_of = |text: &str| said(&made(text), 3, 12);
        assert_eq!(
            said_of(" \u{1b}[2J\r\nfriend\t"),
            "text 6 of 12 (2 tokens, ended by the model):\nDear \u{fffd}[2J\u{fffd}\nfriend\t"
        );
        let long = said_of(&"é".repeat(SHOWN));
        assert!(long.ends_with("éé …") && long.chars().filter(|letter| *letter == 'é').count() == SHOWN - 4);
    }

    #[test]
    fn all_texts_are_the_files_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ALL_TEXTS);
        let mut all = AllTexts::create(path.clone()).unwrap();
        let lines = ["a", "b"].map(|text| serde_json::to_string(&made(text)).unwrap() + "\n");
        for line in &lines {
            all.add("text-0001.json", line.as_bytes()).unwrap();
        }
        let error = all.add("text-0003.json", b"{}\n").unwrap_err().to_string();
        assert!(error.contains("text-0003.json"), "{error}");
        all.finish().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines.concat());
    }
}

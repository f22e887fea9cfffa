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

use super::{
    super::{
        shared_out::{Parts, hashes_of},
        texts::TextNumber,
    },
    prepare::Prepared,
};
use crate::{
    contents::UploadQueue,
    output::{
        self,
        read_back::different,
        texts::{ALL_TEXTS, read_text, text_name, write_text},
    },
    rank::{Error, Rank},
    session::ProgressStage,
};

/// A text as a file: far above the longest that can be asked for.
const MOST_TEXT_BYTES: u64 = 256 << 20;

/// Makes texts: each is on its way when the next begins.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(super) spec: GenerateTextSpec,
    pub(super) prepared: Prepared,
}

impl Writer {
    fn name(&self, TextNumber { prompt, sample }: TextNumber) -> String {
        text_name(prompt, sample, self.spec.num_samples)
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
        let text = self.prepared.texts.make(&rank.context.engine, number).await?;
        let place = number.prompt * self.spec.num_samples + number.sample + 1;
        let said = format!("text {place} of {} {}", self.spec.texts(), text.said());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::texts::MadeText;

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

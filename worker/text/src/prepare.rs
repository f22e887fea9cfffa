//! The whole way from files of text to `train.bin` and `val.bin`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ringtune_shared::{
    files::write_atomically,
    ids::{ContentHash, ContentHasher},
    version::VERSION,
};

use crate::{
    Error, Progress, Split, SplitOptions, Stage, Tokenizer,
    gather::{self, Index, Written},
    inputs::{self, Found, Input, InputFile, Kind, Part},
    limits::WINDOW_BYTES,
    manifest::{FileFacts, MANIFEST_FILE, Manifest, TOKEN_TYPE, TRAIN_FILE, VAL_FILE},
    scratch::{Chunk, Record, Scratch},
    tokenize::{self, Work},
};

/// Changes with whatever makes other tokens of the same text: kept parts of other builds are not used then.
const FORMAT: &str = "ringtune tokens 1\n";
/// Room that is left on the disk.
const SPARE_ROOM: u64 = 16 << 20;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct PrepareOptions {
    /// Files and folders, in the order in which their documents are numbered.
    pub inputs: Vec<Input>,
    /// The folder of the files; made if need be.
    pub output: PathBuf,
    /// The folder of the tokenizer.
    pub tokenizer: PathBuf,
    /// The key of .jsonl lines and the column of .parquet files that has the texts.
    pub text_column: String,
    /// Split of documents.
    pub split: SplitOptions,
    /// Threads that make tokens; at least 1.
    pub threads: usize,
    /// Leave out documents that cannot be read, instead of ending at the first.
    pub skip_broken: bool,
}

/// The result of a run.
#[derive(Debug)]
pub struct Prepared {
    /// The content of `meta.json`.
    pub manifest: Manifest,
    scratch: Scratch,
}

impl Prepared {
    /// Removes what was kept for going on; until then the same run would find all tokens made. Blocks.
    ///
    /// # Errors
    /// Those of files.
    pub fn clean(self) -> Result<Manifest, Error> {
        self.scratch.remove()?;
        Ok(self.manifest)
    }
}

/// Makes `train.bin`, `val.bin` and `meta.json` in the output folder. `say` tells the user something in between. Blocks, for
/// hours maybe: `progress` shows how far it is, and stops it.
///
/// # Errors
/// See [`Error`]. What was done so far is kept in the output folder, and the same call goes on from it. Files of an earlier
/// run stay until new ones are whole.
pub fn prepare(
    options: &PrepareOptions,
    progress: &Progress,
    say: &(dyn Fn(&str) + Sync),
) -> Result<Prepared, Error> {
    prepare_on(options, progress, say).map_err(Error::of_full_disk)
}

fn prepare_on(
    options: &PrepareOptions,
    progress: &Progress,
    say: &(dyn Fn(&str) + Sync),
) -> Result<Prepared, Error> {
    // 1. Whatever can be refused before anything is made.
    options.split.check()?;
    if options.threads == 0 {
        return Err(Error::option("--threads", "is 0; allowed: 1 or more"));
    }
    let tokenizer = Tokenizer::open(&options.tokenizer)?;
    tokenizer.check_for_documents(&options.tokenizer)?;
    let Found { sources, left_out } = inputs::find(&options.inputs, &options.text_column)?;
    if left_out > 0 {
        say(&format!("{left_out} files of other endings than .txt, .jsonl and .parquet are left out"));
    }
    let scratch = open_output(&options.output)?;
    // 2. The parts, and which of them are there already.
    let parts = inputs::plan(&sources);
    let maker = maker(&tokenizer, &options.text_column);
    let keys: Vec<ContentHash> = parts.iter().map(|part| part.key(&sources, &maker)).collect();
    let identities = sources.iter().map(|source| source.identity.clone()).collect();
    let record =
        Record { tokenizer: tokenizer.hash(), text_column: options.text_column.clone(), inputs: identities };
    let before = scratch.last_record();
    scratch.keep_only(&keys)?;
    before.iter().flat_map(|before| record.changes_since(before)).for_each(|change| say(&change));
    scratch.write_record(&record)?;
    let kept = find_kept(&scratch, &keys, options.skip_broken, progress)?;
    // 3. The tokens of all parts.
    let sizes: Vec<u64> = parts.iter().map(|part| bytes_of(&sources, part)).collect();
    let of_kept = |(size, chunk): (&u64, &Option<Chunk>)| chunk.as_ref().map_or(0, |_| *size);
    let kept_bytes = sizes.iter().zip(&kept).map(of_kept).sum();
    let count = kept.iter().flatten().count();
    if count > 0 {
        say(&format!("going on: {count} of {} parts are there already", parts.len()));
    }
    kept.iter().flatten().for_each(|chunk| progress.add_documents(chunk.documents, chunk.tokens));
    progress.enter(Stage::Tokenizing, sizes.iter().sum(), kept_bytes);
    let work = Work {
        sources: &sources,
        parts: &parts,
        keys: &keys,
        tokenizer: &tokenizer,
        text_column: &options.text_column,
        skip_broken: options.skip_broken,
        threads: options.threads,
        scratch: &scratch,
        progress,
        say,
    };
    let chunks = tokenize::tokenize(&work, kept)?;
    // 4. The files, each whole before it has its name, and what says that they belong together last.
    let index = Index::new(&chunks)?;
    let split = Split::new(&options.split, index.documents())?;
    make_room(&options.output, 2 * index.tokens())?;
    progress.enter(Stage::Writing, 2 * index.tokens(), 0);
    let source = gather::TokenizedDocuments {
        index: &index,
        chunks: &chunks,
        progress,
        window_tokens: WINDOW_BYTES / 2,
    };
    let at = |name: &str| options.output.join(name);
    remove_if_there(&at(MANIFEST_FILE))?;
    let val = gather::write(&source, split.validation(), &at(VAL_FILE))?;
    let train = gather::write(&source, split.training(), &at(TRAIN_FILE))?;
    let facts = |written: Written| FileFacts {
        documents: written.documents,
        tokens: written.tokens,
        sha256: written.sha256,
    };
    let manifest = Manifest {
        ringtune_version: VERSION.to_owned(),
        token_type: TOKEN_TYPE.to_owned(),
        vocabulary_size: tokenizer.vocabulary_size(),
        end_of_text_id: tokenizer.end_of_text(),
        tokenizer_sha256: tokenizer.hash(),
        seed: options.split.seed,
        val_fraction: options.split.val_fraction,
        skipped_documents: chunks.iter().map(|chunk| chunk.skipped).sum(),
        train: facts(train),
        val: facts(val),
    };
    write_atomically(&at(MANIFEST_FILE), manifest.to_json()?.as_bytes())?;
    Ok(Prepared { manifest, scratch })
}

/// The hash of all that tokens depend on besides the texts.
fn maker(tokenizer: &Tokenizer, text_column: &str) -> ContentHash {
    let mut hasher = ContentHasher::new();
    hasher.update(FORMAT.as_bytes());
    hasher.update(&tokenizer.hash().0);
    hasher.update(text_column.as_bytes());
    hasher.finish()
}

/// Makes the output folder, if need be, and makes sure that files can be written there.
fn open_output(output: &Path) -> Result<Scratch, Error> {
    if output.exists() && !output.is_dir() {
        return Err(Error::option("--output-dir", format!("{} is no folder", output.display())));
    }
    for name in [TRAIN_FILE, VAL_FILE, MANIFEST_FILE] {
        let path = output.join(name);
        if path.is_dir() {
            return Err(Error::unusable(&path, "is a folder; a file is to be written there"));
        }
    }
    Scratch::open(output)
}

/// The parts that an earlier run has left whole.
fn find_kept(
    scratch: &Scratch,
    keys: &[ContentHash],
    skip_broken: bool,
    progress: &Progress,
) -> Result<Vec<Option<Chunk>>, Error> {
    let mut kept = Vec::with_capacity(keys.len());
    for key in keys {
        if progress.is_stopped() {
            return Err(Error::Stopped { kept: kept.iter().flatten().count(), chunks: keys.len() });
        }
        let found = Chunk::find(&scratch.path_of(key))?;
        // Skipped documents may not be skipped this time: they have to be reported.
        kept.push(found.filter(|chunk| chunk.skipped == 0 || skip_broken));
    }
    Ok(kept)
}

/// A part's bytes of progress.
fn bytes_of(sources: &[InputFile], part: &Part) -> u64 {
    let sources = sources.get(part.sources()).unwrap_or_default();
    match part {
        Part::Texts(_) => sources.iter().map(|source| source.identity.size).sum(),
        Part::Lines { bytes, .. } => bytes.end - bytes.start,
        Part::Groups { groups, .. } => {
            let of = |source: &InputFile| match &source.kind {
                Kind::Table(all) => {
                    all.get(groups.clone()).unwrap_or_default().iter().map(|group| group.bytes).sum()
                }
                _ => 0,
            };
            sources.iter().map(of).sum()
        }
    }
}

/// Makes sure that both files have room. Halves of them, which a killed run has left, would only take it.
fn make_room(folder: &Path, needed: u64) -> Result<(), Error> {
    for name in [TRAIN_FILE, VAL_FILE] {
        remove_if_there(&gather::temporary(&folder.join(name)))?;
    }
    check_room(folder, needed)
}

fn check_room(folder: &Path, needed: u64) -> Result<(), Error> {
    let about = rustix::fs::statvfs(folder).map_err(|error| Error::io("read", folder)(error.into()))?;
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    if needed.saturating_add(SPARE_ROOM) <= free {
        return Ok(());
    }
    let what = format!("{TRAIN_FILE} with {VAL_FILE}");
    Err(Error::Room { folder: folder.to_owned(), what, free, needed: needed.saturating_add(SPARE_ROOM) })
}

fn remove_if_there(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_killed_run_are_gone_before_the_room_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let halves = [TRAIN_FILE, VAL_FILE].map(|name| folder.path().join(format!(".{name}.tmp")));
        halves.iter().for_each(|half| fs::write(half, "x").unwrap());
        assert!(matches!(make_room(folder.path(), u64::MAX), Err(Error::Room { .. })));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

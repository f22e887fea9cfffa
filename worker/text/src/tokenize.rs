//! Tokenizes all parts of the inputs into files, on several threads.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread,
};

use ringtune_shared::ids::ContentHash;

use crate::{
    Encoder, Error, Progress, Tokenizer,
    inputs::{self, Broken, InputFile, Part, Sink},
    limits::MOST_REMARKS,
    scratch::{Chunk, ChunkWriter, Scratch},
};

/// Bytes of text after which a thread says how far it is, and looks whether it should stop.
const PACE: u64 = 1 << 20;

/// Inputs and options.
pub(crate) struct Work<'a> {
    pub(crate) sources: &'a [InputFile],
    pub(crate) parts: &'a [Part],
    /// Of each part.
    pub(crate) keys: &'a [ContentHash],
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) text_column: &'a str,
    pub(crate) skip_broken: bool,
    pub(crate) threads: usize,
    pub(crate) scratch: &'a Scratch,
    pub(crate) progress: &'a Progress,
    /// Says something to the user.
    pub(crate) say: &'a (dyn Fn(&str) + Sync),
}

/// Makes the tokens of each part that `kept` has none of; gives the tokens of all. Each thread takes the next part that nobody
/// has, so nothing is queued. Blocks.
///
/// # Errors
/// That of the first part that has one, however many threads there are; or not a single thread can be started. What the other
/// parts were made to is kept.
pub(crate) fn tokenize(work: &Work<'_>, kept: Vec<Option<Chunk>>) -> Result<Vec<Chunk>, Error> {
    let missing: Vec<usize> =
        kept.iter().enumerate().filter(|(_, chunk)| chunk.is_none()).map(|(number, _)| number).collect();
    let shared = Shared {
        next: AtomicUsize::new(0),
        wanted: PartsWanted(AtomicUsize::new(usize::MAX)),
        told: AtomicU64::new(0),
    };
    let threads = work.threads.min(missing.len());
    let done: Vec<(usize, Result<Chunk, Error>)> = thread::scope(|scope| {
        let mut started = Vec::new();
        for _ in 0..threads {
            let run = || run_thread(work, &missing, &shared);
            match thread::Builder::new().spawn_scoped(scope, run) {
                Ok(thread) => started.push(thread),
                Err(error) if started.is_empty() => return Err(Error::Threads(error)),
                Err(error) => {
                    (work.say)(&format!("going on with {} of {threads} threads: {error}", started.len()));
                    break;
                }
            }
        }
        let ended = started.into_iter().map(|thread| thread.join());
        let lost = |_| vec![(0, Err(Error::Internal("a thread that makes tokens has ended".to_owned())))];
        Ok(ended.flat_map(|ended| ended.unwrap_or_else(lost)).collect::<Vec<_>>())
    })?;
    let mut chunks = kept;
    let mut failures = Vec::new();
    for (number, outcome) in done {
        match outcome {
            Ok(chunk) => chunks[number] = Some(chunk),
            Err(error) => failures.push((matches!(error, Error::Stopped { .. }), number, error)),
        }
    }
    // The parts before one that failed were read to their end, so this is the same error in every run.
    failures.sort_by_key(|(stopped, number, _)| (*stopped, *number));
    if let Some((false, _, error)) = failures.into_iter().next() {
        return Err(error);
    }
    let count = chunks.len();
    let whole: Vec<Chunk> = chunks.into_iter().flatten().collect();
    if whole.len() == count { Ok(whole) } else { Err(Error::Stopped { kept: whole.len(), chunks: count }) }
}

/// State shared by the threads.
struct Shared {
    next: AtomicUsize,
    wanted: PartsWanted,
    /// Broken documents that were told of.
    told: AtomicU64,
}

/// Number of parts worth tokenizing: those before the first that failed, as one of them may fail too and would be the one to
/// report.
struct PartsWanted(AtomicUsize);

impl PartsWanted {
    fn has(&self, part: usize) -> bool {
        part < self.0.load(Ordering::Relaxed)
    }

    fn only_before(&self, part: usize) {
        self.0.fetch_min(part, Ordering::Relaxed);
    }
}

/// Has the other threads stop when its own panics.
struct StopsOthers<'a>(&'a PartsWanted);

impl Drop for StopsOthers<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.only_before(0);
        }
    }
}

fn run_thread(work: &Work<'_>, missing: &[usize], shared: &Shared) -> Vec<(usize, Result<Chunk, Error>)> {
    let _stops_others = StopsOthers(&shared.wanted);
    let mut encoder = work.tokenizer.encoder();
    let mut done = Vec::new();
    while let Some(number) = missing.get(shared.next.fetch_add(1, Ordering::Relaxed)).copied() {
        if !shared.wanted.has(number) || work.progress.is_stopped() {
            break;
        }
        let outcome = make(work, number, &mut encoder, shared);
        if outcome.is_err() {
            shared.wanted.only_before(number);
        }
        done.push((number, outcome));
    }
    done
}

fn make(work: &Work<'_>, number: usize, encoder: &mut Encoder<'_>, shared: &Shared) -> Result<Chunk, Error> {
    let (part, key) = match (work.parts.get(number), work.keys.get(number)) {
        (Some(part), Some(key)) => (part, key),
        _ => return Err(Error::Internal(format!("there is no part {number}"))),
    };
    let writer = ChunkWriter::create(work.scratch.path_of(key))?;
    let mut maker = Maker {
        work,
        shared,
        number,
        encoder,
        writer,
        tokens: Vec::new(),
        skipped: 0,
        since: Since::default(),
    };
    inputs::read(work.sources, part, work.text_column, &mut maker)?;
    maker.tell();
    maker.writer.finish(maker.skipped)
}

/// Makes tokens of documents.
struct Maker<'a, 'e> {
    work: &'a Work<'a>,
    shared: &'a Shared,
    number: usize,
    encoder: &'a mut Encoder<'e>,
    writer: ChunkWriter,
    tokens: Vec<u16>,
    skipped: u64,
    since: Since,
}

/// Counts not yet added to the counters.
#[derive(Default)]
struct Since {
    documents: u64,
    tokens: u64,
    bytes: u64,
}

impl Maker<'_, '_> {
    fn tell(&mut self) {
        let Since { documents, tokens, bytes } = std::mem::take(&mut self.since);
        self.work.progress.add_documents(documents, tokens);
        self.work.progress.add_bytes(bytes);
    }
}

impl Sink for Maker<'_, '_> {
    fn document(&mut self, text: &str) -> Result<(), Error> {
        if self.work.progress.is_stopped() || !self.shared.wanted.has(self.number) {
            // Kept parts are counted at the end.
            return Err(Error::Stopped { kept: 0, chunks: 0 });
        }
        self.tokens.clear();
        self.encoder.encode_ordinary(text, &mut self.tokens);
        self.tokens.push(self.work.tokenizer.end_of_text());
        self.since.documents += 1;
        self.since.tokens += self.tokens.len() as u64;
        self.writer.document(&self.tokens)
    }

    fn broken(&mut self, broken: Broken) -> Result<(), Error> {
        if !self.work.skip_broken {
            return Err(Error::Document { place: broken.place.text(), problem: broken.problem });
        }
        self.skipped += 1;
        let told = self.shared.told.fetch_add(1, Ordering::Relaxed);
        match told.cmp(&(MOST_REMARKS as u64)) {
            std::cmp::Ordering::Less => {
                (self.work.say)(&format!("left out: {}: {}", broken.place.text(), broken.problem));
            }
            std::cmp::Ordering::Equal => (self.work.say)("left out: more, which are counted and not shown"),
            std::cmp::Ordering::Greater => (),
        }
        Ok(())
    }

    fn advance(&mut self, bytes: u64) {
        self.since.bytes += bytes;
        if self.since.bytes >= PACE {
            self.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_has_the_others_stop() {
        for panics in [false, true] {
            let wanted = PartsWanted(AtomicUsize::new(usize::MAX));
            let ended = std::panic::catch_unwind(|| {
                let _stops_others = StopsOthers(&wanted);
                assert!(!panics, "as it was asked to");
            });
            assert_eq!((ended.is_err(), wanted.has(0)), (panics, !panics));
        }
    }
}

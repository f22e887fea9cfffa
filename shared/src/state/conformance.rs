//! The suite that every source and every sink of states must pass.

use super::{
    CHUNK_BYTES, Cursor, Dtype, MemoryState, State as _, StateError, StateSink, StateSource, TensorInfo,
    TensorList, transfer,
};

/// A sink that can be asked what it has.
pub(super) trait TestedSink: StateSink {
    /// Whether what it has is `state`; none where it has nothing that anybody may use.
    ///
    /// # Errors
    /// It cannot be asked.
    fn holds(&mut self, state: &MemoryState) -> Result<Option<bool>, StateError>;
}

/// A difference from the expected result, in words.
pub(super) type Failure = String;

/// Makes a source of a given state.
pub(super) type OpenSource<'a> =
    dyn FnMut(&MemoryState) -> Result<Box<dyn StateSource + '_>, StateError> + 'a;

/// Makes an empty sink.
pub(super) type OpenSink<'a> = dyn FnMut() -> Result<Box<dyn TestedSink>, StateError> + 'a;

/// States of every kind: without tensors, without numbers, of every type, around the length of a chunk, of many tensors.
///
/// # Errors
/// Never: that would be a bug.
pub(super) fn samples() -> Result<Vec<MemoryState>, StateError> {
    let mut random = Bytes(7);
    let mut state = |tensors: Vec<(String, Dtype, Vec<u64>)>| {
        let filled = tensors.into_iter().map(|(name, dtype, shape)| {
            let info = TensorInfo::new(name, dtype, shape)?;
            let bytes = random.take(usize::try_from(info.bytes()).unwrap_or(0));
            Ok((info, bytes))
        });
        MemoryState::new(filled.collect::<Result<_, StateError>>()?)
    };
    let flat = |name: &str, dtype, length: usize| (name.to_owned(), dtype, vec![length as u64]);
    let types = [
        Dtype::BOOL,
        Dtype::F4,
        Dtype::U8,
        Dtype::I8,
        Dtype::F8_E5M2,
        Dtype::I16,
        Dtype::U16,
        Dtype::F16,
        Dtype::BF16,
        Dtype::I32,
        Dtype::U32,
        Dtype::F32,
        Dtype::C64,
        Dtype::F64,
        Dtype::I64,
        Dtype::U64,
    ];
    let numbers = CHUNK_BYTES / 4;
    Ok(vec![
        state(Vec::new())?,
        state(vec![("a number".to_owned(), Dtype::F32, Vec::new())])?,
        state(vec![flat("none", Dtype::F32, 0), ("also none".to_owned(), Dtype::I64, vec![3, 0, 2])])?,
        state(types.map(|dtype| (format!("of {dtype} \"\\é\n"), dtype, vec![2, 3])).to_vec())?,
        state(vec![
            flat("one less", Dtype::F32, numbers - 1),
            flat("a chunk", Dtype::F32, numbers),
            flat("one more", Dtype::F32, numbers + 1),
            flat("between", Dtype::U8, 0),
            flat("two and a half", Dtype::BF16, 5 * numbers),
        ])?,
        state((0..300).map(|number| (format!("layer.{number}"), Dtype::F32, vec![number % 7])).collect())?,
    ])
}

/// Checks that a source gives the states of [`samples`] to the byte, in the chunks that are due, and then no more.
///
/// # Errors
/// What it does else.
pub(super) fn run_source(open: &mut OpenSource<'_>) -> Result<(), Failure> {
    for (number, sample) in samples().map_err(text)?.iter().enumerate() {
        check_source(sample, &mut *open(sample).map_err(text)?)
            .map_err(|problem| format!("sample {number}: {problem}"))?;
    }
    Ok(())
}

fn check_source(sample: &MemoryState, source: &mut dyn StateSource) -> Result<(), Failure> {
    let list = list_of(sample)?;
    if *source.list() != list {
        return Err("the list is another one".to_owned());
    }
    let (mut cursor, all) = (Cursor::new(list), sample.tensors().collect::<Vec<_>>());
    while let Some(place) = cursor.advance() {
        let chunk = source.next_chunk().map_err(text)?.ok_or(format!("it ends before {place:?}"))?;
        let start = usize::try_from(place.offset).map_err(text)?;
        let expected = all.get(place.tensor).and_then(|(_, bytes)| bytes.get(start..start + place.length));
        if Some(chunk) != expected {
            return Err(format!("the {} bytes of {place:?} are others", chunk.len()));
        }
    }
    for _ in 0..2 {
        if source.next_chunk().map_err(text)?.is_some() {
            return Err("something follows the last tensor".to_owned());
        }
    }
    Ok(())
}

/// Checks that a sink has the states of [`samples`] when they came, and nothing where something went wrong.
///
/// # Errors
/// What it does else.
pub(super) fn run_sink(open: &mut OpenSink<'_>) -> Result<(), Failure> {
    for (number, sample) in samples().map_err(text)?.iter().enumerate() {
        let checks: [(&str, Check); 3] = [
            ("whole", takes_all),
            ("out of turn", refuses_what_is_not_due),
            ("cut", keeps_nothing_of_a_part),
        ];
        for (name, check) in checks {
            check(sample, open).map_err(|problem| format!("sample {number}, {name}: {problem}"))?;
        }
    }
    Ok(())
}

type Check = fn(&MemoryState, &mut OpenSink<'_>) -> Result<(), Failure>;

fn takes_all(sample: &MemoryState, open: &mut OpenSink<'_>) -> Result<(), Failure> {
    let mut sink = open().map_err(text)?;
    expect(&mut *sink, sample, None)?;
    transfer(&mut *sample.source().map_err(text)?, &mut *sink).map_err(text)?;
    expect(&mut *sink, sample, Some(true))?;
    // Chunks after the end change nothing.
    refused("a chunk behind the end", sink.write(&[1]))?;
    refused("a second end", sink.finish())?;
    expect(&mut *sink, sample, Some(true))
}

fn refuses_what_is_not_due(sample: &MemoryState, open: &mut OpenSink<'_>) -> Result<(), Failure> {
    let list = list_of(sample)?;
    let mut sink = open().map_err(text)?;
    refused("a chunk before the list", sink.write(&[1]))?;
    expect(&mut *sink, sample, None)?;
    let mut sink = open().map_err(text)?;
    refused("an end before the list", sink.finish())?;
    expect(&mut *sink, sample, None)?;
    let mut sink = open().map_err(text)?;
    sink.begin(&list).map_err(text)?;
    refused("a second list", sink.begin(&list))?;
    expect(&mut *sink, sample, None)?;
    // A byte more or less than expected.
    let due = Cursor::new(list.clone()).due().map_or(0, |place| place.length);
    for length in [due + 1, due.saturating_sub(1)] {
        let mut sink = open().map_err(text)?;
        sink.begin(&list).map_err(text)?;
        if length != due {
            refused("a chunk of another length", sink.write(&vec![0; length]))?;
            refused("an end after it", sink.finish())?;
            expect(&mut *sink, sample, None)?;
        }
    }
    Ok(())
}

fn keeps_nothing_of_a_part(sample: &MemoryState, open: &mut OpenSink<'_>) -> Result<(), Failure> {
    let chunks = {
        let (mut cursor, mut chunks) = (Cursor::new(list_of(sample)?), 0);
        while cursor.advance().is_some() {
            chunks += 1;
        }
        chunks
    };
    for whole in [0, chunks / 2, chunks.max(1) - 1] {
        if whole == chunks {
            continue;
        }
        // 1. A source that fails.
        let mut sink = open().map_err(text)?;
        let mut source = Failing { source: sample.source().map_err(text)?, left: whole };
        refused("a source that fails", transfer(&mut source, &mut *sink))?;
        expect(&mut *sink, sample, None)?;
        // 2. An end that comes too early.
        let mut sink = open().map_err(text)?;
        let mut source = sample.source().map_err(text)?;
        sink.begin(source.list()).map_err(text)?;
        for _ in 0..whole {
            if let Some(chunk) = source.next_chunk().map_err(text)? {
                sink.write(chunk).map_err(text)?;
            }
        }
        refused("an end that comes too early", sink.finish())?;
        expect(&mut *sink, sample, None)?;
    }
    Ok(())
}

fn expect(sink: &mut dyn TestedSink, sample: &MemoryState, expected: Option<bool>) -> Result<(), Failure> {
    let found = sink.holds(sample).map_err(text)?;
    if found == expected { Ok(()) } else { Err(format!("it holds {found:?}, not {expected:?}")) }
}

fn refused(what: &str, outcome: Result<(), StateError>) -> Result<(), Failure> {
    outcome.err().map(drop).ok_or(format!("{what} is taken"))
}

fn list_of(sample: &MemoryState) -> Result<TensorList, Failure> {
    Ok(sample.source().map_err(text)?.list().clone())
}

fn text(error: impl std::fmt::Display) -> Failure {
    error.to_string()
}

/// Fails after some chunks.
struct Failing<'a> {
    source: Box<dyn StateSource + 'a>,
    left: usize,
}

impl StateSource for Failing<'_> {
    fn list(&self) -> &TensorList {
        self.source.list()
    }

    fn next_chunk(&mut self) -> Result<Option<&[u8]>, StateError> {
        self.left =
            self.left.checked_sub(1).ok_or_else(|| StateError::refused("it failed as it was told"))?;
        self.source.next_chunk()
    }
}

/// Made-up bytes. SplitMix64: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
struct Bytes(u64);

impl Bytes {
    fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bytes.extend_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

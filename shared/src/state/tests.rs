use std::{
    fs,
    io::{self, Cursor as Reading, Write as _},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

use proptest::prelude::*;
use safetensors::{SafeTensors, tensor::TensorView};

use super::{
    conformance::{TestedSink, run_sink, run_source, samples},
    *,
};
use crate::ids::ContentHash;

fn encoded(state: &MemoryState, metadata: &Metadata) -> Vec<u8> {
    let mut encoder = Encoder::new(metadata.clone(), Vec::new());
    transfer(&mut *state.source().unwrap(), &mut encoder).unwrap();
    encoder.into_inner()
}

fn plain(state: &MemoryState) -> Vec<u8> {
    encoded(state, &Metadata::new())
}

fn decoded(bytes: &[u8]) -> Result<MemoryState, StateError> {
    MemoryState::read(&mut Decoder::new(bytes, None)?, u64::MAX)
}

// ---- Sources ----

#[test]
fn every_source_gives_every_state() {
    run_source(&mut |state| state.source()).unwrap();
    // The encoding, with its size known and without, from memory and from a file.
    run_source(&mut |state| Ok(Box::new(Decoder::new(Reading::new(plain(state)), None)?))).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    run_source(&mut |state| {
        fs::write(&file, plain(state))?;
        Ok(Box::new(open_file(&file)?))
    })
    .unwrap();
    run_source(&mut |state| {
        let hash = TensorsHash::of(&mut *state.source()?)?;
        Ok(Box::new(Verified::new(Decoder::new(Reading::new(plain(state)), None)?, hash)))
    })
    .unwrap();
    // A socket, whose other side writes as fast as it can.
    run_source(&mut |state| {
        let (near, mut far) = UnixStream::pair()?;
        let bytes = plain(state);
        thread::spawn(move || far.write_all(&bytes).unwrap());
        Ok(Box::new(Decoder::new(Hashing::new(near), None)?))
    })
    .unwrap();
}

// ---- Sinks ----

impl TestedSink for MemorySink {
    fn holds(&mut self, state: &MemoryState) -> Result<Option<bool>, StateError> {
        Ok(self.state().map(|held| held == state))
    }
}

impl TestedSink for TensorsHash {
    fn holds(&mut self, state: &MemoryState) -> Result<Option<bool>, StateError> {
        let bytes: Vec<u8> = state.tensors().flat_map(|(_, bytes)| bytes.to_vec()).collect();
        Ok(self.hash().map(|hash| hash == ContentHash::of(&bytes)))
    }
}

impl TestedSink for Encoder<io::Sink> {
    fn holds(&mut self, state: &MemoryState) -> Result<Option<bool>, StateError> {
        let bytes = plain(state);
        let right = Encoded { sha256: ContentHash::of(&bytes), bytes: bytes.len() as u64 };
        Ok(self.encoded().map(|encoded| encoded == right))
    }
}

/// With a folder of its own.
struct TestedFile(tempfile::TempDir, Option<FileSink>);

impl TestedFile {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sink = FileSink::create(&folder.path().join("state"), Metadata::new()).unwrap();
        Self(folder, Some(sink))
    }

    fn sink(&mut self) -> &mut FileSink {
        self.1.as_mut().unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl StateSink for TestedFile {
    fn begin(&mut self, list: &TensorList) -> Result<(), StateError> {
        self.sink().begin(list)
    }

    fn write(&mut self, chunk: &[u8]) -> Result<(), StateError> {
        self.sink().write(chunk)
    }

    fn finish(&mut self) -> Result<(), StateError> {
        self.sink().finish()
    }
}

impl TestedSink for TestedFile {
    fn holds(&mut self, state: &MemoryState) -> Result<Option<bool>, StateError> {
        let file = self.0.path().join("state");
        if !file.exists() {
            assert_eq!(self.sink().encoded(), None);
            return Ok(None);
        }
        let bytes = fs::read(&file)?;
        assert_eq!(self.sink().encoded().unwrap().sha256, ContentHash::of(&bytes));
        assert_eq!(self.files(), [file]);
        Ok(Some(bytes == plain(state)))
    }
}

/// A state that goes to another thread through a socket, as to a neighbour.
struct TestedStream {
    encoder: Option<Encoder<UnixStream>>,
    neighbour: Option<JoinHandle<Result<MemoryState, StateError>>>,
    arrived: Option<MemoryState>,
}

impl TestedStream {
    fn new() -> Self {
        let (near, far) = UnixStream::pair().unwrap();
        let receive = move || MemoryState::read(&mut Decoder::new(far, None)?, u64::MAX);
        let encoder = Encoder::new(Metadata::new(), near);
        Self { encoder: Some(encoder), neighbour: Some(thread::spawn(receive)), arrived: None }
    }

    fn encoder(&mut self) -> Result<&mut Encoder<UnixStream>, StateError> {
        self.encoder.as_mut().ok_or_else(|| StateError::refused("it is closed"))
    }

    fn close(&mut self) {
        if let Some(encoder) = self.encoder.take() {
            encoder.into_inner().shutdown(Shutdown::Write).unwrap();
        }
        if let Some(neighbour) = self.neighbour.take() {
            self.arrived = neighbour.join().unwrap().ok();
        }
    }
}

impl StateSink for TestedStream {
    fn begin(&mut self, list: &TensorList) -> Result<(), StateError> {
        self.encoder()?.begin(list)
    }

    fn write(&mut self, chunk: &[u8]) -> Result<(), StateError> {
        self.encoder()?.write(chunk)
    }

    fn finish(&mut self) -> Result<(), StateError> {
        self.encoder()?.finish()?;
        self.close();
        Ok(())
    }
}

impl TestedSink for TestedStream {
    fn holds(&mut self, state: &MemoryState) -> Result<Option<bool>, StateError> {
        Ok(self.arrived.as_ref().map(|arrived| arrived == state))
    }
}

impl Drop for TestedStream {
    /// A truncated state did not arrive, unless only the end marker was missing.
    fn drop(&mut self) {
        self.close();
    }
}

#[test]
fn every_sink_takes_every_state() {
    run_sink(&mut || Ok(Box::new(MemorySink::new(u64::MAX)))).unwrap();
    run_sink(&mut || Ok(Box::new(TensorsHash::default()))).unwrap();
    run_sink(&mut || Ok(Box::new(Encoder::new(Metadata::new(), io::sink())))).unwrap();
    run_sink(&mut || Ok(Box::new(TestedFile::new()))).unwrap();
    run_sink(&mut || Ok(Box::new(TestedStream::new()))).unwrap();
}

#[test]
fn a_file_that_was_not_finished_leaves_nothing_and_the_old_one_stays() {
    let mut cut = TestedFile::new();
    let state = samples().unwrap().remove(4);
    fs::write(cut.0.path().join("state"), "old").unwrap();
    cut.begin(state.source().unwrap().list()).unwrap();
    assert_eq!(cut.files().len(), 2);
    cut.1 = None;
    assert_eq!(cut.files(), [cut.0.path().join("state")]);
    assert_eq!(fs::read(cut.0.path().join("state")).unwrap(), b"old");
    let nowhere = FileSink::create(Path::new("/no-such-folder/state"), Metadata::new());
    assert!(matches!(nowhere, Err(StateError::File(_))));
}

#[test]
fn a_sink_has_a_limit() {
    let state = samples().unwrap().remove(1);
    let read = |limit| MemoryState::read(&mut *state.source().unwrap(), limit);
    assert!(read(4).is_ok());
    assert!(matches!(read(3), Err(StateError::TooMany { given: 4, limit: 3, .. })));
}

// ---- The encoding ----

fn dtypes() -> impl Strategy<Value = Dtype> {
    proptest::sample::select(vec![
        Dtype::F32,
        Dtype::BF16,
        Dtype::F16,
        Dtype::U8,
        Dtype::I64,
        Dtype::BOOL,
        Dtype::F64,
        Dtype::I32,
        Dtype::F8_E4M3,
    ])
}

/// Any state: up to 20 tensors of all shapes, with names that JSON has to escape, too.
fn states() -> impl Strategy<Value = MemoryState> {
    let tensor = (dtypes(), proptest::collection::vec(0u64..5, 0..4), any::<u8>());
    proptest::collection::btree_map("[a-z.\"\\\\\u{1}é]{1,12}", tensor, 0..20).prop_map(|tensors| {
        let filled = tensors.into_iter().map(|(name, (dtype, shape, seed))| {
            let info = TensorInfo::new(name, dtype, shape).unwrap();
            let bytes = (0..info.bytes()).map(|place| seed.wrapping_add(place as u8)).collect();
            (info, bytes)
        });
        MemoryState::new(filled.collect()).unwrap()
    })
}

proptest! {
    #[test]
    fn the_bytes_are_those_of_the_formats_own_writer(state in states(), note in proptest::option::of(".{0,20}")) {
        let metadata: Metadata = note.iter().map(|text| ("note".to_owned(), text.clone())).collect();
        let views = state.tensors().map(|(info, bytes)| {
            let shape = info.shape().iter().map(|side| *side as usize).collect();
            (info.name(), TensorView::new(info.dtype(), shape, bytes).unwrap())
        });
        let theirs = note.map(|text| [("note".to_owned(), text)].into_iter().collect());
        let expected = safetensors::serialize(views, theirs).unwrap();
        let bytes = encoded(&state, &metadata);
        prop_assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(&expected));
        prop_assert_eq!(&bytes, &expected);
        // There and back.
        let decoder = Decoder::new(bytes.as_slice(), Some(bytes.len() as u64)).unwrap();
        prop_assert_eq!(&decoder.header().metadata, &metadata);
        prop_assert_eq!(decoder.header().size(), bytes.len() as u64);
        prop_assert_eq!(decoded(&bytes).unwrap(), state);
    }

    #[test]
    fn a_part_or_more_than_all_is_refused(state in states(), cut in any::<prop::sample::Index>()) {
        let mut bytes = plain(&state);
        let part = &bytes[..cut.index(bytes.len())];
        let expected = decoded(part);
        prop_assert!(matches!(expected, Err(StateError::Truncated { .. })), "{:?}", expected);
        let known = Decoder::new(part, Some(part.len() as u64)).map(drop);
        prop_assert!(matches!(known, Err(StateError::Truncated { .. })), "{:?}", known);
        bytes.push(0);
        let longer = decoded(&bytes);
        prop_assert!(matches!(longer, Err(StateError::Trailing { .. })), "{:?}", longer);
        let known = Decoder::new(bytes.as_slice(), Some(bytes.len() as u64)).map(drop);
        prop_assert!(matches!(known, Err(StateError::Trailing { .. })), "{:?}", known);
    }

    /// The format's own reader reads all that ours does, with the same result.
    #[test]
    fn a_changed_header_is_read_as_the_format_has_it(
        state in states(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = plain(&state);
        let header = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        for (place, byte) in changes {
            bytes[place.index(header)] = byte;
        }
        if let Ok(read) = decoded(&bytes) {
            let theirs = SafeTensors::deserialize(&bytes).unwrap();
            for (info, data) in read.tensors() {
                let tensor = theirs.tensor(info.name()).unwrap();
                prop_assert_eq!((tensor.dtype(), tensor.data()), (info.dtype(), data));
            }
        }
    }
}

#[test]
fn what_is_stored_in_another_order_is_read_but_not_written() {
    let header = r#"{"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[1, 2, 3, 4, 5, 6]].concat();
    let mut decoder = Decoder::new(bytes.as_slice(), None).unwrap();
    let names: Vec<&str> = decoder.list().tensors().iter().map(TensorInfo::name).collect();
    assert_eq!(names, ["b", "a"]);
    let written = Encoder::hash(Metadata::new(), &mut decoder);
    assert!(matches!(written, Err(StateError::Order { ref name }) if name == "a"), "{written:?}");
    let read = decoded(&bytes).unwrap();
    assert_eq!(
        read.tensors().map(|(_, bytes)| bytes.to_vec()).collect::<Vec<_>>(),
        [vec![3, 4, 5, 6], vec![1, 2]]
    );
}

#[test]
fn a_file_that_becomes_shorter_while_it_is_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let bytes = plain(&samples().unwrap()[4]);
    fs::write(&file, &bytes).unwrap();
    let mut source = open_file(&file).unwrap();
    source.next_chunk().unwrap().unwrap();
    fs::File::options().write(true).open(&file).unwrap().set_len(bytes.len() as u64 - 1).unwrap();
    let ended = loop {
        match source.next_chunk() {
            Ok(Some(_)) => {}
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let (expected, found) = (bytes.len() as u64, bytes.len() as u64 - 1);
    let right =
        matches!(ended, Err(StateError::Truncated { expected: e, found: f }) if (e, f) == (expected, found));
    assert!(right, "{ended:?}");
}

#[test]
fn other_bytes_than_those_that_were_named_are_told_at_the_end() {
    let state = samples().unwrap().remove(1);
    let wrong = ContentHash::of(b"something else");
    let mut source = Verified::new(Decoder::new(Reading::new(plain(&state)), None).unwrap(), wrong);
    let read = MemoryState::read(&mut source, u64::MAX);
    assert!(matches!(read, Err(StateError::Hash { expected, .. }) if expected == wrong), "{read:?}");
}

#[test]
fn a_file_that_is_not_committed_leaves_nothing_and_a_committed_one_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (path, whole) = (folder.path().join("state"), folder.path().join("whole"));
    let state =
        MemoryState::new(vec![(TensorInfo::new("a", Dtype::F32, vec![2]).unwrap(), vec![7; 8])]).unwrap();
    let mut at_once = FileSink::create(&whole, Metadata::new()).unwrap();
    transfer(&mut *state.source().unwrap(), &mut at_once).unwrap();
    // 1. Not ended, ended and dropped, or ended twice: nothing.
    assert!(FileSink::create_uncommitted(&path, Metadata::new()).unwrap().commit().is_err());
    let filled = || {
        let mut sink = FileSink::create_uncommitted(&path, Metadata::new()).unwrap();
        transfer(&mut *state.source().unwrap(), &mut sink).unwrap();
        sink
    };
    drop(filled());
    assert!(at_once.commit().is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    // 2. The same bytes, under its name only then.
    let sink = filled();
    assert!(!path.exists());
    let encoded = sink.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&whole).unwrap());
    assert_eq!(encoded.bytes, std::fs::metadata(&path).unwrap().len());
}

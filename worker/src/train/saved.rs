//! A training state as named vectors and counters: what a checkpoint keeps of it.
//!
//! Every part of the state puts its own in when it is saved and takes it out when it is restored; the names begin with
//! the part's. It leaves as the source of a stream and comes back from one; a checkpoint has the counters in an entry of
//! its own, and a neighbour gets them in the metadata of the encoding ([`SavedState::write`]). All of it is small and in memory: weights that
//! live with libtorch, and their moments, do not belong here but in a source and a sink beside it, as the text of
//! [`ringtune_shared::state`] has it.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
};

use ringtune_shared::{
    ids::ContentHash,
    state::{
        ChunkPlace, Decoder, Dtype, Encoded, Encoder, FromTensors, LARGEST_HEADER, MemoryState, Metadata,
        State, StateError, StateSource, TensorInfo, TensorList, transfer,
    },
};

use super::Error;

/// Bytes of all vectors at most: far more than those of any job that is allowed.
const LARGEST_STATE: u64 = 256 << 20;
/// Bytes of a state's encoding at most.
pub(crate) const LARGEST_ENCODING: u64 = LARGEST_STATE + LARGEST_HEADER + 8;
/// The only entry of the encoding's metadata: the counters, as JSON sorted by name.
const COUNTERS: &str = "ringtune.counters";
/// Counters at most: a job has about ten.
const MOST_COUNTERS: usize = 1000;

/// Vectors and counters by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SavedState {
    /// A 64-bit float is kept as its bits.
    pub numbers: BTreeMap<String, u64>,
    /// fp32, flat.
    pub tensors: BTreeMap<String, Vec<f32>>,
}

impl SavedState {
    /// The state whose counters are known and whose vectors a source gives.
    ///
    /// # Errors
    /// The source's; more than 256 MiB; tensors that are no flat fp32.
    pub fn read(numbers: BTreeMap<String, u64>, source: &mut dyn StateSource) -> Result<Self, StateError> {
        for tensor in source.list().tensors() {
            let (name, kind, shape) = (tensor.name(), tensor.dtype(), tensor.shape());
            if kind != Dtype::F32 || shape.len() != 1 {
                let problem = format!("tensor {name:?} is {kind} {shape:?}; allowed: F32 of one dimension");
                return Err(StateError::refused(problem));
            }
        }
        let tensors = MemoryState::read(source, LARGEST_STATE)?.into_tensors().map(|(tensor, bytes)| {
            let (numbers, _) = bytes.as_chunks::<4>();
            let numbers = numbers.iter().map(|number| f32::from_le_bytes(*number)).collect();
            (tensor.name().to_owned(), numbers)
        });
        Ok(Self { numbers, tensors: tensors.collect() })
    }

    /// The hash of the canonical encoding, counters included: equal states have equal ones, whatever ring made them.
    /// Blocks.
    ///
    /// # Errors
    /// See [`SavedState::write`].
    pub fn hash(&self) -> Result<ContentHash, StateError> {
        Ok(Encoder::hash(metadata(&self.numbers)?, &mut *self.source()?)?.sha256)
    }

    /// Writes the canonical encoding, and says what it is. Blocks.
    ///
    /// # Errors
    /// The writer's; names or counters that no encoding can have.
    pub fn write(&self, writer: impl Write) -> Result<Encoded, StateError> {
        let mut encoder = Encoder::new(metadata(&self.numbers)?, writer);
        transfer(&mut *self.source()?, &mut encoder)?;
        encoder.encoded().ok_or_else(|| StateError::refused("its encoding came to no end"))
    }

    /// Reads what [`SavedState::write`] wrote, to its end. Nothing in it is trusted. Blocks.
    ///
    /// # Errors
    /// It is something else, cut, or too large; or the reader's.
    pub fn decode(reader: impl Read) -> Result<Self, StateError> {
        let mut decoder = Decoder::new(reader, None)?;
        let numbers = counters(&decoder.header().metadata)?;
        Self::read(numbers, &mut decoder)
    }

    /// The vectors, to be lent by themselves.
    ///
    /// # Errors
    /// Names that no state can have.
    pub(crate) fn into_source(self) -> Result<Box<dyn StateSource + Send>, StateError> {
        let list = TensorList::new(self.infos()?)?;
        let vectors: Vec<Vec<f32>> = self.tensors.into_values().collect();
        Ok(Box::new(FromTensors::new(list, move |place: ChunkPlace, into: &mut [u8]| {
            fill(vectors.get(place.tensor).map(Vec::as_slice).unwrap_or_default(), place.offset, into);
            Ok(())
        })))
    }

    /// What its vectors are, in the order of their names.
    pub(crate) fn infos(&self) -> Result<Vec<TensorInfo>, StateError> {
        let info = |(name, numbers): (&String, &Vec<f32>)| {
            TensorInfo::new(name, Dtype::F32, vec![numbers.len() as u64])
        };
        self.tensors.iter().map(info).collect()
    }

    /// Adds a vector.
    pub fn put_tensor(&mut self, name: &str, numbers: Vec<f32>) {
        self.tensors.insert(name.to_owned(), numbers);
    }

    /// Adds a counter.
    pub fn put_number(&mut self, name: &str, number: u64) {
        self.numbers.insert(name.to_owned(), number);
    }

    /// Takes a vector out.
    ///
    /// # Errors
    /// It is not there, or has another length.
    pub fn take_tensor(&mut self, name: &str, length: usize) -> Result<Vec<f32>, Error> {
        let numbers = self.tensors.remove(name).ok_or_else(|| missing(name))?;
        if numbers.len() == length {
            return Ok(numbers);
        }
        let problem = format!("the checkpoint has {} numbers in {name}, the job {length}", numbers.len());
        Err(Error::Checkpoint { problem })
    }

    /// Takes a counter out.
    ///
    /// # Errors
    /// It is not there.
    pub fn take_number(&mut self, name: &str) -> Result<u64, Error> {
        self.numbers.remove(name).ok_or_else(|| missing(name))
    }

    /// The end of restoring: everything must have been taken.
    ///
    /// # Errors
    /// Something is left that no part of this job has.
    pub fn finish(self) -> Result<(), Error> {
        match self.tensors.keys().chain(self.numbers.keys()).next() {
            None => Ok(()),
            Some(name) => Err(Error::Checkpoint {
                problem: format!("the checkpoint has {name}, which this job has not"),
            }),
        }
    }
}

impl State for SavedState {
    /// The vectors: all of one type, so that the order of their names is that of the stream.
    fn source(&self) -> Result<Box<dyn StateSource + '_>, StateError> {
        let list = TensorList::new(self.infos()?)?;
        let vectors: Vec<&Vec<f32>> = self.tensors.values().collect();
        Ok(Box::new(FromTensors::new(list, move |place: ChunkPlace, into: &mut [u8]| {
            fill(
                vectors.get(place.tensor).map(|vector| vector.as_slice()).unwrap_or_default(),
                place.offset,
                into,
            );
            Ok(())
        })))
    }
}

/// Copies the bytes of a vector from `offset` on.
pub(crate) fn fill(numbers: &[f32], offset: u64, into: &mut [u8]) {
    let skipped = usize::try_from(offset / 4).unwrap_or(usize::MAX);
    let (chunks, _) = into.as_chunks_mut::<4>();
    for (chunk, number) in chunks.iter_mut().zip(numbers.iter().skip(skipped)) {
        *chunk = number.to_le_bytes();
    }
}

/// The metadata of an encoding of a state with these counters.
pub(crate) fn metadata(numbers: &BTreeMap<String, u64>) -> Result<Metadata, StateError> {
    check_counters(numbers.len())?;
    let text = serde_json::to_string(numbers)
        .map_err(|error| StateError::refused(format!("its counters cannot be written: {error}")))?;
    Ok(Metadata::from([(COUNTERS.to_owned(), text)]))
}

/// The counters in the metadata of an encoding. Nothing in it is trusted.
pub(crate) fn counters(metadata: &Metadata) -> Result<BTreeMap<String, u64>, StateError> {
    let text = metadata.get(COUNTERS).filter(|_| metadata.len() == 1);
    let text =
        text.ok_or_else(|| StateError::refused(format!("its metadata is not the entry {COUNTERS:?}")))?;
    let numbers: BTreeMap<String, u64> = serde_json::from_str(text)
        .map_err(|error| StateError::refused(format!("its entry {COUNTERS:?}: {error}")))?;
    check_counters(numbers.len())?;
    Ok(numbers)
}

fn check_counters(given: usize) -> Result<(), StateError> {
    if given <= MOST_COUNTERS {
        return Ok(());
    }
    Err(StateError::TooMany { what: "counters", given: given as u64, limit: MOST_COUNTERS as u64 })
}

fn missing(name: &str) -> Error {
    Error::Checkpoint { problem: format!("the checkpoint has no {name}") }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{AdamWOptions, ReducedStep, TrainState},
        *,
    };

    /// xorshift64*: seeded, the same everywhere.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
        }

        /// From very small to very large, either sign.
        fn float(&mut self) -> f32 {
            let unit = (self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
            unit * 10f32.powi((self.next() % 25) as i32 - 20)
        }

        /// One gradient in five is not finite.
        fn gradient(&mut self, length: usize) -> ReducedStep {
            let finite = !self.next().is_multiple_of(5);
            let mut gradient: Vec<f32> = (0..length).map(|_| self.float()).collect();
            if !finite {
                gradient[0] = f32::NAN;
            }
            ReducedStep { loss: 1.0, gradient, finite, compute_seconds: 0.0 }
        }
    }

    /// By way of a stream.
    fn saved(state: &TrainState) -> SavedState {
        let mut saved = SavedState::default();
        state.save(&mut saved);
        let streamed = SavedState::read(saved.numbers.clone(), &mut *saved.source().unwrap()).unwrap();
        assert_eq!(streamed.tensors.len(), saved.tensors.len());
        streamed
    }

    /// Vectors and counters by name.
    type Bits = (Vec<(String, Vec<u32>)>, BTreeMap<String, u64>);
    type Change = fn(&mut SavedState);

    fn bits(state: &TrainState) -> Bits {
        let SavedState { tensors, numbers } = saved(state);
        let bits = |vector: Vec<f32>| vector.into_iter().map(f32::to_bits).collect();
        (tensors.into_iter().map(|(name, vector)| (name, bits(vector))).collect(), numbers)
    }

    #[test]
    fn a_restored_state_is_the_same_and_goes_on_the_same() {
        for seed in 1..=60 {
            let mut random = Random(seed);
            let length = 1 + random.next() as usize % 9;
            let clip = random.next().is_multiple_of(2).then_some(0.7);
            let fresh = |row| TrainState::new(row, AdamWOptions::default()).with_max_grad_norm(clip);
            let mut straight = fresh((0..length).map(|_| random.float()).collect());
            for step in 1..=30 {
                let (gradient, rate) = (random.gradient(length), f64::from(random.float().abs()));
                // A broken-off row of ten fails the job: not what this is about.
                if straight.apply(step, &gradient, rate).is_err() {
                    break;
                }
                let mut kept = saved(&straight);
                let mut resumed = fresh(vec![9.0; length]).restored(&mut kept).unwrap();
                kept.finish().unwrap();
                assert_eq!(bits(&resumed), bits(&straight), "seed {seed}, step {step}");
                // One more step for both, from the same gradient.
                let (mut further, next) = (straight.clone(), random.gradient(length));
                let one = resumed.apply(step + 1, &next, rate).is_ok();
                let other = further.apply(step + 1, &next, rate).is_ok();
                assert_eq!((one, bits(&resumed)), (other, bits(&further)), "seed {seed}, step {step}");
            }
        }
    }

    #[test]
    fn only_flat_fp32_within_memory_is_read() {
        let refused = |dtype, shape: Vec<u64>| {
            let list = TensorList::new(vec![TensorInfo::new("odd", dtype, shape).unwrap()]).unwrap();
            let mut source = FromTensors::new(list, |_, into: &mut [u8]| {
                into.fill(0);
                Ok(())
            });
            SavedState::read(BTreeMap::new(), &mut source).unwrap_err().to_string()
        };
        assert_eq!(
            refused(Dtype::BF16, vec![3]),
            "tensor \"odd\" is BF16 [3]; allowed: F32 of one dimension"
        );
        assert!(refused(Dtype::F32, vec![1, 3]).contains("F32 [1, 3]"));
        assert!(refused(Dtype::F32, vec![LARGEST_STATE / 4 + 1]).contains("allowed: at most 268435456"));
    }

    /// Longer than a chunk, so that the place in the vector counts.
    #[test]
    fn a_long_vector_comes_back() {
        let mut state = SavedState::default();
        state.put_tensor("long", (0..600_000).map(|number| number as f32).collect());
        state.put_tensor("none", Vec::new());
        let back = SavedState::read(BTreeMap::new(), &mut *state.source().unwrap()).unwrap();
        assert_eq!(back, state);
    }

    fn small() -> SavedState {
        let mut state = SavedState::default();
        state.put_tensor("train.rows", vec![1.5, -0.0, f32::NAN]);
        state.put_tensor("none", Vec::new());
        state.put_number("train.count", u64::MAX);
        state.put_number("train.\u{e9}\"", 7);
        state
    }

    fn written(state: &SavedState) -> Vec<u8> {
        let mut bytes = Vec::new();
        let encoded = state.write(&mut bytes).unwrap();
        assert_eq!((encoded.sha256, encoded.bytes), (ContentHash::of(&bytes), bytes.len() as u64));
        bytes
    }

    /// Every vector, every counter and every name is in the hash, and nothing else is.
    #[test]
    fn equal_states_have_equal_hashes_and_no_others_do() {
        let state = small();
        assert_eq!(state.hash().unwrap(), ContentHash::of(&written(&state)));
        assert_eq!(state.hash().unwrap(), small().hash().unwrap());
        let changes: [Change; 6] = [
            |state| state.put_number("train.count", 0),
            |state| state.put_number("other", 0),
            |state| {
                state.numbers.remove("train.count");
            },
            // 0 and -0 are equal numbers and different bits.
            |state| state.put_tensor("train.rows", vec![1.5, 0.0, f32::NAN]),
            |state| state.put_tensor("none", vec![0.0]),
            |state| drop(state.tensors.remove("none")),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut other = small();
            change(&mut other);
            assert_ne!(other.hash().unwrap(), state.hash().unwrap(), "change {number}");
        }
    }

    #[test]
    fn what_was_written_comes_back_and_what_is_something_else_does_not() {
        let bytes = written(&small());
        let back = SavedState::decode(bytes.as_slice()).unwrap();
        assert_eq!((written(&back), &back.numbers), (bytes.clone(), &small().numbers));
        let refused = |bytes: &[u8]| SavedState::decode(bytes).unwrap_err().to_string();
        assert!(refused(&bytes[..bytes.len() - 1]).contains("it ends after"));
        assert!(refused(&[bytes.as_slice(), &[0]].concat()).contains("it has bytes after"));
        // What a header says of itself.
        let with = |metadata: Metadata| {
            let mut encoded = Vec::new();
            let state = small();
            let mut encoder = Encoder::new(metadata, &mut encoded);
            transfer(&mut *state.source().unwrap(), &mut encoder).unwrap();
            refused(&encoded)
        };
        let entry = |text: &str| (COUNTERS.to_owned(), text.to_owned());
        assert!(with(Metadata::new()).contains("its metadata is not the entry"));
        let two = Metadata::from([entry("{}"), ("more".to_owned(), String::new())]);
        assert!(with(two).contains("its metadata is not the entry"));
        assert!(with(Metadata::from([entry("{\"a\":-1}")])).contains("its entry \"ringtune.counters\""));
        let mut many = small();
        (0..1000).for_each(|number| many.put_number(&number.to_string(), number));
        assert!(many.hash().unwrap_err().to_string().contains("1002 counters; allowed: at most 1000"));
    }

    #[test]
    fn a_state_that_does_not_fit_is_refused_by_name() {
        let state = TrainState::new(vec![1.0; 4], AdamWOptions::default());
        let refused = |change: fn(&mut SavedState)| {
            let mut kept = saved(&state);
            change(&mut kept);
            let restored = state.clone().restored(&mut kept).map(drop).and_then(|()| kept.finish());
            restored.unwrap_err().to_string()
        };
        let cases: [(&str, Change); 5] = [
            ("no train.rows", |kept| drop(kept.tensors.remove("train.rows"))),
            ("3 numbers in train.adamw_mean, the job 4", |kept| {
                kept.put_tensor("train.adamw_mean", vec![0.0; 3]);
            }),
            ("no train.adamw_count", |kept| {
                kept.numbers.remove("train.adamw_count");
            }),
            ("skipped_in_a_row is 10", |kept| kept.put_number("train.skipped_in_a_row", 10)),
            ("has preview.best, which this job has not", |kept| kept.put_number("preview.best", 1)),
        ];
        for (expected, change) in cases {
            let found = refused(change);
            assert!(found.contains(expected) && found.contains("resume_from_checkpoint"), "{found}");
        }
    }
}

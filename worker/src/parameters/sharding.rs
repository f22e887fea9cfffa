//! An optimizer that ranks have together (`shard_optimizer`): what a rank has of it, and how parts of it go around. Each has the moments of
//! two chunks of every bucket, see [`super::shares`]; what is done with them in a step, and between rings, is in [`super::sharded_steps`].

use std::{ops::Range, sync::Arc};

use ringtune_shared::{state::StateError, tasks::spawn_blocking};

use super::{
    shares::{Cutting, Held, PartSource},
    step::{Computed, StepBegun},
    tensors::{AVERAGE, Layout, MODEL, Tensors, engine_error},
    unnamed_file::UnnamedFile,
};
use crate::{
    engine::{EngineHandle, Piece, Shares, common},
    rank::Error,
    rank_state::Holds,
    ring::RankRing,
    training::Wish,
};

/// Numbers of each tensor that go around at once.
const MOST_AT_ONCE: usize = 1 << 20;
/// What moments are called in a state.
const MOMENTS: [&str; 2] = ["adamw.mean.", "adamw.square."];

/// What a rank has of an optimizer that the ranks have together.
#[derive(Debug)]
pub(super) struct Sharding {
    pub(super) cutting: Cutting,
    names: Arc<[String]>,
    /// What of the moments it has.
    pub(super) held: Held,
    /// Of which step they are.
    pub(super) of_step: u64,
    /// Where all of them are, of a rank that has all: none, they are zeros.
    pub(super) all: Option<Arc<UnnamedFile>>,
    /// Parameters that others hold are not here yet.
    pub(super) incomplete: bool,
    /// A step of which all is here but the others' squares.
    pub(super) pending: Option<Pending>,
    /// The last step that was taken here, and the squares of its gradient.
    pub(super) taken: Option<(u64, f64)>,
    /// What this rank wishes.
    pub(super) wish: Wish,
    /// What any rank wished with the last step.
    pub(super) wished: Wish,
}

/// All of a step but the others' squares.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) begun: StepBegun,
    pub(super) computed: Computed,
}

impl Sharding {
    /// `all`: the moments after `step`; none: they are zeros.
    pub(super) fn new(
        cutting: Cutting,
        names: impl Iterator<Item = String>,
        step: u64,
        all: Option<Arc<UnnamedFile>>,
    ) -> Self {
        Self {
            cutting,
            names: names.collect(),
            held: Held::All,
            of_step: step,
            all,
            incomplete: false,
            pending: None,
            taken: None,
            wish: Wish::Nothing,
            wished: Wish::Nothing,
        }
    }

    /// What falls to this rank in a ring.
    pub(super) fn shares(&self, ring: &RankRing) -> Shares {
        self.cutting.shares(ring.rank(), ring.world_size())
    }

    /// All moments after `step`, where they are in one file.
    pub(super) fn all_after(&self, step: u64) -> Option<Arc<UnnamedFile>> {
        self.all.clone().filter(|_| self.held == Held::All && self.of_step == step)
    }

    /// What reads and writes parts.
    pub(super) fn store(&self, tensors: &Tensors) -> Store {
        Store {
            cutting: self.cutting.clone(),
            names: Arc::clone(&self.names),
            engine: tensors.engine.clone(),
            layout: Arc::clone(&tensors.layout),
            holds: tensors.holds.clone(),
        }
    }
}

/// Where this rank has what it gives.
pub(super) enum Gives {
    Engine,
    /// Moments in the file; none: they are zeros.
    All(Option<Arc<UnnamedFile>>),
}

/// Where what comes goes.
pub(super) enum Takes {
    /// Moments of these places, and parameters with their averages where they are wanted.
    Engine { parameters: bool, shares: Shares },
    /// Moments alone; none: it is for others.
    File(Option<Arc<UnnamedFile>>),
}

/// Takes each part around the ring, from its source to all. `parameters`: they and their averages go with the moments.
pub(super) async fn bring(
    store: &Store,
    sources: &[PartSource],
    from: &Gives,
    into: &Takes,
    parameters: bool,
    ring: &mut RankRing,
) -> Result<(), Error> {
    let kinds = store.kinds(parameters).len();
    for PartSource { bucket, places, rank } in sources {
        for start in places.clone().step_by(MOST_AT_ONCE) {
            let places = start..places.end.min(start + MOST_AT_ONCE);
            let part = BucketPart { bucket: *bucket, places };
            let is_source = *rank == ring.rank();
            let numbers = match is_source {
                true => store.clone().read(part.clone(), from, parameters).await?,
                false => vec![0.0; kinds * part.places.len()],
            };
            let numbers = ring.broadcast(numbers, *rank).await?;
            store.clone().write(part, numbers, into, parameters).await?;
        }
    }
    Ok(())
}

/// Some numbers of a bucket.
#[derive(Clone, Debug)]
struct BucketPart {
    bucket: usize,
    places: Range<usize>,
}

/// Parameters and moments, by the places of their gradients. Whatever it changes it holds meanwhile: whoever enters the next ring waits
/// for what was begun in this one, though nobody else does any more.
#[derive(Clone)]
pub(super) struct Store {
    holds: Holds,
    cutting: Cutting,
    /// Of the parameters, by their numbers.
    names: Arc<[String]>,
    engine: EngineHandle,
    layout: Arc<Layout>,
}

/// A part of one tensor.
struct TensorPart {
    name: String,
    /// In bytes.
    offset: u64,
    /// Where it is among the numbers of a part.
    within: Range<usize>,
}

impl Store {
    /// The parts of tensors of one kind that a part of a bucket is.
    fn tensor_parts<'a>(
        &'a self,
        part: &'a BucketPart,
        kind: &'a str,
    ) -> impl Iterator<Item = TensorPart> + 'a {
        let bucket = self.cutting.plan().buckets.get(part.bucket);
        let pieces = bucket.map_or(&[][..], |bucket| &bucket.pieces);
        pieces.iter().filter_map(move |piece: &Piece| {
            let places = common(&part.places, &(piece.offset..piece.offset + piece.count));
            let name = self.names.get(piece.parameter).filter(|_| !places.is_empty())?;
            let first = piece.first + places.start - piece.offset;
            let within = places.start - part.places.start..places.end - part.places.start;
            Some(TensorPart { name: format!("{kind}{name}"), offset: 4 * first as u64, within })
        })
    }

    /// Where a tensor of moments begins in a file of all.
    fn start(&self, name: &str) -> Result<u64, StateError> {
        let found = self.layout.moments.iter().find(|(tensor, _)| tensor.name() == name);
        let missing = || StateError::refused("there is no such tensor");
        found.map(|(_, start)| *start).ok_or_else(missing)
    }

    /// The names of a part's tensors in a state, in the order in which they go around: of what each rank has all, where that is wanted,
    /// then of the moments.
    fn kinds(&self, parameters: bool) -> Vec<&'static str> {
        let average = (!self.layout.averages.is_empty()).then_some(AVERAGE);
        let whole = [Some(MODEL), average].into_iter().flatten().filter(|_| parameters);
        whole.chain(MOMENTS).collect()
    }

    /// All of [`Store::kinds`].
    async fn read(self, part: BucketPart, from: &Gives, parameters: bool) -> Result<Vec<f32>, Error> {
        let file = match from {
            Gives::Engine => None,
            Gives::All(file) => Some(file.clone()),
        };
        let read = move || {
            let length = part.places.len();
            let kinds = self.kinds(parameters);
            let mut numbers = Vec::with_capacity(length * kinds.len());
            for kind in kinds {
                let first = numbers.len();
                numbers.resize(first + length, 0.0);
                for TensorPart { name, offset, within } in self.tensor_parts(&part, kind) {
                    let bytes = vec![0; 4 * within.len()];
                    let bytes = match &file {
                        Some(all) if MOMENTS.contains(&kind) => {
                            self.read_all(all.as_deref(), &name, offset, bytes)?
                        }
                        _ => self.engine.read_state(&name, offset, bytes).map_err(engine_error)?,
                    };
                    let within = first + within.start..first + within.end;
                    for (number, bytes) in numbers[within].iter_mut().zip(bytes.as_chunks::<4>().0) {
                        *number = f32::from_le_bytes(*bytes);
                    }
                }
            }
            Ok::<_, StateError>(numbers)
        };
        Ok(spawn_blocking(read).await??)
    }

    fn read_all(
        &self,
        file: Option<&UnnamedFile>,
        name: &str,
        offset: u64,
        mut bytes: Vec<u8>,
    ) -> Result<Vec<u8>, StateError> {
        if let Some(file) = file {
            file.read(self.start(name)? + offset, &mut bytes)?;
        }
        Ok(bytes)
    }

    async fn write(
        self,
        part: BucketPart,
        numbers: Vec<f32>,
        into: &Takes,
        parameters: bool,
    ) -> Result<(), Error> {
        let (wanted, file, with_parameters) = match into {
            Takes::Engine { parameters: wanted, shares } => {
                (shares.held(part.bucket).collect::<Vec<_>>(), None, *wanted)
            }
            Takes::File(None) => return Ok(()),
            Takes::File(Some(file)) => (vec![part.places.clone()], Some(Arc::clone(file)), false),
        };
        let hold = self.holds.begin();
        let write = move || {
            let _hold = hold;
            let length = part.places.len();
            for (kind, numbers) in self.kinds(parameters).into_iter().zip(numbers.chunks_exact(length.max(1)))
            {
                let all = [part.places.clone()];
                let places = match kind {
                    kind if MOMENTS.contains(&kind) => &wanted[..],
                    _ if with_parameters => &all,
                    _ => &[],
                };
                let within = places.iter().map(|wanted| common(wanted, &part.places));
                for places in within.filter(|places| !places.is_empty()) {
                    let numbers = &numbers[places.start - part.places.start..places.end - part.places.start];
                    let part = BucketPart { bucket: part.bucket, places };
                    for TensorPart { name, offset, within } in self.tensor_parts(&part, kind) {
                        let bytes = numbers[within].iter().flat_map(|number| number.to_le_bytes()).collect();
                        self.put(&name, offset, bytes, file.as_deref())?;
                    }
                }
            }
            Ok::<_, StateError>(())
        };
        Ok(spawn_blocking(write).await??)
    }

    fn put(
        &self,
        name: &str,
        offset: u64,
        bytes: Vec<u8>,
        file: Option<&UnnamedFile>,
    ) -> Result<(), StateError> {
        match file {
            Some(file) => Ok(file.write(self.start(name)? + offset, &bytes)?),
            None => self.engine.write_state(name, offset, bytes).map(drop).map_err(engine_error),
        }
    }

    /// Brings the moments that are wanted from a file of all into the engine.
    pub(super) async fn load(self, wanted: Shares, file: Arc<UnnamedFile>) -> Result<(), Error> {
        let hold = self.holds.begin();
        let load = move || {
            let _hold = hold;
            self.load_now(&wanted, &file)
        };
        Ok(spawn_blocking(load).await??)
    }

    /// Blocks.
    fn load_now(&self, wanted: &Shares, file: &UnnamedFile) -> Result<(), StateError> {
        for bucket in 0..self.cutting.plan().buckets.len() {
            for held in wanted.held(bucket) {
                for start in held.clone().step_by(MOST_AT_ONCE) {
                    let part = BucketPart { bucket, places: start..held.end.min(start + MOST_AT_ONCE) };
                    for kind in MOMENTS {
                        for TensorPart { name, offset, within } in self.tensor_parts(&part, kind) {
                            let bytes =
                                self.read_all(Some(file), &name, offset, vec![0; 4 * within.len()])?;
                            self.put(&name, offset, bytes, None)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

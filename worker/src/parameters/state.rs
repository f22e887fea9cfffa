//! What a state has besides parameters and moments, and how a whole one is taken in.

use std::{path::PathBuf, sync::Arc};

use ringtune_shared::state::{Cursor, StateError, TensorList};

use super::{
    tensors::{BEST, Layout, Moments, Tensors, engine_error},
    unnamed_file::UnnamedFile,
};
use crate::{
    fault::Refusal,
    rank::Error,
    rank_state::{RankState, TakenState},
    session::Assignment,
    train::{self, SavedState, Selection, SkippedInARow},
    training,
};

// The names that a checkpoint has for the state's counters, behind the section's.
const COUNT: &str = "adamw_count";
const SKIPPED: &str = "skipped_in_a_row";
/// The job's option that a state comes from.
const CHECKPOINT: &str = "resume_from_checkpoint";

/// The same on every rank after every step.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// See [`super::Model::SECTION`].
    section: &'static str,
    /// Steps of the optimizer: those that were not skipped.
    pub(super) count: u64,
    skipped_in_a_row: SkippedInARow,
    /// What the validations say that were taken before the last step.
    pub(super) selection: Selection,
    /// Whether the parameters with the lowest loss are kept.
    pub(super) keeps_best: bool,
    pub(super) tensors: Tensors,
}

impl State {
    /// Before the first step. `patience`: validations without a lower loss that end training; 0: none do.
    pub(super) fn new(section: &'static str, patience: u64, keeps_best: bool, tensors: Tensors) -> Self {
        let selection = Selection::new(patience);
        Self { section, count: 0, skipped_in_a_row: SkippedInARow::default(), selection, keeps_best, tensors }
    }

    /// As others see it, with all moments in a file.
    pub(super) fn to_whole_state(&self, moments: Arc<UnnamedFile>) -> RankState {
        let tensors = self.tensors.with_moments(Moments::InFile(moments));
        Self { tensors, ..self.clone() }.to_state()
    }

    /// As others see it.
    pub(super) fn to_state(&self) -> RankState {
        let mut saved = SavedState::default();
        saved.put_number(&self.name(COUNT), self.count);
        self.skipped_in_a_row.save(&self.name(SKIPPED), &mut saved);
        self.selection.save(&mut saved);
        RankState::large(saved, Arc::new(self.tensors.clone()))
    }

    /// A counter's name in a checkpoint.
    fn name(&self, counter: &str) -> String {
        format!("{}.{counter}", self.section)
    }

    /// What a step did to the counters.
    ///
    /// # Errors
    /// It is the tenth in a row that was skipped.
    pub(super) fn count_step(&mut self, step: u64, skipped: bool, loss: f32) -> Result<(), train::Error> {
        self.count += u64::from(!skipped);
        self.skipped_in_a_row.take_in(step, skipped, loss)
    }

    /// With the same engine, in the state that comes. Parameters and moments are changed while it comes, so that after an
    /// error they are of no use. Blocks. `folder`: on whose disk the best parameters are put, and moments that the ranks have
    /// together: then those of the state are given too, where it has them.
    ///
    /// # Errors
    /// See [`RestoreError`].
    pub(super) fn restored(
        &self,
        state: TakenState,
        folder: PathBuf,
    ) -> Result<(Self, Option<Arc<UnnamedFile>>), RestoreError> {
        let TakenState { numbers, mut source } = state;
        let layout = Arc::clone(&self.tensors.layout);
        let list = source.list().clone();
        let shared = !matches!(self.tensors.moments, Moments::InEngine);
        let places = Places::of(&list, &layout, shared)?;
        let file = |wanted: bool| wanted.then(|| UnnamedFile::create(&folder).map(Arc::new)).transpose();
        let best = file(places.has_best).map_err(StateError::from)?;
        let moments = file(shared && places.has_moments).map_err(StateError::from)?;
        let tensors = self.tensors.with_best(best);
        // 1. The tensors, each to its place.
        let mut small = SavedState { numbers, ..SavedState::default() };
        for (tensor, home) in list.tensors().iter().zip(&places.all) {
            // Of an empty one nothing comes.
            if let Home::Small = home {
                small.put_tensor(tensor.name(), Vec::new());
            }
        }
        let mut cursor = Cursor::new(list.clone());
        let mut buffer = Vec::new();
        while let Some(chunk) = source.next_chunk()? {
            let Some(place) = cursor.advance() else {
                return Err(RestoreError::Other("more than it lists".to_owned()));
            };
            let name = list.tensors().get(place.tensor).map(|tensor| tensor.name()).unwrap_or_default();
            match places.all.get(place.tensor) {
                Some(Home::Engine) => {
                    buffer.clear();
                    buffer.extend_from_slice(chunk);
                    buffer = tensors.engine.write_state(name, place.offset, buffer).map_err(engine_error)?;
                }
                Some(Home::Best(start)) => {
                    if let Some(best) = &tensors.best {
                        best.write(start + place.offset, chunk).map_err(StateError::from)?;
                    }
                }
                Some(Home::Moments(start)) => {
                    if let Some(moments) = &moments {
                        moments.write(start + place.offset, chunk).map_err(StateError::from)?;
                    }
                }
                // Of a few numbers there is one chunk.
                Some(Home::Small) => small.put_tensor(name, numbers_of(chunk)),
                None => return Err(RestoreError::Other(format!("tensor {name:?} has no place"))),
            }
        }
        // 2. The counters.
        let other = |error: train::Error| match error {
            train::Error::Checkpoint { problem } => RestoreError::Other(problem),
            error => RestoreError::Other(error.to_string()),
        };
        let count = small.take_number(&self.name(COUNT)).map_err(other)?;
        let skipped_in_a_row = SkippedInARow::restored(&self.name(SKIPPED), &mut small).map_err(other)?;
        let selection = self.selection.clone().restored(&mut small, 0).map_err(other)?;
        if (self.keeps_best && selection.best().is_some()) != places.has_best {
            return Err(RestoreError::Other(
                "its best step and its best parameters do not belong together".to_owned(),
            ));
        }
        small.finish().map_err(other)?;
        let Self { section, keeps_best, .. } = *self;
        Ok((Self { section, count, skipped_in_a_row, selection, keeps_best, tensors }, moments))
    }
}

/// Why a state cannot be taken in.
#[derive(Debug)]
pub(super) enum RestoreError {
    /// It cannot be read, or kept.
    State(StateError),
    /// It is the state of another job or model.
    Other(String),
}

impl From<StateError> for RestoreError {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl RestoreError {
    /// Of the checkpoint that a rank begins with; `section`: see [`super::Model::SECTION`].
    pub(super) fn of_checkpoint(self, section: &str, assignment: &Assignment) -> Error {
        match self {
            Self::State(error) => training::unreadable(error, assignment),
            Self::Other(_) => self.of_state(section),
        }
    }

    /// Of the state that another rank gives.
    pub(super) fn of_state(self, section: &str) -> Error {
        match self {
            Self::State(error) => error.into(),
            Self::Other(problem) => {
                let problem = format!("the state does not fit the job: {problem}");
                Refusal::of(&format!("{section}.{CHECKPOINT}"), problem).into()
            }
        }
    }
}

/// Where a tensor that comes is put.
enum Home {
    Engine,
    /// From this byte of the file on.
    Best(u64),
    Moments(u64),
    Small,
}

struct Places {
    all: Vec<Home>,
    has_best: bool,
    has_moments: bool,
}

impl Places {
    /// Of a state that comes: parameters and averages are all there, moments too unless ranks have them together (`shared`), the best ones all or none,
    /// and of others few and small ones.
    fn of(list: &TensorList, layout: &Layout, shared: bool) -> Result<Self, RestoreError> {
        /// Numbers of a tensor that is none of these.
        const MOST_SMALL: u64 = 16;
        let (mut all, mut parameters, mut moments, mut bests) = (Vec::new(), 0, 0, 0);
        for tensor in list.tensors() {
            let (name, shape) = (tensor.name(), tensor.shape());
            let mut whole = layout.parameters.iter().chain(&layout.averages);
            let home = if let Some(own) = whole.find(|own| own.name() == name) {
                parameters += 1;
                (own == tensor).then_some(Home::Engine)
            } else if let Some((own, start)) = layout.moments.iter().find(|(own, _)| own.name() == name) {
                moments += 1;
                (own == tensor).then_some(if shared { Home::Moments(*start) } else { Home::Engine })
            } else if name.starts_with(BEST) {
                bests += 1;
                let own = layout.best.iter().find(|(own, _)| own == tensor);
                own.map(|(_, start)| Home::Best(*start))
            } else {
                (tensor.bytes() <= 4 * MOST_SMALL && shape.len() == 1).then_some(Home::Small)
            };
            let wrong = || {
                RestoreError::Other(format!(
                    "tensor {name:?} is {} {shape:?}: it is of another model",
                    tensor.dtype()
                ))
            };
            all.push(home.ok_or_else(wrong)?);
        }
        let all_moments = moments == layout.moments.len() || (shared && moments == 0);
        let all_bests = bests == 0 || bests == layout.best.len();
        let whole = layout.parameters.len() + layout.averages.len();
        if parameters != whole || !all_moments || !all_bests {
            let moments = layout.moments.iter().map(|(own, _)| own);
            let mut wanted = layout.parameters.iter().chain(moments).chain(&layout.averages);
            let missing = wanted.find(|own| list.tensors().iter().all(|one| one.name() != own.name()));
            let missing = missing.map_or("one of the best parameters", |tensor| tensor.name());
            return Err(RestoreError::Other(format!("it has no tensor {missing:?}")));
        }
        Ok(Self { all, has_best: bests > 0, has_moments: moments > 0 })
    }
}

fn numbers_of(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
}

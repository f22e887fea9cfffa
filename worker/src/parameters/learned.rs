//! What a job's results are made from.

use ringtune_shared::state::{StateError, TensorInfo};

use super::{
    state::State,
    tensors::{BEST, MODEL, Tensors},
};
use crate::{output, rank::Error, rank_state::LargeTensors as _, train::Selection, training::StepJudged};

/// A state whose parameters there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// That of now: the averages, where they are kept.
    Last,
    /// That of now, without averages.
    Plain,
    /// That of the lowest validation loss, where it is not the last.
    Best,
}

/// What is learned: handles on it, good until the next step is taken.
#[derive(Clone, Debug)]
pub(crate) struct LearnedParameters {
    tensors: Tensors,
    /// Where the job's result is another state's than the last one: its step and its loss.
    pub(crate) best: Option<(u64, f32)>,
    /// The last state is the best one: its loss.
    pub(crate) last_is_best: Option<f32>,
}

impl LearnedParameters {
    /// `judged`: with what was found out after the last step.
    pub(super) fn of(state: &State, judged: &Selection) -> Self {
        let best = judged.best().filter(|_| state.keeps_best);
        let kept = state.selection.best().map(|best| best.step);
        // Not in a file yet: it is what the engine has.
        let is_last = best.is_some_and(|best| Some(best.step) != kept);
        Self {
            tensors: state.tensors.clone(),
            best: best.filter(|_| !is_last).map(|best| (best.step, best.loss)),
            last_is_best: best.filter(|_| is_last).map(|best| best.loss),
        }
    }

    /// The step of the job's result, where that is not the last state.
    pub(super) fn best_step(&self) -> Option<u64> {
        self.best.map(|(step, _)| step)
    }

    /// The parameters of a state, each with its number for [`LearnedParameters::read`] and its name in the model.
    pub(crate) fn parameters(&self, which: Which) -> Vec<(usize, TensorInfo)> {
        let prefix = match which {
            Which::Last => self.tensors.layout.result(),
            Which::Plain => MODEL,
            Which::Best => BEST,
        };
        let all = self.tensors.tensors().iter().enumerate();
        all.filter_map(|(number, tensor)| {
            let name = tensor.name().strip_prefix(prefix)?;
            let renamed = TensorInfo::new(name, tensor.dtype(), tensor.shape().to_vec()).ok()?;
            Some((number, renamed))
        })
        .collect()
    }

    /// The last state as it was judged, and the best one, where the job's result is that.
    pub(crate) fn judged(&self, last: StepJudged) -> (StepJudged, Option<StepJudged>) {
        let of_last = StepJudged { validation_loss: self.last_is_best.or(last.validation_loss), ..last };
        let best = self.best.map(|(step, loss)| StepJudged { step, validation_loss: Some(loss), ..last });
        (of_last, best)
    }

    /// Fills `into` with the bytes of a parameter from `offset` on. Blocks.
    ///
    /// # Errors
    /// The engine's, or the disk's.
    pub(crate) fn read(&self, number: usize, offset: u64, into: &mut [u8]) -> Result<(), StateError> {
        self.tensors.fill(number, offset, into)
    }
}

/// Has a job's results written, off the runtime's threads. `write` is given the names of the files that are good, to add to: what
/// goes wrong with another one does not keep them back.
///
/// # Errors
/// What `write` says.
pub(crate) async fn write_results(
    names: &mut Vec<String>,
    write: impl FnOnce(&mut Vec<String>) -> Result<(), output::Error> + Send + 'static,
) -> Result<(), Error> {
    let write = move || {
        let mut names = Vec::new();
        let written = write(&mut names);
        (written, names)
    };
    let (written, good) = ringtune_shared::tasks::spawn_blocking(write).await?;
    names.extend(good);
    Ok(written?)
}

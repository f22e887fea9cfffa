//! Which values of the parameters the engine shows to whoever judges or draws.

use super::{LearnedParameters, Model, ParameterTrainee, Which};
use crate::{engine::Shows, rank::Error};

/// Bytes of the best parameters that are given to the engine at once.
const CHUNK: usize = 1 << 20;

impl<M: Model> ParameterTrainee<M> {
    /// What is judged and shown is what the job's result would be now: the average, where one is kept.
    pub(super) async fn show_result(&self) -> Result<(), Error> {
        let average = self.model.average_decay(1).is_some();
        let shows = if average { Shows::Average } else { Shows::Parameters };
        self.engine.show(shows).await.map_err(Error::of_engine)
    }

    /// The best parameters come from their file; the engine's own stay as they are.
    pub(super) async fn show_best(&self, learned: &LearnedParameters) -> Result<(), Error> {
        self.engine.show(Shows::Given).await.map_err(Error::of_engine)?;
        let (engine, learned) = (self.engine.clone(), learned.clone());
        let give = move || {
            for (number, tensor) in learned.parameters(Which::Best) {
                for offset in (0..tensor.bytes()).step_by(CHUNK) {
                    let mut bytes = vec![0; (tensor.bytes() - offset).min(CHUNK as u64) as usize];
                    learned.read(number, offset, &mut bytes)?;
                    engine.give_shown(tensor.name(), offset, bytes).map_err(Error::of_engine)?;
                }
            }
            Ok(())
        };
        ringtune_shared::tasks::spawn_blocking(give).await?
    }
}

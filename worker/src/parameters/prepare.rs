//! A trainee before its first step in a ring: with the state that it begins or goes on with.

use std::sync::Arc;

use ringtune_sources::LocalModel;

use super::{
    Model, Options, ParameterTrainee, Spares,
    sharding::Sharding,
    shares::Cutting,
    state::State,
    tensors::{Layout, Moments, Tensors},
};
use crate::{
    engine::ParametersInfo,
    rank::{Durations, Error, Rank},
    rank_state::TakenState,
    training::{Course, Origin},
};

/// What a rank has prepared when its model is open.
#[derive(Debug)]
pub(crate) struct Prepared<M> {
    pub(crate) model: M,
    /// What the engine says of the model's parameters.
    pub(crate) parameters: ParametersInfo,
    pub(crate) options: Options,
    pub(crate) course: Course,
    pub(crate) origin: Origin,
    /// A checkpoint's, that after [`Course::done`] steps.
    pub(crate) state: Option<TakenState>,
    /// The base model's files, and those that it learns from.
    pub(crate) held: Vec<Arc<LocalModel>>,
}

impl Prepared<()> {
    /// With what is trained.
    pub(crate) fn with<M>(self, model: M) -> Prepared<M> {
        let Self { model: (), parameters, options, course, origin, state, held } = self;
        Prepared { model, parameters, options, course, origin, state, held }
    }
}

impl<M: Model> Prepared<M> {
    /// With the state that it goes on from.
    ///
    /// # Errors
    /// The engine's; a state that cannot be read, or does not fit the job.
    pub(crate) async fn into_trainee(self, rank: &Rank) -> Result<ParameterTrainee<M>, Error> {
        let Self { model, parameters, options, course, origin, state, held } = self;
        let engine = rank.context.engine.clone();
        let tensors = engine.state_tensors().await.map_err(Error::of_engine)?;
        let layout = Arc::new(Layout::new(&tensors, &parameters.list)?);
        let moments = if options.shard_optimizer { Moments::Shared } else { Moments::InEngine };
        let tensors = Tensors::new(engine.clone(), layout, moments, None);
        let fresh = State::new(M::SECTION, options.early_stop_patience, options.select_best, tensors);
        let (state, moments) = match state {
            None => (fresh, None),
            Some(state) => {
                let folder = rank.folder.clone();
                let restore = move || fresh.restored(state, folder);
                let restored = ringtune_shared::tasks::spawn_blocking(restore).await?;
                restored.map_err(|error| error.of_checkpoint(M::SECTION, &rank.assignment))?
            }
        };
        let sharding = options.shard_optimizer.then(|| {
            let names = parameters.list.iter().map(|parameter| parameter.name.clone());
            Sharding::new(Cutting::new(&parameters), names, course.done, moments)
        });
        Ok(ParameterTrainee {
            model,
            options,
            engine,
            metrics: Arc::clone(&rank.context.metrics),
            course,
            origin,
            width: parameters.width,
            granule: parameters.part,
            spares: Spares::new(&parameters.plan),
            judged: state.selection.clone(),
            state,
            applying: None,
            restoring: None,
            untold: None,
            sharding,
            unshared: Vec::new(),
            collected: None,
            durations: Durations::default(),
            in_round: false,
            folder: rank.folder.clone(),
            _held: held,
        })
    }
}

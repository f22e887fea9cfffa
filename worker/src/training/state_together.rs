//! A state of which each rank has a part.

use std::future::Future;

use crate::{rank::Error, rank_state::RankState, ring::RankRing, session::StepSummary};

/// What the ranks want besides the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    /// Nothing.
    #[default]
    Nothing,
    /// Rank 0 wants to keep the state.
    State,
    /// The job is to end, and its state to be kept.
    End,
}

/// Where the whole of a state is wanted that the ranks have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collect {
    /// On this rank, and perhaps on others.
    Here,
    /// On others alone.
    Elsewhere,
    /// On all ranks: their ring ends, and who is in the next one is not known.
    Everywhere,
}

/// A trainee whose ranks may have parts of its state together. Of one whose ranks each have all of it nothing here says or does anything.
pub(crate) trait StateTogether: Send + Sync + 'static {
    /// Whether the ranks have parts of the state together: then no rank's own is all of it.
    fn is_shared(&self) -> bool {
        false
    }

    /// Where they do: brings what falls to this rank of the ring that it enters, after `step`, its last one. Gives a step that it could
    /// take to its end only now.
    ///
    /// # Errors
    /// The ring's; parts that are lost.
    fn assemble(
        &mut self,
        _step: u64,
        _ring: &mut RankRing,
    ) -> impl Future<Output = Result<Option<StepSummary>, Error>> + Send {
        async { Ok(None) }
    }

    /// Where they do: brings all parts of the last step's state together, see [`StateTogether::whole_state`].
    ///
    /// # Errors
    /// The ring's, or the disk's.
    fn collect(
        &mut self,
        _wanted: Collect,
        _ring: &mut RankRing,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }

    /// Where they do: all that the steps after `step` depend on, the last settled one. None: it was not brought together here.
    fn whole_state(&self, _step: u64) -> Option<RankState> {
        None
    }

    /// What this rank tells the others with its next step, where they do.
    fn wish(&mut self, _wish: Wish) {}

    /// What any rank told with the last step.
    fn wished(&self) -> Wish {
        Wish::Nothing
    }
}

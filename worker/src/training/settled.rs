//! The state after a step, and its hash.

use ringtune_shared::{
    ids::ContentHash,
    ring::{Standing, plan_entry},
};

use crate::{
    rank::Error,
    rank_state::RankState,
    ring::{self, RankRing},
};

/// The state after the last step of which nothing can be taken back.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    pub(super) step: u64,
    /// Of the state, where it was wanted.
    pub(super) hash: Option<ContentHash>,
    pub(super) state: RankState,
}

impl Settled {
    /// The state after `step`. Hashing may take its time.
    pub(super) async fn of(step: u64, state: RankState, hashed: bool) -> Result<Self, Error> {
        let mut settled = Self::unhashed(step, state);
        if hashed {
            settled.standing().await?;
        }
        Ok(settled)
    }

    /// The state after `step`, of which nobody has asked for the hash.
    pub(super) fn unhashed(step: u64, state: RankState) -> Self {
        Self { step, hash: None, state }
    }

    /// The step and the hash of the state after it.
    pub(super) async fn standing(&mut self) -> Result<Standing, Error> {
        let hash = match self.hash {
            Some(hash) => hash,
            None => {
                let state = self.state.clone();
                ringtune_shared::tasks::spawn_blocking(move || state.hash()).await??
            }
        };
        self.hash = Some(hash);
        Ok(Standing { step: self.step, state: hash })
    }
}

/// Makes sure that all ranks have the same state after a step.
///
/// # Errors
/// The ring's; two ranks that have not, by their numbers and hashes.
pub(super) async fn compare(own: Standing, ring: &mut RankRing) -> Result<(), Error> {
    let rows = ring.gather_one_each(own.to_row()).await?;
    let standings: Option<Vec<Standing>> = rows.iter().map(|row| Standing::from_row(row)).collect();
    plan_entry(&standings.ok_or(Error::Ring(ring::Error::Rows))?).map_err(Error::Diverged)?;
    Ok(())
}

//! Drawing: each rank its share of the pictures, each kept as an artifact as soon as it is there.
//!
//! Batches are cut by the job alone, and batch b belongs to rank b mod n: any number of workers draws the same pictures.
//! A sheet of all is rank 0's, which waits for the others' pictures at the coordinator.

mod error;
mod pictures;
mod prepare;
pub(super) mod rehearsal;
mod work;

use ringtune_shared::job::kinds::generate::GenerateSpec;

use super::shared_out::SharedOut;
use crate::rank::{Error, Rank, Task};
use work::Artist;

/// The task of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Generate {
    /// What is asked for.
    pub(crate) spec: GenerateSpec,
}

impl Task for Generate {
    type Work = SharedOut<Artist>;

    async fn prepare(self, rank: &Rank) -> Result<SharedOut<Artist>, Error> {
        let prepared = prepare::prepare(rank, &self.spec).await?;
        Ok(SharedOut::new(Artist::new(self.spec, prepared)))
    }
}

//! Texts from a language model: each rank makes its share of them, each kept as an artifact as soon as it is there.
//!
//! A text follows from the model, its prompt, its number and the options alone, so that any number of workers makes the same
//! ones. The file of all is rank 0's.

mod prepare;
pub(super) mod rehearsal;
mod writer;

use ringtune_shared::job::kinds::generate_text::GenerateTextSpec;

use super::shared_out::SharedOut;
use crate::rank::{Error, Rank, Task};
use writer::Writer;

/// The task of a rank.
#[derive(Clone, Debug)]
pub(crate) struct GenerateText {
    /// What is asked for.
    pub(crate) spec: GenerateTextSpec,
}

impl Task for GenerateText {
    type Work = SharedOut<Writer>;

    async fn prepare(self, rank: &Rank) -> Result<SharedOut<Writer>, Error> {
        let prepared = prepare::prepare(rank, &self.spec).await?;
        Ok(SharedOut::new(Writer { spec: self.spec, prepared }))
    }
}

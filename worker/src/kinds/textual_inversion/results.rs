//! The files of what was learned: each concept's embeddings, and the model card.

use std::{path::Path, sync::Arc};

use ringtune_shared::job::{OrdersSpec, kinds::textual_inversion::TextualInversionSpec};

use super::{facts::facts, prepare::Prepared};
use crate::{
    output::{self, Concept, EmbeddingFacts, Learned, embeds, model_card},
    rank::Error,
    session::Assignment,
    train::Best,
    training::{StepJudged, say_orders},
};

/// What is written: the rows after the last step, and the best ones where they are the job's.
#[derive(Clone, Debug)]
pub(crate) struct LearnedRows {
    /// [num_vectors, width] flat.
    pub(super) last: Arc<Vec<f32>>,
    /// Of the lowest validation loss.
    pub(super) best: Option<Best>,
}

/// Writes one concept's file and reads it back. Blocks.
type Write = fn(&Path, &Learned<'_>, &EmbeddingFacts) -> Result<(), output::Error>;

/// Writes the files of one job.
#[derive(Debug)]
pub(super) struct Results {
    concepts: Arc<Vec<Concept>>,
    facts: Arc<EmbeddingFacts>,
    select_best: bool,
}

impl Results {
    pub(super) fn new(
        assignment: &Assignment,
        job: &TextualInversionSpec,
        prepared: &Prepared,
    ) -> Result<Self, Error> {
        Ok(Self {
            concepts: Arc::new(prepared.concepts.clone()),
            facts: Arc::new(facts(assignment, job, prepared)?),
            select_best: job.train.validation.select_best,
        })
    }

    /// The files say these orders of the job.
    pub(super) fn amend(&mut self, orders: &OrdersSpec) {
        say_orders(&mut Arc::make_mut(&mut self.facts).job, orders);
    }

    /// Rows of all concepts.
    pub(super) fn vectors(&self) -> usize {
        self.concepts.iter().map(|concept| concept.num_vectors).sum()
    }

    /// The embeddings as they are after the step. Gives the files' names.
    pub(super) async fn write_step(
        &self,
        folder: &Path,
        judged: StepJudged,
        rows: &Arc<Vec<f32>>,
    ) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for (index, concept) in self.concepts.iter().enumerate() {
            let name = concept.files.at_step(judged.step);
            self.write_concept(index, &folder.join(&name), embeds::write, judged, rows).await?;
            names.push(name);
        }
        Ok(names)
    }

    /// The job's results. Adds the names of the files that are good: what went wrong with another one does not keep them
    /// back.
    pub(super) async fn write(
        &self,
        folder: &Path,
        last_step: StepJudged,
        learned: LearnedRows,
        names: &mut Vec<String>,
    ) -> Result<(), Error> {
        let LearnedRows { last, best } = learned;
        let (judged, rows) = match best {
            Some(Best { step, loss, rows }) => {
                (StepJudged { step, validation_loss: Some(loss), state: None }, rows)
            }
            None => (last_step, Arc::clone(&last)),
        };
        for (index, concept) in self.concepts.iter().enumerate() {
            if self.select_best {
                let name = concept.files.last();
                self.write_concept(index, &folder.join(&name), embeds::write, last_step, &last).await?;
                names.push(name);
            }
            let files: [(String, Write); 2] = [
                (concept.files.diffusers(), embeds::write),
                (concept.files.emb_params(), embeds::write_emb_params),
            ];
            for (name, write) in files {
                self.write_concept(index, &folder.join(&name), write, judged, &rows).await?;
                names.push(name);
            }
        }
        let write = move |file: &Path, learned: &[Learned<'_>], facts: &EmbeddingFacts| {
            model_card::write(file, learned, facts, last_step.state)
        };
        self.write_file(&folder.join(model_card::FILE_NAME), judged, &rows, write).await?;
        names.push(model_card::FILE_NAME.to_owned());
        Ok(())
    }

    /// Writes a file of concept `index`.
    async fn write_concept(
        &self,
        index: usize,
        file: &Path,
        write: Write,
        judged: StepJudged,
        rows: &Arc<Vec<f32>>,
    ) -> Result<(), Error> {
        self.write_file(file, judged, rows, move |file, learned, facts| {
            learned.get(index).map_or(Ok(()), |learned| write(file, learned, facts))
        })
        .await
    }

    /// Writes a file of what has been learned of all concepts. `rows`: as they are after the step.
    async fn write_file(
        &self,
        file: &Path,
        judged: StepJudged,
        rows: &Arc<Vec<f32>>,
        write: impl FnOnce(&Path, &[Learned<'_>], &EmbeddingFacts) -> Result<(), output::Error> + Send + 'static,
    ) -> Result<(), Error> {
        let (file, facts) = (file.to_owned(), Arc::clone(&self.facts));
        let (concepts, rows) = (Arc::clone(&self.concepts), Arc::clone(rows));
        let write = move || {
            let mut learned = Concept::split(&concepts, &rows, judged.step);
            learned.iter_mut().for_each(|one| one.validation_loss = judged.validation_loss);
            write(&file, &learned, &facts)
        };
        Ok(ringtune_shared::tasks::spawn_blocking(write).await??)
    }
}

//! The samples of a job's microbatches.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use ringtune_shared::version::ON_DEMAND_RING_PROTOCOL;
use ringtune_sources::LocalModel;

use crate::{
    data::{Mask, Prompts},
    engine::Microbatch,
    inputs::Posteriors,
    journal::Journal,
    rank::{Context, Error, Rank},
    ring::RankRing,
    train::{self, BatchOptions, ConceptSet, MicrobatchBuilder, TrainingImage, TrainingSet, View},
};

/// What a rank knows of the pictures before the first step.
#[derive(Debug)]
pub(in crate::kinds) struct Material {
    /// What is known of the pictures' posteriors.
    pub(in crate::kinds) posteriors: Posteriors,
    /// What microbatches are made of, once all posteriors are known.
    pub(in crate::kinds) inputs: Inputs,
    /// Files of pictures that were fetched: not thrown out as long as this is held.
    pub(in crate::kinds) held: Vec<Arc<LocalModel>>,
}

/// Makes any microbatch of any step, but for the pictures.
#[derive(Clone, Debug)]
pub(in crate::kinds) struct Inputs {
    /// Of each group of pictures that share prompts: those, and how often each picture is shown.
    pub(super) concepts: Vec<(Prompts, Vec<u32>)>,
    /// Of each group the mask of each picture; a group that is not there has none.
    pub(super) masks: Vec<Vec<Mask>>,
    pub(super) options: BatchOptions,
}

impl Inputs {
    /// With the posteriors of each group's pictures.
    ///
    /// # Errors
    /// See [`MicrobatchBuilder::new`].
    pub(in crate::kinds) fn into_builder(
        self,
        images: Vec<Vec<TrainingImage>>,
    ) -> Result<MicrobatchBuilder, Error> {
        let masks = self.masks.into_iter().chain(std::iter::repeat_with(Vec::new));
        let concepts = images.into_iter().zip(self.concepts).zip(masks);
        let concepts = concepts
            .map(|((images, (prompts, repeats)), masks)| ConceptSet { images, repeats, prompts, masks })
            .collect();
        Ok(MicrobatchBuilder::new(TrainingSet { concepts }, self.options)?)
    }
}

/// Makes the microbatches of a rank. What they show is encoded together by the ranks when a step shows it first.
#[derive(Debug)]
pub(in crate::kinds) struct Samples {
    context: Context,
    journal: Journal,
    /// The job's last step.
    last: u64,
    /// This rank's microbatches of a step.
    own: Range<u32>,
    posteriors: Posteriors,
    inputs: Inputs,
    _held: Vec<Arc<LocalModel>>,
    /// Makes microbatches, once the ring is there.
    builder: Option<Arc<Mutex<MicrobatchBuilder>>>,
}

impl Samples {
    /// Of a job whose last step is `last`.
    pub(in crate::kinds) fn new(material: Material, last: u64, rank: &Rank) -> Self {
        let Material { posteriors, inputs, held } = material;
        let (context, journal) = (rank.context.clone(), rank.journal.clone());
        Self { context, journal, last, own: 0..0, posteriors, inputs, _held: held, builder: None }
    }

    /// Brings together what the ranks of a ring know.
    ///
    /// # Errors
    /// The ring's; a picture cannot be encoded.
    pub(in crate::kinds) async fn enter(&mut self, rank: &Rank, ring: &mut RankRing) -> Result<(), Error> {
        let at_once = rank.assignment.ring_protocol < ON_DEMAND_RING_PROTOCOL;
        let images = self.posteriors.enter(ring, at_once, &rank.context, &rank.journal).await?;
        if self.builder.is_none() {
            let inputs = self.inputs.clone();
            let builder =
                ringtune_shared::tasks::spawn_blocking(move || inputs.into_builder(images)).await??;
            self.builder = Some(Arc::new(Mutex::new(builder)));
        }
        Ok(())
    }

    fn builder(&self) -> Result<Arc<Mutex<MicrobatchBuilder>>, Error> {
        let problem = || "not all posteriors are known yet".to_owned();
        Ok(self.builder.clone().ok_or_else(|| train::Error::Posterior { problem: problem() })?)
    }

    /// Has encoded what a step shows. All ranks draw the same, so that they need not ask each other.
    ///
    /// Where there are some, those of the next steps come along, ever more of them.
    ///
    /// # Errors
    /// The ring's; a picture cannot be encoded.
    pub(in crate::kinds) async fn encode_for(&mut self, step: u64, ring: &mut RankRing) -> Result<(), Error> {
        self.own = ring.microbatches();
        self.posteriors.begin_step();
        if self.posteriors.is_complete() {
            return Ok(());
        }
        let builder = self.builder()?;
        let shown_in = |step| builder.lock().unwrap_or_else(PoisonError::into_inner).shown(step);
        let mut shown = shown_in(step);
        let mut missing = self.posteriors.missing(&shown);
        if missing.is_empty() {
            self.posteriors.were_known();
            return Ok(());
        }
        let ahead = self.posteriors.ahead();
        let steps = step + 1..=self.last.min(step.saturating_add(ahead as u64));
        for next in steps {
            if missing.len() >= ahead {
                break;
            }
            shown.extend(shown_in(next));
            missing = self.posteriors.missing(&shown);
        }
        self.posteriors.encode(&missing, ring, &self.context, &self.journal).await
    }

    /// Microbatch `microbatch` of a step, with these learned rows. Drawing normal numbers is computing, and posteriors may be on
    /// the disk: off the runtime's threads.
    ///
    /// # Errors
    /// See [`MicrobatchBuilder::build`].
    pub(in crate::kinds) async fn build(
        &self,
        step: u64,
        microbatch: u32,
        rows: Arc<Vec<f32>>,
    ) -> Result<Microbatch, Error> {
        let builder = self.builder()?;
        let own = &self.own;
        let (next_step, next) =
            if microbatch + 1 < own.end { (step, microbatch + 1) } else { (step + 1, own.start) };
        let build = move || {
            let mut builder = builder.lock().unwrap_or_else(PoisonError::into_inner);
            let built = builder.build(step, microbatch, rows);
            // While this one is computed on.
            builder.expect(next_step, next);
            built
        };
        Ok(ringtune_shared::tasks::spawn_blocking(build).await??)
    }

    /// Has encoded what the validation loss of so many samples is taken on, and gives its microbatches.
    ///
    /// # Errors
    /// As [`Samples::encode_for`]'s.
    pub(in crate::kinds) async fn hold_out(
        &mut self,
        samples: u32,
        ring: &mut RankRing,
    ) -> Result<u32, Error> {
        let (count, shown) = {
            let builder = self.builder()?;
            let builder = builder.lock().unwrap_or_else(PoisonError::into_inner);
            let count = builder.held_out_microbatches(samples);
            let shown: Vec<View> =
                if self.posteriors.is_complete() { Vec::new() } else { builder.held_out_shown(count) };
            (count, shown)
        };
        if !self.posteriors.is_complete() {
            let missing = self.posteriors.missing(&shown);
            self.posteriors.encode(&missing, ring, &self.context, &self.journal).await?;
        }
        Ok(count)
    }

    /// Microbatch `microbatch` of those `count`.
    ///
    /// # Errors
    /// See [`MicrobatchBuilder::build_held_out`].
    pub(in crate::kinds) async fn held_out(
        &self,
        count: u32,
        microbatch: u32,
        rows: Arc<Vec<f32>>,
    ) -> Result<Microbatch, Error> {
        let builder = self.builder()?;
        let build = move || {
            builder.lock().unwrap_or_else(PoisonError::into_inner).build_held_out(count, microbatch, rows)
        };
        Ok(ringtune_shared::tasks::spawn_blocking(build).await??)
    }
}

//! What is asked of its work.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ConceptSpec, FolderSpec, TextualInversionSpec, concepts::field, folders::add_sources};
use crate::{
    ids::ContentHash,
    job::{
        ClusterSpec, ContentUse, ImageUse, LrScheduler, MixedPrecision, PathUse, ResumeFrom, SpecError,
        kinds::facts::Facts, steps::Steps, text::text_bytes,
    },
};

/// Keys of `[train]` that decide no bit of what is learned: how max_train_steps came about, what is kept, where it went
/// on, and what is shown.
pub const TRAIN_OPTIONS_WITHOUT_EFFECT: [&str; 11] = [
    "num_train_epochs",
    "repeats",
    "save_steps",
    "checkpointing_steps",
    "checkpoints_total_limit",
    "resume_from_checkpoint",
    "save_as_full_pipeline",
    "validation_prompt",
    "num_validation_images",
    "validation_steps",
    "report_to",
];

const COMPARED_OTHERWISE: [&str; 4] = [
    // By content.
    "data.images",
    "data.folders",
    // Only its product with the world size counts.
    "train.gradient_accumulation_steps",
    // As decided.
    "train.mixed_precision",
];
const MICROBATCHES: &str = "cluster.world_size x train.gradient_accumulation_steps";

impl Facts for TextualInversionSpec {
    fn mixed_precision(&self) -> MixedPrecision {
        self.train.mixed_precision
    }

    fn steps(&self) -> Option<Steps<'_>> {
        let train = &self.train;
        let has_no_end =
            matches!(train.lr_scheduler, LrScheduler::Constant | LrScheduler::ConstantWithWarmup);
        Some(Steps {
            total: train.max_train_steps,
            option: "train.max_train_steps",
            resume_from: &train.resume_from_checkpoint,
            resume_option: "train.resume_from_checkpoint",
            checkpoints_total_limit: train.checkpoints_total_limit,
            total_decides_rates: !has_no_end,
            validation_interval: train.validation.validation_loss_steps,
            select_best: train.validation.select_best,
            early_stop_patience: train.validation.early_stop_patience,
        })
    }

    fn resume_from_mut(&mut self) -> Option<&mut String> {
        Some(&mut self.train.resume_from_checkpoint)
    }

    fn needs_image_count(&self) -> bool {
        self.needs_image_count()
    }

    fn count_steps(&mut self, images: u64, cluster: &ClusterSpec) -> Result<(), SpecError> {
        self.count_steps(images, cluster)
    }

    fn global_microbatches(&self, cluster: &ClusterSpec) -> u32 {
        self.global_microbatches(cluster)
    }

    /// Says that a number of passes is without effect beside a number of steps.
    fn warning(&self, _: &ClusterSpec) -> Option<String> {
        let steps = self.train.max_train_steps;
        let passes = self.train.num_train_epochs.filter(|_| steps > 0)?;
        Some(format!(
            "train.num_train_epochs = {passes} has no effect: train.max_train_steps = {steps} takes precedence"
        ))
    }

    fn contents(&self) -> Vec<(ContentUse, ContentHash)> {
        let mut all = Vec::new();
        let mut add = |used, text: &str| all.extend(ContentHash::from_uri(text).map(|hash| (used, hash)));
        // 1. Pictures: the job's own, or its concepts'.
        add(ContentUse::Images, &self.data.images);
        self.data.folders.iter().for_each(|folder| add(ContentUse::Images, &folder.images));
        for concept in &self.concepts {
            add(ContentUse::Images, &concept.images);
            concept.folders.iter().for_each(|folder| add(ContentUse::Images, &folder.images));
        }
        // 2. Embeddings to start from.
        add(ContentUse::Embedding, &self.train.initializer_embedding);
        self.concepts.iter().for_each(|concept| add(ContentUse::Embedding, &concept.initializer_embedding));
        // 3. The checkpoint.
        add(ContentUse::Checkpoint, &self.train.resume_from_checkpoint);
        all
    }

    fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
        let Self { data, train, concepts } = self;
        let own = ("train.initializer_embedding".to_owned(), &mut train.initializer_embedding);
        let (mut pictures, mut embeddings) = (Vec::new(), vec![own]);
        add_sources(&mut pictures, |key| format!("data.{key}"), &mut data.images, &mut data.folders);
        for (index, concept) in concepts.iter_mut().enumerate() {
            add_sources(&mut pictures, |key| field(index, key), &mut concept.images, &mut concept.folders);
            embeddings.push((field(index, "initializer_embedding"), &mut concept.initializer_embedding));
        }
        let embeddings = embeddings.into_iter().map(|(field, place)| (field, PathUse::Embedding, place));
        let pictures = pictures.into_iter().map(|(field, place)| (field, PathUse::Pictures, place));
        let mut all: Vec<_> = embeddings.chain(pictures).collect();
        // Others are words and numbers.
        if matches!(ResumeFrom::parse(&train.resume_from_checkpoint), Ok(ResumeFrom::File(_))) {
            let field = "train.resume_from_checkpoint".to_owned();
            all.push((field, PathUse::Checkpoint, &mut train.resume_from_checkpoint));
        }
        all
    }

    fn lists(&self) -> Vec<(String, usize, &'static str)> {
        let train = &self.train.templates;
        // Concepts without prompts of their own have these, each.
        let shared =
            self.concepts.iter().filter(|concept| !train.is_empty() && concept.templates == *train).count();
        let each = if shared > 0 { ", as every concept without templates of its own has them" } else { "" };
        let mut all = vec![
            ("train.templates".to_owned(), text_bytes(train) * (1 + shared), each),
            ("data.folders".to_owned(), folder_bytes(&self.data.folders), ""),
        ];
        for (index, concept) in self.concepts.iter().enumerate() {
            if concept.templates != *train {
                all.push((format!("concepts[{index}].templates"), text_bytes(&concept.templates), ""));
            }
            all.push((format!("concepts[{index}].folders"), folder_bytes(&concept.folders), ""));
        }
        all
    }

    fn image_sources(&mut self) -> Vec<(String, &mut String)> {
        let Self { data, concepts, .. } = self;
        let mut all = Vec::new();
        if concepts.is_empty() {
            add_sources(&mut all, |key| format!("data.{key}"), &mut data.images, &mut data.folders);
        }
        for (index, concept) in concepts.iter_mut().enumerate() {
            add_sources(&mut all, |key| field(index, key), &mut concept.images, &mut concept.folders);
        }
        all
    }

    fn image_uses(&self) -> Vec<ImageUse> {
        let uses = |concept: ConceptSpec| {
            let captions = concept.uses_captions();
            concept
                .folders()
                .into_iter()
                .map(move |(_, folder)| ImageUse { repeats: folder.repeats, captions })
        };
        self.concepts().into_iter().flat_map(uses).collect()
    }

    fn learned_tokens(&self) -> Vec<String> {
        self.concepts().into_iter().map(|ConceptSpec { placeholder_token, .. }| placeholder_token).collect()
    }

    fn wants_full_pipeline(&self) -> bool {
        self.train.save_as_full_pipeline
    }

    fn decides(&self, option: &str) -> bool {
        let key = option.strip_prefix("train.").unwrap_or_default();
        !TRAIN_OPTIONS_WITHOUT_EFFECT.contains(&key) && !COMPARED_OTHERWISE.contains(&option)
    }

    fn add_deciding(&self, cluster: &ClusterSpec, options: &mut BTreeMap<String, Value>) {
        options.insert(MICROBATCHES.to_owned(), Value::from(self.global_microbatches(cluster)));
    }
}

fn folder_bytes(folders: &[FolderSpec]) -> usize {
    folders.iter().map(|folder| folder.images.len()).sum()
}

//! What it takes from elsewhere: files, folders and uploaded contents.

use super::{TextualInversionSpec, concepts::field, folders::add_sources};
use crate::{
    ids::ContentHash,
    job::{ContentUse, PathUse, ResumeFrom},
};

impl TextualInversionSpec {
    /// The uploaded contents that it names.
    pub(in crate::job) fn contents(&self) -> Vec<(ContentUse, ContentHash)> {
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

    /// See [`crate::job::kinds::Work`].
    pub(in crate::job) fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
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
}

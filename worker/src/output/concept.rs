//! A job's concepts and the names of their files.

use ringtune_shared::embedding::FileNames;

/// A concept of a job, as in its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concept {
    /// The word that is taught.
    pub placeholder_token: String,
    /// The word that it starts from; empty where it starts from an embedding.
    pub initializer_token: String,
    /// The content URI of the embedding that it starts from; empty where it starts from words.
    pub initializer_embedding: String,
    /// Rows learned for it, at least 1.
    pub num_vectors: usize,
    /// Names of its files.
    pub files: FileNames,
}

/// The learned rows of one concept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learned<'a> {
    /// The concept.
    pub concept: &'a Concept,
    /// [num_vectors, width] flat.
    pub rows: &'a [f32],
    /// The step that they were learned up to.
    pub step: u64,
    /// Their loss on the held-out samples, where it was taken.
    pub validation_loss: Option<f32>,
}

impl Learned<'_> {
    /// [num_vectors, width].
    pub fn shape(&self) -> [usize; 2] {
        let vectors = self.concept.num_vectors;
        [vectors, self.rows.len() / vectors.max(1)]
    }
}

/// A concept before its files have names.
#[derive(Clone, Debug, Default)]
pub struct Taught {
    /// See [`Concept`].
    pub placeholder_token: String,
    /// See [`Concept`].
    pub initializer_token: String,
    /// See [`Concept`].
    pub initializer_embedding: String,
    /// See [`Concept`].
    pub num_vectors: usize,
}

impl Concept {
    /// The concepts of a job, in the order of their rows.
    pub fn list(taught: Vec<Taught>) -> Vec<Self> {
        let tokens: Vec<&str> = taught.iter().map(|taught| taught.placeholder_token.as_str()).collect();
        let names = FileNames::list(&tokens);
        let concept = |(taught, files): (Taught, FileNames)| {
            let Taught { placeholder_token, initializer_token, initializer_embedding, num_vectors } = taught;
            Self { placeholder_token, initializer_token, initializer_embedding, num_vectors, files }
        };
        taught.into_iter().zip(names).map(concept).collect()
    }

    /// Its start: the word, or the embedding's content URI.
    pub fn start(&self) -> &str {
        if self.initializer_embedding.is_empty() {
            &self.initializer_token
        } else {
            &self.initializer_embedding
        }
    }

    /// The learned rows of each concept. `rows`: [vectors of all concepts, width] flat, in their order.
    pub fn split<'a>(concepts: &'a [Self], rows: &'a [f32], step: u64) -> Vec<Learned<'a>> {
        let vectors: usize = concepts.iter().map(|concept| concept.num_vectors).sum();
        let width = rows.len() / vectors.max(1);
        let mut rest = rows;
        let mut split = Vec::with_capacity(concepts.len());
        for (index, concept) in concepts.iter().enumerate() {
            // A remainder stays with the last, whose shape does not fit then.
            let length = if index + 1 == concepts.len() { rest.len() } else { concept.num_vectors * width };
            let (own, others) = rest.split_at(length.min(rest.len()));
            rest = others;
            split.push(Learned { concept, rows: own, step, validation_loss: None });
        }
        split
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn concepts(tokens: &[&str]) -> Vec<Concept> {
        let taught = |(index, token): (usize, &&str)| Taught {
            placeholder_token: (*token).to_owned(),
            initializer_token: "star".to_owned(),
            num_vectors: index + 1,
            ..Taught::default()
        };
        Concept::list(tokens.iter().enumerate().map(taught).collect())
    }

    #[test]
    fn rows_belong_to_their_concepts() {
        let concepts = concepts(&["<a>", "<b>"]);
        let rows = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let split = Concept::split(&concepts, &rows, 7);
        assert_eq!((split[0].rows, split[1].rows), (&rows[..2], &rows[2..]));
        assert_eq!((split[0].shape(), split[1].shape()), ([1, 2], [2, 2]));
        assert_eq!((split[0].concept, split[1].step), (&concepts[0], 7));
    }
}

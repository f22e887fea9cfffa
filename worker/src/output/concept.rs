//! What a job taught, and how its files are called.

use ringtune_shared::spec::ConceptSpec;

use super::Learned;

/// What every embedding's file name begins with.
const STEM: &str = "learned_embeds";
/// What follows it in the file that kohya's trainer would write.
const EMB_PARAMS: &str = "emb_params";
/// What follows it in the file of the last step, where the job's is another one.
const LAST: &str = "last";
/// Of a concept's name in a file name.
const MOST_NAME_CHARACTERS: usize = 64;

/// One concept of a job, as its files know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concept {
    /// The word that is taught.
    pub placeholder_token: String,
    /// The word that it starts from.
    pub initializer_token: String,
    /// Rows learned for it, at least 1.
    pub num_vectors: usize,
    /// Its part of the file names, where the job has several concepts.
    name: Option<String>,
}

impl Concept {
    /// The concepts of a job, in the order of their rows. Each of several gets a name of its own for its files, made
    /// of its placeholder token.
    pub fn list(specs: &[ConceptSpec]) -> Vec<Self> {
        let mut taken: Vec<String> = Vec::new();
        let concept = |(index, spec): (usize, &ConceptSpec)| {
            let name = (specs.len() > 1).then(|| {
                let name = free_name(&spec.placeholder_token, index + 1, &taken);
                taken.push(name.to_ascii_lowercase());
                name
            });
            Self {
                placeholder_token: spec.placeholder_token.clone(),
                initializer_token: spec.initializer_token.clone(),
                num_vectors: spec.num_vectors as usize,
                name,
            }
        };
        specs.iter().enumerate().map(concept).collect()
    }

    /// The file for diffusers: `learned_embeds.safetensors`, or `learned_embeds-NAME.safetensors` of several.
    pub fn file_name(&self) -> String {
        self.file_name_of("")
    }

    /// The file in kohya's layout.
    pub fn emb_params_file_name(&self) -> String {
        self.file_name_of(EMB_PARAMS)
    }

    /// diffusers' file as it is after `step` steps.
    pub fn file_name_at(&self, step: u64) -> String {
        self.file_name_of(&format!("steps-{step}"))
    }

    /// diffusers' file as it is after the last step, where the best embedding is the job's.
    pub fn last_file_name(&self) -> String {
        self.file_name_of(LAST)
    }

    fn file_name_of(&self, what: &str) -> String {
        let parts = [STEM, self.name.as_deref().unwrap_or(""), what];
        let stem: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!("{}.safetensors", stem.join("-"))
    }

    /// What was learned of each concept. `rows`: [vectors of all concepts, width] flat, in their order.
    pub fn split<'a>(concepts: &'a [Self], rows: &'a [f32], step: u64) -> Vec<Learned<'a>> {
        let vectors: usize = concepts.iter().map(|concept| concept.num_vectors).sum();
        let width = rows.len() / vectors.max(1);
        let mut rest = rows;
        let mut split = Vec::with_capacity(concepts.len());
        for (index, concept) in concepts.iter().enumerate() {
            // What a division leaves over stays with the last, whose shape does not fit then.
            let length = if index + 1 == concepts.len() { rest.len() } else { concept.num_vectors * width };
            let (own, others) = rest.split_at(length.min(rest.len()));
            rest = others;
            split.push(Learned { concept, rows: own, step, validation_loss: None });
        }
        split
    }
}

/// A name for files, made of a token's letters, digits, "-", "_" and ".", that no other concept has (whatever its
/// case: some file systems do not tell) and that cannot be taken for another kind of file. `number`: the concept's,
/// from 1, which makes a name free that is not.
fn free_name(token: &str, number: usize, taken: &[String]) -> String {
    let name: String = file_word(token).chars().take(MOST_NAME_CHARACTERS).collect();
    let mut candidate = if name.is_empty() { format!("concept-{number}") } else { name };
    while is_a_kind_of_file(&candidate) || taken.contains(&candidate.to_ascii_lowercase()) {
        candidate = format!("{candidate}-{number}");
        if is_a_kind_of_file(&candidate) {
            candidate.push_str("-x");
        }
    }
    candidate
}

/// Whether a file's name with this at its end says what the file is: "emb_params", "best", "steps-500".
fn is_a_kind_of_file(name: &str) -> bool {
    let name = format!("-{}", name.to_ascii_lowercase());
    let at_a_step =
        name.rsplit_once("-steps-").is_some_and(|(_, step)| step.bytes().all(|b| b.is_ascii_digit()));
    at_a_step
        || name.ends_with(&format!("-{EMB_PARAMS}"))
        || name.ends_with(&format!("-{LAST}"))
        || name.ends_with("-best")
}

/// A token's letters, digits, "-", "_" and ".", without points and hyphens around: what every tool and file system
/// takes for a name and for a word of a prompt. May be empty.
pub fn file_word(token: &str) -> String {
    let kept: String = token.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect();
    kept.trim_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use ringtune_shared::spec::LearnableProperty;

    use super::*;

    fn concepts(tokens: &[&str]) -> Vec<Concept> {
        let spec = |(index, token): (usize, &&str)| ConceptSpec {
            placeholder_token: (*token).to_owned(),
            initializer_token: "star".to_owned(),
            images: "/images".to_owned(),
            folders: Vec::new(),
            num_vectors: index as u32 + 1,
            learnable_property: LearnableProperty::Object,
            templates: Vec::new(),
        };
        Concept::list(&tokens.iter().enumerate().map(spec).collect::<Vec<_>>())
    }

    fn names(tokens: &[&str]) -> Vec<String> {
        concepts(tokens).iter().map(Concept::file_name).collect()
    }

    #[test]
    fn one_concept_has_the_names_that_diffusers_gives() {
        let one = &concepts(&["<green-star>"])[0];
        assert_eq!(one.file_name(), "learned_embeds.safetensors");
        assert_eq!(one.emb_params_file_name(), "learned_embeds-emb_params.safetensors");
        assert_eq!(one.file_name_at(250), "learned_embeds-steps-250.safetensors");
    }

    #[test]
    fn several_concepts_have_names_of_their_own() {
        let two = concepts(&["<green-star>", "<blue-heart>"]);
        assert_eq!(two[0].file_name(), "learned_embeds-green-star.safetensors");
        assert_eq!(two[1].emb_params_file_name(), "learned_embeds-blue-heart-emb_params.safetensors");
        assert_eq!(two[1].file_name_at(5), "learned_embeds-blue-heart-steps-5.safetensors");
    }

    #[test]
    fn no_two_files_have_the_same_name() {
        let tokens = [
            "<a>",
            "[A]",
            "星",
            "*",
            "<a-steps-5>",
            "<steps-5>",
            "<a-emb_params>",
            "<best>",
            "<../x>",
            "a-2",
        ];
        let all: Vec<String> = concepts(&tokens)
            .iter()
            .flat_map(|one| [one.file_name(), one.emb_params_file_name(), one.file_name_at(5)])
            .collect();
        for name in &all {
            ringtune_shared::files::check_file_name(name).unwrap();
        }
        let mut lower: Vec<String> = all.iter().map(|name| name.to_ascii_lowercase()).collect();
        lower.sort();
        lower.dedup();
        assert_eq!(lower.len(), all.len(), "{all:?}");
        assert_eq!(
            names(&tokens)[2..4],
            ["concept-3", "concept-4"].map(|name| format!("learned_embeds-{name}.safetensors"))
        );
        assert!(names(&["<a>", &"x".repeat(200)])[1].len() < 100);
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

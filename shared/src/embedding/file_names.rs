//! File names of a job's embeddings.

/// Prefix of every embedding's file name.
const STEM: &str = "learned_embeds";
/// Suffix of the file in kohya's format.
const EMB_PARAMS: &str = "emb_params";
/// Suffix of the last step's file, if the job's result is another step's.
const LAST: &str = "last";
/// Of a concept's name in a file name.
const MOST_NAME_CHARACTERS: usize = 64;

/// The names of one concept's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileNames {
    /// Its part of them, where the job has several concepts.
    name: Option<String>,
}

impl FileNames {
    /// Of a job's concepts, by their placeholder tokens. Each of several gets a name of its own, made of its token.
    pub fn list(placeholder_tokens: &[&str]) -> Vec<Self> {
        if placeholder_tokens.len() == 1 {
            return vec![Self { name: None }];
        }
        let mut taken: Vec<String> = Vec::new();
        let own = |(index, token): (usize, &&str)| {
            let name = free_name(token, index + 1, &taken);
            taken.push(name.to_ascii_lowercase());
            Self { name: Some(name) }
        };
        placeholder_tokens.iter().enumerate().map(own).collect()
    }

    /// The file for diffusers: `learned_embeds.safetensors`, or `learned_embeds-NAME.safetensors` of several.
    pub fn diffusers(&self) -> String {
        self.of("")
    }

    /// The file in kohya's layout.
    pub fn emb_params(&self) -> String {
        self.of(EMB_PARAMS)
    }

    /// diffusers' file as it is after `step` steps.
    pub fn at_step(&self, step: u64) -> String {
        self.of(&format!("steps-{step}"))
    }

    /// diffusers' file as it is after the last step, where the best embedding is the job's.
    pub fn last(&self) -> String {
        self.of(LAST)
    }

    fn of(&self, what: &str) -> String {
        let parts = [STEM, self.name.as_deref().unwrap_or(""), what];
        let stem: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        format!("{}.safetensors", stem.join("-"))
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
    use super::*;

    #[test]
    fn one_concept_has_the_names_that_diffusers_gives() {
        let one = &FileNames::list(&["<green-star>"])[0];
        assert_eq!(one.diffusers(), "learned_embeds.safetensors");
        assert_eq!(one.emb_params(), "learned_embeds-emb_params.safetensors");
        assert_eq!(one.at_step(250), "learned_embeds-steps-250.safetensors");
    }

    #[test]
    fn several_concepts_have_names_of_their_own() {
        let two = FileNames::list(&["<green-star>", "<blue-heart>"]);
        assert_eq!(two[0].diffusers(), "learned_embeds-green-star.safetensors");
        assert_eq!(two[1].emb_params(), "learned_embeds-blue-heart-emb_params.safetensors");
        assert_eq!(two[1].at_step(5), "learned_embeds-blue-heart-steps-5.safetensors");
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
        let all: Vec<String> = FileNames::list(&tokens)
            .iter()
            .flat_map(|one| [one.diffusers(), one.emb_params(), one.at_step(5)])
            .collect();
        for name in &all {
            crate::files::check_file_name(name).unwrap();
        }
        let mut lower: Vec<String> = all.iter().map(|name| name.to_ascii_lowercase()).collect();
        lower.sort();
        lower.dedup();
        assert_eq!(lower.len(), all.len(), "{all:?}");
        let names = |tokens: &[&str]| -> Vec<String> {
            FileNames::list(tokens).iter().map(FileNames::diffusers).collect()
        };
        assert_eq!(
            names(&tokens)[2..4],
            ["concept-3", "concept-4"].map(|name| format!("learned_embeds-{name}.safetensors"))
        );
        assert!(names(&["<a>", &"x".repeat(200)])[1].len() < 100);
    }
}

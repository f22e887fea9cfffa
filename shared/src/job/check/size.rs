//! The maximal size of a job with all defaults filled in.

use super::{Check, limits};
use crate::job::JobSpec;

impl Check {
    /// Refuses a job that is too large to be sent to every rank, by the name of the list that makes it so.
    pub(in crate::job) fn whole_job(&mut self, spec: &JobSpec) {
        let bytes = serde_json::to_string(spec).map_or(usize::MAX, |json| json.len());
        if bytes <= limits::JOB_BYTES {
            return;
        }
        let Some((field, part, each)) =
            spec.work.facts().lists().into_iter().max_by_key(|(_, bytes, _)| *bytes)
        else {
            return;
        };
        self.refuse(
            &field,
            format!(
                "{part} of the job's {bytes} bytes with every default filled in{each}; allowed: at most {} for the \
                 whole job",
                limits::JOB_BYTES
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{
        JobDraft, ModelDraft,
        kinds::{generate::GenerateDraft, generate_text::GenerateTextDraft},
        pictures::{
            DataDraft, TrainDraft,
            concepts::{ConceptDraft, WordDraft},
        },
    };

    fn refused(draft: JobDraft) -> (String, String) {
        let error = JobSpec::from_draft(draft).expect_err("it was accepted");
        let first = error.violations.into_iter().next().expect("a violation");
        (first.field, first.problem)
    }

    fn draft(kind: &str) -> JobDraft {
        let model = ModelDraft { base: Some("/m".to_owned()), ..ModelDraft::default() };
        JobDraft { kind: Some(kind.to_owned()), model, ..JobDraft::default() }
    }

    fn templates(count: usize) -> Option<Vec<String>> {
        Some((0..count).map(|index| format!("{index:0>500} {{}}")).collect())
    }

    fn concepts(count: usize, own: Option<Vec<String>>) -> Vec<ConceptDraft> {
        let concept = |index: usize| ConceptDraft {
            placeholder_token: Some(format!("<{index}>")),
            initializer_token: Some("a".to_owned()),
            images: Some("/i".to_owned()),
            templates: own.clone().filter(|_| index == 1),
            ..ConceptDraft::default()
        };
        (0..count).map(concept).collect()
    }

    #[test]
    fn a_job_that_is_too_large_is_refused_by_what_makes_it_so() {
        // Each list within its own limits.
        let train = TrainDraft { templates: templates(1000), ..TrainDraft::default() };
        let many = JobDraft { concepts: concepts(64, None), train, ..draft("textual_inversion") };
        let (field, problem) = refused(many);
        assert_eq!(field, "train.templates");
        assert!(
            problem.starts_with("32695000 of the job's ") && problem.contains("at most 1048576"),
            "{problem}"
        );
        assert!(problem.contains("every concept without templates of its own"), "{problem}");

        let train = TrainDraft { templates: templates(700), ..TrainDraft::default() };
        let own = JobDraft { concepts: concepts(2, templates(1000)), train, ..draft("textual_inversion") };
        let (field, problem) = refused(own);
        assert_eq!(field, "train.templates", "{problem}");

        let prompts = Some(vec!["x".repeat(10_000); 110]);
        let generate = GenerateDraft { prompts, ..GenerateDraft::default() };
        assert_eq!(refused(JobDraft { generate, ..draft("generate") }).0, "generate.prompts");
        let prompts = Some(vec!["x".repeat(100_000); 11]);
        let generate_text = GenerateTextDraft { prompts, ..GenerateTextDraft::default() };
        let texts = JobDraft { generate_text, ..draft("generate_text") };
        assert_eq!(refused(texts).0, "generate_text.prompts");
    }

    #[test]
    fn the_most_templates_of_one_concept_fit() {
        let data = DataDraft { images: Some("/i".to_owned()), ..DataDraft::default() };
        let word = WordDraft {
            placeholder_token: Some("<a>".to_owned()),
            initializer_token: Some("b".to_owned()),
            ..WordDraft::default()
        };
        let train = TrainDraft { templates: templates(1000), ..TrainDraft::default() };
        assert!(JobSpec::from_draft(JobDraft { data, word, train, ..draft("textual_inversion") }).is_ok());
    }
}

//! Relative paths of a job are relative to its job file.

use std::path::{Component, Path, PathBuf};

use super::{JobSpec, ModelLocation, ModelSpec, SpecError, Violation};
use crate::ids::CONTENT_URI_PREFIX;

/// A job's use of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathUse {
    /// A model or a tokenizer is read there.
    Model,
    /// Pictures are read there, and their captions.
    Pictures,
    /// Tokens are read there.
    Tokens,
    /// A learned embedding or a LoRA is read there.
    Embedding,
    /// The checkpoint that it goes on from is read there, by whoever submits the job.
    Checkpoint,
    /// Traces are written there.
    Trace,
}

/// A path that a job gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPath {
    /// `section.key`.
    pub field: String,
    /// Its use.
    pub used: PathUse,
    /// The given path.
    pub path: String,
}

impl JobSpec {
    /// All local paths of the job: neither uploads, nor repositories, nor buckets.
    pub fn paths(&self) -> Vec<JobPath> {
        let mut spec = self.clone();
        let path =
            |(field, used, path): (String, PathUse, &mut String)| JobPath { field, used, path: path.clone() };
        spec.paths_mut().into_iter().map(path).collect()
    }

    /// Makes the job's relative paths absolute: the model (unless it is a URI), the tokenizer's folder, the image
    /// folder (unless it is a content URI), the tokens (unless they are in a bucket) and the trace folder (unless it is
    /// empty).
    ///
    /// `base`: the folder of the job file, itself absolute and valid UTF-8; else the violation
    /// names the field that needed it.
    pub fn resolve_paths(&mut self, base: &Path) -> Result<(), SpecError> {
        let mut violations = Vec::new();
        for (field, _, path) in self.paths_mut() {
            match absolute(base, path) {
                Ok(resolved) => *path = resolved,
                Err(problem) => violations.push(Violation::new(field, problem)),
            }
        }
        if violations.is_empty() { Ok(()) } else { Err(SpecError { violations }) }
    }

    /// Puts what `better` gives in a path's place.
    pub fn change_paths(&mut self, better: impl Fn(&str) -> Option<String>) {
        for (_, _, path) in self.paths_mut() {
            if let Some(better) = better(path) {
                *path = better;
            }
        }
    }

    /// Refuses relative paths, of which a daemon cannot know what they are relative to.
    pub fn check_paths(&self) -> Result<(), SpecError> {
        let mut spec = self.clone();
        let paths = spec.paths_mut().into_iter();
        let relative = paths.filter(|(_, _, path)| !Path::new(path.as_str()).is_absolute());
        let violation = |field, path: &String| {
            Violation::new(field, format!("{path:?} is relative; give an absolute path"))
        };
        let violations: Vec<Violation> = relative.map(|(field, _, path)| violation(field, path)).collect();
        if violations.is_empty() { Ok(()) } else { Err(SpecError { violations }) }
    }

    /// The paths that the job gives, by their fields' names, each with what it is for.
    fn paths_mut(&mut self) -> Vec<(String, PathUse, &mut String)> {
        let is_path = |path: &str| {
            !path.is_empty() && !path.starts_with(CONTENT_URI_PREFIX) && ModelLocation::is_path(path)
        };
        let ModelSpec { base, tokenizer, .. } = &mut self.common.model;
        let model = [("model.base", base), ("model.tokenizer", tokenizer)];
        let model = model.map(|(field, path)| (field.to_owned(), PathUse::Model, path));
        let trace = [("debug.trace_dir".to_owned(), PathUse::Trace, &mut self.common.debug.trace_dir)];
        let all = model.into_iter().chain(self.work.facts_mut().places()).chain(trace);
        all.filter(|(_, _, path)| is_path(path)).collect()
    }
}

/// `.` and doubled separators go; `..` stays, because a symbolic link before it may lead elsewhere.
fn absolute(base: &Path, path: &str) -> Result<String, String> {
    let joined: PathBuf =
        base.join(path).components().filter(|component| *component != Component::CurDir).collect();
    if !joined.is_absolute() {
        return Err(format!("{path:?} cannot be made absolute: the job file's folder {base:?} is not"));
    }
    joined
        .into_os_string()
        .into_string()
        .map_err(|path| format!("{path:?} is not valid UTF-8; move the files or give an absolute path"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::parse_job_toml;

    #[test]
    fn relative_paths_are_refused_by_name() {
        let job = |base: &str, images: &str| {
            parse_job_toml(&format!(
                "kind = \"textual_inversion\"\n[model]\nbase = {base:?}\n[data]\nimages = {images:?}\n\
                 [train]\nplaceholder_token = \"<star>\"\ninitializer_token = \"star\"\n"
            ))
            .unwrap()
        };
        let uploaded = format!("{CONTENT_URI_PREFIX}{}", "0".repeat(64));
        assert_eq!(job("/models/sd", "/images").check_paths(), Ok(()));
        assert_eq!(job("/models/sd", &uploaded).check_paths(), Ok(()));
        let error = job("../sd", "images").check_paths().unwrap_err();
        let fields: Vec<&str> = error.violations.iter().map(|violation| violation.field.as_str()).collect();
        assert_eq!(fields, ["model.base", "data.images"]);
        assert!(error.to_string().contains("\"../sd\" is relative"), "{error}");
    }

    #[test]
    fn every_path_of_a_job_is_known_with_its_use() {
        let uses = |text: &str| {
            let mut spec = parse_job_toml(text).unwrap();
            spec.resolve_paths(Path::new("/jobs")).unwrap();
            // Paths that stand anywhere in the job, under this folder.
            let json = serde_json::to_string(&spec).unwrap();
            let paths = spec.paths();
            assert_eq!(paths.len(), json.matches("\"/jobs/").count(), "{json}");
            paths.into_iter().map(|path| (path.field, path.used)).collect::<Vec<_>>()
        };
        let head = "[model]\nbase = \"sd\"\ntokenizer = \"words\"\n";
        let learning = format!(
            "kind = \"textual_inversion\"\n{head}[train]\nresume_from_checkpoint = \"./c\"\n\
             [[concepts]]\nplaceholder_token = \"<a>\"\ninitializer_embedding = \"e.pt\"\nimages = \"a\"\n\
             [[concepts]]\nplaceholder_token = \"<b>\"\ninitializer_token = \"b\"\n\
             folders = [{{ images = \"b\" }}]\n[debug]\ntrace_dir = \"t\"\n"
        );
        let expected = [
            ("model.base", PathUse::Model),
            ("model.tokenizer", PathUse::Model),
            ("concepts[0].initializer_embedding", PathUse::Embedding),
            ("concepts[0].images", PathUse::Pictures),
            ("concepts[1].folders[0].images", PathUse::Pictures),
            ("train.resume_from_checkpoint", PathUse::Checkpoint),
            ("debug.trace_dir", PathUse::Trace),
        ];
        assert_eq!(uses(&learning), expected.map(|(field, used)| (field.to_owned(), used)));
        let drawing =
            format!("kind = \"generate\"\n{head}[generate]\nprompts = [\"a\"]\nembeddings = [\"e.pt\"]\n");
        assert_eq!(uses(&drawing)[2], ("generate.embeddings".to_owned(), PathUse::Embedding));
        let words = "kind = \"gpt2_finetune\"\n[model]\nbase = \"m\"\n[gpt2]\ntokens = \"t\"\n";
        assert_eq!(uses(words)[1], ("gpt2.tokens".to_owned(), PathUse::Tokens));
    }
}

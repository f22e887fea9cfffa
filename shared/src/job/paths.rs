//! Relative paths of a job are relative to its job file.

use std::path::{Component, Path, PathBuf};

use super::{JobSpec, ModelLocation, ModelSpec, SpecError, Violation};
use crate::ids::CONTENT_URI_PREFIX;

impl JobSpec {
    /// Makes the job's relative paths absolute: the model (unless it is a URI), the tokenizer's folder, the image
    /// folder (unless it is a content URI) and the trace folder (unless it is empty).
    ///
    /// `base`: the folder of the job file, itself absolute and valid UTF-8; else the violation
    /// names the field that needed it.
    pub fn resolve_paths(&mut self, base: &Path) -> Result<(), SpecError> {
        let mut violations = Vec::new();
        for (field, path) in self.paths_mut() {
            match absolute(base, path) {
                Ok(resolved) => *path = resolved,
                Err(problem) => violations.push(Violation::new(field, problem)),
            }
        }
        if violations.is_empty() { Ok(()) } else { Err(SpecError { violations }) }
    }

    /// Refuses relative paths, of which a daemon cannot know what they are relative to.
    pub fn check_paths(&self) -> Result<(), SpecError> {
        let mut spec = self.clone();
        let relative = |(_, path): &(String, &mut String)| !Path::new(path.as_str()).is_absolute();
        let violation = |(field, path): (String, &mut String)| {
            Violation::new(field, format!("{path:?} is relative; give an absolute path"))
        };
        let violations: Vec<Violation> =
            spec.paths_mut().into_iter().filter(relative).map(violation).collect();
        if violations.is_empty() { Ok(()) } else { Err(SpecError { violations }) }
    }

    /// The paths that the job gives, by their fields' names.
    fn paths_mut(&mut self) -> Vec<(String, &mut String)> {
        let is_path = |path: &str| {
            !path.is_empty() && !path.starts_with(CONTENT_URI_PREFIX) && ModelLocation::is_path(path)
        };
        let ModelSpec { base, tokenizer, .. } = &mut self.common.model;
        let model = [("model.base".to_owned(), base), ("model.tokenizer".to_owned(), tokenizer)];
        let trace = [("debug.trace_dir".to_owned(), &mut self.common.debug.trace_dir)];
        let all = model.into_iter().chain(self.work.places()).chain(trace);
        all.filter(|(_, path)| is_path(path)).collect()
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
}

//! Relative paths of a job are relative to its job file.

use std::path::{Component, Path, PathBuf};

use super::{JobSpec, SpecError, Violation};
use crate::ids::CONTENT_URI_PREFIX;

impl JobSpec {
    /// Makes the job's relative paths absolute: the model folder, the image folder (unless it is a
    /// content URI) and the trace folder (unless it is empty).
    ///
    /// `base`: the folder of the job file, itself absolute and valid UTF-8; else the violation
    /// names the field that needed it.
    pub fn resolve_paths(&mut self, base: &Path) -> Result<(), SpecError> {
        let mut violations = Vec::new();
        let images_are_uploaded = self.data.images.starts_with(CONTENT_URI_PREFIX);
        let paths = [
            ("model.base", &mut self.model.base, false),
            ("data.images", &mut self.data.images, images_are_uploaded),
            ("debug.trace_dir", &mut self.debug.trace_dir, false),
        ];
        for (field, path, keep) in paths {
            if keep || path.is_empty() {
                continue;
            }
            match absolute(base, path) {
                Ok(resolved) => *path = resolved,
                Err(problem) => violations.push(Violation::new(field, problem)),
            }
        }
        if violations.is_empty() { Ok(()) } else { Err(SpecError { violations }) }
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

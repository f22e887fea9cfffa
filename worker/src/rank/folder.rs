//! Files of ranks of all kinds: their folder, and the job as it was run.

use std::{fs, io, path::Path};

use ringtune_shared::{
    files::write_atomically,
    job::{JobSpec, parse_job_toml},
};

use super::Error;
use crate::{
    contents,
    fault::Refusal,
    output::read_back::{check_bytes, different},
};

/// The job file among the artifacts.
pub(crate) const JOB_FILE: &str = "job.toml";

/// Makes the empty folder that a rank writes in. What an earlier try left there goes. Blocks.
pub(super) fn make_work_folder(folder: &Path) -> Result<(), Error> {
    let failed = |source| contents::Error::Io { path: folder.to_owned(), source };
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error))?,
        _ => Ok(fs::create_dir_all(folder).map_err(failed)?),
    }
}

/// Writes the job as it is run into `folder`. It has to be the same job when it is read. Blocks.
pub(crate) fn write_job_file(folder: &Path, spec: &JobSpec) -> Result<(), Error> {
    let toml = spec.to_toml().map_err(|error| Refusal::of(JOB_FILE, error.to_string()))?;
    write_checked(&folder.join(JOB_FILE), &toml, spec)
}

fn write_checked(file: &Path, toml: &str, spec: &JobSpec) -> Result<(), Error> {
    write_atomically(file, toml.as_bytes())?;
    check_bytes(file, toml.as_bytes())?;
    match parse_job_toml(toml) {
        Ok(read) if read == *spec => Ok(()),
        Ok(_) => Err(different(file, "it is read as another job".to_owned()).into()),
        Err(error) => Err(different(file, error.to_string()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_file_that_says_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(JOB_FILE);
        let text = "kind = \"textual_inversion\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n\
            [train]\nplaceholder_token = \"<a>\"\ninitializer_token = \"b\"\n";
        let spec = parse_job_toml(text).unwrap();
        write_job_file(folder.path(), &spec).unwrap();
        for other in [text.replace("<a>", "<c>"), text.replace("kind", "kin")] {
            let refused = write_checked(&file, &other, &spec).unwrap_err();
            assert!(refused.to_string().contains("read back after writing"), "{refused}");
        }
    }
}

//! `ringtune slurm`: jobs and workers on the nodes of a cluster that Slurm hands out. What runs there are the scripts of
//! deploy/slurm; here is what comes before and after: checks, the submission, and following the job.

mod run;
mod scheduler;
mod workers;

use std::{
    fs,
    path::{Path, PathBuf},
};

pub(super) use run::run;
pub(super) use workers::workers;

use super::destination::check_folder;
use crate::error::Error;

/// The types of file systems in memory, by their numbers. Source: statfs(2).
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Makes a folder that all nodes are to see, and says where it is.
fn shared_folder(folder: &Path) -> Result<PathBuf, Error> {
    check_folder(folder)?;
    let failed = |source| Error::File { doing: "cannot make", path: folder.to_owned(), source };
    let absolute = std::path::absolute(folder).map_err(failed)?;
    let existing = absolute.ancestors().find(|ancestor| ancestor.is_dir()).unwrap_or(Path::new("/"));
    let system = rustix::fs::statfs(existing).map(|found| found.f_type as u64);
    if system.is_ok_and(|system| IN_MEMORY.contains(&system)) {
        return Err(Error::Usage(format!(
            "{} is in this machine's memory, and no other node sees it; give -o a folder that all nodes share",
            folder.display()
        )));
    }
    fs::create_dir_all(&absolute).map_err(failed)?;
    fs::canonicalize(&absolute).map_err(failed)
}

/// Writes a script into the folder, for the submission and for whoever wants to read it.
fn write_script(folder: &Path, name: &str, text: &str) -> Result<PathBuf, Error> {
    let path = folder.join(name);
    fs::write(&path, text).map_err(|source| Error::File {
        doing: "cannot write",
        path: path.clone(),
        source,
    })?;
    Ok(path)
}

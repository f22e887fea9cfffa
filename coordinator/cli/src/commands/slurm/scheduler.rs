//! The commands of Slurm, and what they say.

use std::{env, ffi::OsString, io, path::PathBuf};

use tokio::process::Command;

use crate::error::Error;

/// Something that Slurm was asked for, and would not do.
fn refused(error: &[u8]) -> Error {
    let text = String::from_utf8_lossy(error);
    let lines = text.lines().map(|line| line.trim_start_matches("sbatch: ").trim_start_matches("error: "));
    let said: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    Error::Usage(format!("Slurm does not take this: {}", said.join("; ")))
}

/// What a command printed.
async fn ask(program: &str, arguments: &[OsString]) -> Result<Result<String, Vec<u8>>, Error> {
    let done = Command::new(program).args(arguments).env("PATH", path()).output().await;
    let done = done.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::Usage(format!(
            "{program} is not in PATH: run this where jobs are submitted to Slurm, such as on a login node"
        )),
        _ => Error::File { doing: "cannot start", path: PathBuf::from(program), source },
    })?;
    Ok(if done.status.success() {
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    } else {
        Err(done.stderr)
    })
}

/// The variable of this process, with the folder of this program in front: batch scripts inherit it.
fn path() -> OsString {
    let own = env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
    let found = env::var_os("PATH").unwrap_or_default();
    env::join_paths(own.into_iter().chain(env::split_paths(&found))).unwrap_or(found)
}

/// Has Slurm look at a script with its options and arguments, without taking it.
///
/// # Errors
/// There is no Slurm here; it does not know the partition, the account or an option, or has no nodes like that.
pub(super) async fn check(line: &[OsString]) -> Result<(), Error> {
    sbatch("--test-only", line).await.map(drop)
}

/// Submits it; the id of the job.
///
/// # Errors
/// As above.
pub(super) async fn submit(line: &[OsString]) -> Result<u64, Error> {
    let said = sbatch("--parsable", line).await?;
    // ID, or ID;CLUSTER.
    let id = said.trim().split(';').next().and_then(|id| id.parse().ok());
    id.ok_or_else(|| Error::JobEnded(format!("sbatch answered {:?}, which is no job id", said.trim())))
}

async fn sbatch(flag: &str, line: &[OsString]) -> Result<String, Error> {
    let line = [&[OsString::from(flag)], line].concat();
    ask("sbatch", &line).await?.map_err(|said| refused(&said))
}

/// A job as Slurm sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Such as PENDING, RUNNING, COMPLETED.
    pub(super) state: String,
    /// Why it waits, or has ended.
    pub(super) reason: String,
    /// Its nodes, while it has any.
    pub(super) nodes: String,
    /// The exit code of its script.
    pub(super) code: u8,
}

impl Seen {
    /// Whether it is over, and will not be requeued.
    pub(super) fn has_ended(&self) -> bool {
        !["PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED", "RESIZING", "SIGNALING"]
            .contains(&self.state.as_str())
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let about = if self.state == "PENDING" { &self.reason } else { &self.nodes };
        let about = if about.is_empty() || about == "None" { String::new() } else { format!(" ({about})") };
        format!("{}{about}", self.state.to_lowercase())
    }

    /// Reads a line of `scontrol show job --oneliner`.
    fn of(line: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut words = line.split_whitespace();
            words
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
                .filter(|value| *value != "(null)")
        };
        Some(Self {
            state: field("JobState")?.to_owned(),
            reason: field("Reason").unwrap_or_default().to_owned(),
            nodes: field("NodeList").unwrap_or_default().to_owned(),
            code: field("ExitCode")?.split(':').next()?.parse().ok()?,
        })
    }
}

/// Looks at a job; None: the controller does not answer, or knows it no more.
pub(super) async fn look(id: u64) -> Result<Option<Seen>, Error> {
    let arguments = ["show", "job", "--oneliner", &id.to_string()].map(OsString::from);
    Ok(ask("scontrol", &arguments).await?.ok().and_then(|said| Seen::of(&said)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_read_as_slurm_shows_it() {
        let line = |state: &str, nodes: &str| {
            format!(
                "JobId=4 JobName=a b UserId=root(0) JobState={state} Reason=Resources Dependency=(null) ExitCode=1:0 \
                 ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} BatchHost=n1"
            )
        };
        let running = Seen::of(&line("RUNNING", "n[1-2]")).expect("read");
        assert_eq!((running.text().as_str(), running.code), ("running (n[1-2])", 1));
        assert!(!running.has_ended());
        let pending = Seen::of(&line("PENDING", "(null)")).expect("read");
        assert_eq!(pending.text(), "pending (Resources)");
        assert!(Seen::of(&line("TIMEOUT", "n1")).expect("read").has_ended());
        assert_eq!(Seen::of("slurm_load_jobs error: Invalid job id specified"), None);
    }

    #[test]
    fn what_slurm_refuses_is_said_in_its_words() {
        let said = b"sbatch: error: invalid partition specified: nowhere\nallocation failure: Invalid partition name specified\n";
        let text = refused(said).to_string();
        assert!(
            text.ends_with(
                "invalid partition specified: nowhere; allocation failure: Invalid partition name specified"
            ),
            "{text}"
        );
    }
}

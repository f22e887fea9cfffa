//! Whose fault a failed rank is, error by error. What follows for the job, the worker and the job's owner the coordinator decides
//! (`coordinator/src/core/fault.rs` has the table).
//!
//! Each error is named: one that is new does not compile before somebody has said whose it is.
//!
//! | error of … | whose fault |
//! |---|---|
//! | what the job names, says or brings (options, pictures, tokens, a model's own files), wherever it is read | the job's |
//! | a path that leads out of its folder, to a FIFO or device, through a file, in circles, or has too long a name | the job's |
//! | a path that is not there or may not be read; a hub or bucket that is not reached; memory that the machine lacks | the machine's |
//! | this worker's own files, disk, memory, engine, tasks; its certificate | the node's |
//! | what `[access]` keeps from jobs, and the switch of traces | its settings' |
//! | the coordinator's answers that no rule of its explains (INTERNAL, UNKNOWN) | the coordinator's |
//! | what the coordinator says passes by itself (a full disk) | nobody's: it is waited for (`contents/retry.rs`) |
//! | what the coordinator refuses by its rules (limits, what is not there) | the job's |
//! | neighbours in the ring | a link's |
//! | the end of this worker, as somebody asked for | nobody's |

use std::io;

use ringtune_tables::captions::{CaptionFileError, CaptionFileProblem};
use rustix::io::Errno;

use crate::{access, data, engine::EngineError, output, train};

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The job would fail anywhere: its pictures, tokens, options or model.
    Job,
    /// This worker's: no memory, no disk, an engine that died.
    Node,
    /// The whole machine's: it does not have or reach what the job names. The worker is as good as before for others.
    Machine,
    /// The coordinator did not do what it is there for.
    Coordinator,
    /// The connection between ranks.
    Link,
    /// Nobody's: somebody asked for it.
    Nobody,
    /// The job's own newest checkpoint is gone or damaged: an older one will do.
    Checkpoint,
    /// The job asks for what this worker's settings keep from jobs.
    Access,
}

/// Of a path that a job names, and that cannot be opened or read.
pub fn of_path(error: &io::Error) -> Fault {
    use io::ErrorKind as Kind;
    let code = error.raw_os_error();
    match error.kind() {
        // Reported by `access`, not the system: it leads out, or to something other than a file.
        Kind::PermissionDenied | Kind::InvalidInput | Kind::InvalidData if code.is_none() => Fault::Job,
        Kind::InvalidFilename | Kind::NotADirectory | Kind::IsADirectory | Kind::InvalidInput => Fault::Job,
        _ if code == Some(Errno::LOOP.raw_os_error()) => Fault::Job,
        Kind::NotFound | Kind::PermissionDenied | Kind::StaleNetworkFileHandle => Fault::Machine,
        // The disk or the memory, most likely.
        _ => Fault::Node,
    }
}

/// An error that can end a rank's work. Its text reaches the user as the job's reason, and names the field, the file or the call.
pub trait Blame: std::error::Error + Send + Sync + 'static {
    /// Whose fault it is: see the module's table.
    fn fault(&self) -> Fault;

    /// Whether a job that goes on from where it was would only come to it again: what it has is not worth keeping then.
    fn would_come_again(&self) -> bool {
        false
    }
}

/// A problem of the job that only a worker can see.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Refusal {
    /// `section.key` of the job, or the file.
    pub field: String,
    /// The given and the allowed value.
    pub problem: String,
}

impl Refusal {
    /// Of a field of the job.
    pub fn of(field: &str, problem: impl Into<String>) -> Self {
        Self { field: field.to_owned(), problem: problem.into() }
    }
}

impl Blame for Refusal {
    fn fault(&self) -> Fault {
        Fault::Job
    }
}

/// Another worker may allow what this one refuses: the job is worth another ring, and this worker is as good
/// as before for all other jobs.
impl Blame for access::Refused {
    fn fault(&self) -> Fault {
        Fault::Access
    }
}

impl Blame for data::Error {
    fn fault(&self) -> Fault {
        use data::Error as E;
        match self {
            E::ImageFolder { source, .. } | E::ReadImage { source, .. } | E::ReadFile { source, .. } => {
                of_path(source)
            }
            // Another machine's are as they were, perhaps.
            E::ImageChanged { .. } => Fault::Machine,
            E::NoImages { .. }
            | E::TooManyImages { .. }
            | E::UnusableFile { .. }
            | E::ImageTooLarge { .. }
            | E::UndecodableImage { .. }
            | E::TokenizerFile { .. }
            | E::Encode { .. }
            | E::Twins { .. }
            | E::Prompt { .. }
            | E::PlaceholderTaken { .. }
            | E::PlaceholderUnusable { .. }
            | E::InitializerTokens { .. }
            | E::NoBucket { .. }
            | E::Caption { .. }
            | E::Template { .. } => Fault::Job,
        }
    }
}

impl Blame for EngineError {
    fn fault(&self) -> Fault {
        match self {
            Self::OfJob(_) => Fault::Job,
            Self::OfMachine(_) => Fault::Machine,
            Self::OfNode(_)
            | Self::NothingLoaded
            | Self::Panicked(_)
            | Self::Held
            | Self::Gone
            | Self::Spawn(_) => Fault::Node,
            Self::Unwanted => Fault::Nobody,
        }
    }
}

impl Blame for ringtune_sources::Error {
    fn fault(&self) -> Fault {
        match self {
            Self::Refused { .. } | Self::Unsuitable { .. } => Fault::Job,
            // Not reached, not allowed to be asked, not what was announced, or no room for it here.
            Self::Variable { .. }
            | Self::Offline { .. }
            | Self::Unreachable { .. }
            | Self::NotReached { .. }
            | Self::Corrupt { .. }
            | Self::TooLarge { .. } => Fault::Machine,
            Self::Io { .. } | Self::Task(_) => Fault::Node,
            Self::Stopped { .. } => Fault::Nobody,
        }
    }
}

impl Blame for output::Error {
    fn fault(&self) -> Fault {
        use output::Error as E;
        match self {
            E::DiskFull { .. } | E::Write { .. } | E::ReadBack { .. } => Fault::Node,
            E::Shape { .. } | E::Format { .. } | E::NotFinite { .. } | E::Broken { .. } => Fault::Job,
        }
    }
}

impl Blame for train::Error {
    fn fault(&self) -> Fault {
        use train::Error as E;
        match self {
            E::LearningRateBelowEnd { .. }
            | E::TrainingSet { .. }
            | E::Prompt { .. }
            | E::NotFinite { .. }
            | E::Checkpoint { .. } => Fault::Job,
            // Another rank sent it.
            E::GradientLength { .. } => Fault::Link,
            // The disk lost it.
            E::Posterior { .. } => Fault::Node,
        }
    }

    /// Errors that follow from the job's own numbers.
    fn would_come_again(&self) -> bool {
        !matches!(self, Self::Posterior { .. })
    }
}

impl Blame for CaptionFileError {
    fn fault(&self) -> Fault {
        match self.problem {
            CaptionFileProblem::Unreadable(ref source) => of_path(source),
            CaptionFileProblem::Caption(_) | CaptionFileProblem::Wrong(_) => Fault::Job,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ringtune_shared::captions::CaptionError;

    use super::*;

    #[test]
    fn what_the_job_brings_is_the_jobs_fault_and_what_the_machine_lacks_the_nodes() {
        let name = || "a.png".to_owned();
        let file = || PathBuf::from("f");
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let caption = |problem| CaptionFileError { path: file(), problem };
        let job: [Box<dyn Blame>; 7] = [
            Box::new(data::Error::ImageTooLarge { name: name(), bytes: 2, allowed: 1 }),
            Box::new(data::Error::PlaceholderTaken { token: "cat".to_owned() }),
            Box::new(EngineError::OfJob("unet/config.json: no".into())),
            Box::new(ringtune_sources::Error::Unsuitable { place: name(), problem: "no unet".to_owned() }),
            Box::new(caption(CaptionError::Encoding.into())),
            Box::new(caption(CaptionFileProblem::Wrong("line 1: no caption".to_owned()))),
            Box::new(Refusal::of("train.resolution", "too small")),
        ];
        for error in job {
            assert_eq!(error.fault(), Fault::Job, "{error}");
        }
        let refused = access::Refused { field: "model.base".to_owned(), problem: "out of reach".to_owned() };
        assert_eq!(refused.fault(), Fault::Access);
        let machine: [Box<dyn Blame>; 3] = [
            Box::new(data::Error::ImageChanged { name: name() }),
            Box::new(EngineError::OfMachine("config.json: not there".into())),
            Box::new(ringtune_sources::Error::Unreachable { what: name(), problem: "no route".to_owned() }),
        ];
        for error in machine {
            assert_eq!(error.fault(), Fault::Machine, "{error}");
        }
        let node: [Box<dyn Blame>; 6] = [
            Box::new(output::Error::writing(&file(), full())),
            Box::new(data::Error::ReadImage { name: name(), source: full() }),
            Box::new(EngineError::Gone),
            Box::new(EngineError::OfNode("model.safetensors: cannot be read".into())),
            Box::new(EngineError::Panicked("can't allocate memory".to_owned())),
            Box::new(caption(full().into())),
        ];
        for error in node {
            assert_eq!(error.fault(), Fault::Node, "{error}");
        }
    }

    #[test]
    fn a_path_is_blamed_by_what_the_system_says_of_it() {
        let system = |code: Errno| io::Error::from(code);
        for code in [Errno::NAMETOOLONG, Errno::NOTDIR, Errno::LOOP, Errno::INVAL, Errno::ISDIR] {
            assert_eq!(of_path(&system(code)), Fault::Job, "{code}");
        }
        for code in [Errno::NOENT, Errno::ACCESS, Errno::PERM, Errno::STALE] {
            assert_eq!(of_path(&system(code)), Fault::Machine, "{code}");
        }
        for code in [Errno::IO, Errno::NOSPC, Errno::MFILE, Errno::NOMEM] {
            assert_eq!(of_path(&system(code)), Fault::Node, "{code}");
        }
        // In the words of `access`.
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::InvalidInput] {
            assert_eq!(of_path(&io::Error::new(kind, "a link leads out")), Fault::Job);
        }
    }
}

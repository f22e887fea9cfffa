//! Whose fault a failed rank is: what the coordinator decides by whether it is worth trying the job elsewhere.

use ringtune_shared::captions::{CaptionFileError, CaptionFileProblem};

use crate::{access, data, engine::EngineError, output, train};

/// Whether another worker might do better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The job would fail anywhere: its pictures, tokens, options or model.
    Job,
    /// This node or its network: no memory, no disk, nothing to be fetched, an engine that died.
    Node,
    /// The job's own newest checkpoint is gone or damaged: an older one will do.
    Checkpoint,
    /// The job asks for what this worker's settings keep from jobs.
    Access,
}

/// What can end a rank's work. Its text reaches the user as the job's reason, and names the field, the file or the call.
pub trait Blame: std::error::Error + Send + Sync + 'static {
    /// Of the job, where every worker would fail over the same content or option; of this node, where another one may
    /// do better.
    fn fault(&self) -> Fault;

    /// Whether a job that goes on from where it was would only come to it again: what it has is not worth keeping then.
    fn would_come_again(&self) -> bool {
        false
    }
}

/// What only a worker can see is wrong with the job.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Refusal {
    /// `section.key` of the job, or the file.
    pub field: String,
    /// What was given and what is allowed.
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

/// What one worker keeps from jobs another one may let them have: the job is worth another ring, and this worker is as good
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
            // A folder or disk of this machine: it may be there on the next one.
            E::ImageFolder { .. } | E::ReadImage { .. } | E::ImageChanged { .. } => Fault::Node,
            E::NoImages { .. }
            | E::TooManyImages { .. }
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
        if self.is_of_job() { Fault::Job } else { Fault::Node }
    }
}

impl Blame for ringtune_sources::Error {
    fn fault(&self) -> Fault {
        match self {
            Self::Refused { .. } | Self::Unsuitable { .. } => Fault::Job,
            // Not reached, not allowed to be asked, or no room for it here.
            _ => Fault::Node,
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
            // Another rank sent it; the disk lost it.
            E::GradientLength { .. } | E::Posterior { .. } => Fault::Node,
        }
    }

    /// All that follows from the job's own numbers.
    fn would_come_again(&self) -> bool {
        !matches!(self, Self::Posterior { .. })
    }
}

impl Blame for CaptionFileError {
    fn fault(&self) -> Fault {
        match self.problem {
            CaptionFileProblem::Unreadable(_) => Fault::Node,
            CaptionFileProblem::Caption(_) => Fault::Job,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io, path::PathBuf};

    use ringtune_shared::captions::CaptionError;

    use super::*;

    #[test]
    fn what_the_job_brings_is_the_jobs_fault_and_what_the_machine_lacks_the_nodes() {
        let name = || "a.png".to_owned();
        let file = || PathBuf::from("f");
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let caption = |problem| CaptionFileError { path: file(), problem };
        let job: [Box<dyn Blame>; 6] = [
            Box::new(data::Error::ImageTooLarge { name: name(), bytes: 2, allowed: 1 }),
            Box::new(data::Error::PlaceholderTaken { token: "cat".to_owned() }),
            Box::new(EngineError::OfJob("unet/config.json: no".into())),
            Box::new(ringtune_sources::Error::Unsuitable { place: name(), problem: "no unet".to_owned() }),
            Box::new(caption(CaptionError::Encoding.into())),
            Box::new(Refusal::of("train.resolution", "too small")),
        ];
        for error in job {
            assert_eq!(error.fault(), Fault::Job, "{error}");
        }
        let refused = access::Refused { field: "model.base".to_owned(), problem: "out of reach".to_owned() };
        assert_eq!(refused.fault(), Fault::Access);
        let node: [Box<dyn Blame>; 8] = [
            Box::new(data::Error::ImageChanged { name: name() }),
            Box::new(output::Error::writing(&file(), full())),
            Box::new(data::Error::ReadImage { name: name(), source: full() }),
            Box::new(EngineError::Gone),
            Box::new(EngineError::OfNode("model.safetensors: cannot be read".into())),
            Box::new(EngineError::Panicked("can't allocate memory".to_owned())),
            Box::new(ringtune_sources::Error::Unreachable { what: name(), problem: "no route".to_owned() }),
            Box::new(caption(full().into())),
        ];
        for error in node {
            assert_eq!(error.fault(), Fault::Node, "{error}");
        }
    }
}

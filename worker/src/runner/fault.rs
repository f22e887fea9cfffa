//! Whose fault a failed rank is: what the coordinator decides by whether it is worth trying the job elsewhere.

use ringtune_shared::captions::{CaptionFileError, CaptionFileProblem};
use tonic::Code;

use super::RankError;
use crate::{data, engine::EngineError, output, session::Fault, train};

impl RankError {
    /// Of the job, where every worker would fail over the same content or option; of this node, where another one may
    /// do better.
    pub(super) fn fault(&self) -> Fault {
        match self {
            Self::Data(error) => data_fault(error),
            Self::Engine(error) => engine_fault(error),
            Self::Source(error) => source_fault(error),
            Self::Train(error) => train_fault(error),
            Self::Output(error) => output_fault(error),
            Self::Caption(error) => caption_fault(error),
            Self::InField { source, .. } => source.fault(),
            Self::Refused { code, .. } => refusal_fault(*code),
            Self::Spec(_)
            | Self::Manifest(_)
            | Self::ContentUri(_)
            | Self::Initializer { .. }
            | Self::Field { .. }
            | Self::JobFile(_) => Fault::Job,
            Self::File(_)
            | Self::Ring(_)
            | Self::Disagreement { .. }
            | Self::Picture { .. }
            | Self::Io { .. }
            | Self::WrongContent { .. }
            | Self::Posterior(_)
            | Self::Task(_)
            | Self::Stopped => Fault::Node,
        }
    }
}

fn data_fault(error: &data::Error) -> Fault {
    use data::Error as E;
    match error {
        // A folder or disk of this machine: it may be there on the next one.
        E::ImageFolder { .. } | E::ReadImage { .. } => Fault::Node,
        E::NoImages { .. }
        | E::TooManyImages { .. }
        | E::ImageTooLarge { .. }
        | E::UndecodableImage { .. }
        | E::TokenizerFile { .. }
        | E::Encode { .. }
        | E::Prompt { .. }
        | E::PlaceholderTaken { .. }
        | E::PlaceholderUnusable { .. }
        | E::InitializerTokens { .. }
        | E::NoBucket { .. }
        | E::Caption { .. }
        | E::Template { .. } => Fault::Job,
    }
}

fn engine_fault(error: &EngineError) -> Fault {
    if error.is_of_job() { Fault::Job } else { Fault::Node }
}

fn source_fault(error: &ringtune_sources::Error) -> Fault {
    use ringtune_sources::Error as E;
    match error {
        E::Refused { .. } | E::Unsuitable { .. } => Fault::Job,
        // Not reached, not allowed to be asked, or no room for it here.
        _ => Fault::Node,
    }
}

fn train_fault(error: &train::Error) -> Fault {
    use train::Error as E;
    match error {
        E::LearningRateBelowEnd { .. }
        | E::TrainingSet { .. }
        | E::Prompt { .. }
        | E::NotFinite { .. }
        | E::Checkpoint { .. } => Fault::Job,
        // Another rank sent it; the disk lost it.
        E::GradientLength { .. } | E::Posterior { .. } => Fault::Node,
    }
}

fn output_fault(error: &output::Error) -> Fault {
    use output::Error as E;
    match error {
        E::DiskFull { .. } | E::Write { .. } | E::ReadBack { .. } => Fault::Node,
        E::Shape { .. } | E::Format { .. } | E::NotFinite { .. } => Fault::Job,
    }
}

fn caption_fault(error: &CaptionFileError) -> Fault {
    match error.problem {
        CaptionFileProblem::Unreadable(_) => Fault::Node,
        CaptionFileProblem::Caption(_) => Fault::Job,
    }
}

/// What the coordinator refuses is refused to every worker; what it could not do, or this worker may not, is not.
fn refusal_fault(code: Code) -> Fault {
    match code {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::DataLoss => Fault::Job,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::PermissionDenied
        | Code::Aborted
        | Code::Unimplemented
        | Code::Internal
        | Code::Unavailable
        | Code::Unauthenticated => Fault::Node,
    }
}

#[cfg(test)]
mod tests {
    use std::{io, path::PathBuf};

    use ringtune_shared::captions::CaptionError;

    use super::*;
    use crate::ring;

    fn io_error() -> io::Error {
        io::Error::from(io::ErrorKind::StorageFull)
    }

    #[test]
    fn what_the_job_brings_is_the_jobs_fault_and_what_the_machine_lacks_the_nodes() {
        let name = || "a.png".to_owned();
        let file = || PathBuf::from("f");
        let caption = |problem| CaptionFileError { path: file(), problem };
        let refused =
            |code| RankError::Refused { what: name(), code, message: "too many artifacts".to_owned() };
        let undecodable = data::Error::ImageTooLarge { name: name(), bytes: 2, allowed: 1 };
        let job = [
            RankError::InField { field: "data.images".to_owned(), source: Box::new(undecodable.into()) },
            data::Error::PlaceholderTaken { token: "cat".to_owned() }.into(),
            EngineError::OfJob("unet/config.json: no".into()).into(),
            ringtune_sources::Error::Unsuitable { place: name(), problem: "no unet".to_owned() }.into(),
            train::Error::NotFinite { step: 9, in_a_row: 10, loss: f32::NAN }.into(),
            caption(CaptionError::Encoding.into()).into(),
            refused(Code::ResourceExhausted),
            refused(Code::NotFound),
        ];
        for error in job {
            assert_eq!(error.fault(), Fault::Job, "{error}");
        }
        let node = [
            RankError::Io { path: file(), source: io_error() },
            output::Error::writing(&file(), io_error()).into(),
            data::Error::ReadImage { name: name(), source: io_error() }.into(),
            EngineError::Gone.into(),
            EngineError::Panicked("can't allocate memory".to_owned()).into(),
            ringtune_sources::Error::Unreachable { what: name(), problem: "no route".to_owned() }.into(),
            caption(io_error().into()).into(),
            ring::Error::Replaced.into(),
            refused(Code::Internal),
        ];
        for error in node {
            assert_eq!(error.fault(), Fault::Node, "{error}");
        }
    }
}

//! Where a rank writes what its steps are made of, for another implementation to compute again.

use std::path::Path;

use ringtune_shared::job::PathUse;

use crate::{
    access,
    fault::Refusal,
    output::TraceFolder,
    rank::{Error, Rank},
};

/// The job's field for traces.
const TRACE_DIR: &str = "debug.trace_dir";

/// The folder that a job names for them, checked; empty: none.
#[derive(Debug)]
pub(in crate::kinds) struct Tracing(String);

impl Tracing {
    /// Steps that are only computed again, for a proof, leave nothing.
    ///
    /// # Errors
    /// The worker's configuration does not let jobs write traces; the folder's path is relative.
    pub(in crate::kinds) fn of(rank: &Rank) -> Result<Self, Error> {
        let given =
            if rank.assignment.proof.is_some() { "" } else { &rank.assignment.spec.common.debug.trace_dir };
        let problem = |problem: &str| format!("{given:?}: {problem}");
        if !given.is_empty() && !rank.context.allow_trace_dir {
            let problem = problem(
                "this worker writes no traces unless debug.allow_trace_dir is set in its configuration",
            );
            return Err(access::Refused { field: TRACE_DIR.to_owned(), problem }.into());
        }
        if !given.is_empty() && !Path::new(given).is_absolute() {
            return Err(Refusal::of(TRACE_DIR, problem("it must be an absolute path")).into());
        }
        Ok(Self(given.to_owned()))
    }

    /// Makes it, if the job wants one. `vectors`: learned rows, of a job that learns some.
    ///
    /// # Errors
    /// It lies elsewhere than the worker lets jobs write, or cannot be made.
    pub(in crate::kinds) async fn create(
        self,
        rank: &Rank,
        vectors: usize,
    ) -> Result<Option<TraceFolder>, Error> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (access, given) = (rank.context.access.clone(), self.0);
        let create = move || {
            let place = access.place(PathUse::Trace, TRACE_DIR, &given)?;
            Ok::<_, Error>(TraceFolder::create(&place, vectors)?)
        };
        Ok(Some(ringtune_shared::tasks::spawn_blocking(create).await??))
    }
}

//! Calls that make jobs, as spans: what is traced of a job hangs below the call that made it.

use ringtune_shared::ids::JobId;
use ringtune_shared::trace::{TRACEPARENT, TraceContext};
use ringtune_traces::{Open, Tracer};
use tonic::Request;

/// The client's trace context. An unreadable one counts as none, as W3C Trace Context wants it.
pub(super) fn parent_of<T>(request: &Request<T>) -> Option<TraceContext> {
    request.metadata().get(TRACEPARENT)?.to_str().ok()?.parse().ok()
}

/// The call that makes a job: in the client's trace, or in one of its own where the settings want that.
pub(super) struct Making {
    /// What the job keeps. None: it is not traced.
    pub(super) trace: Option<TraceContext>,
    /// Until the call is answered.
    pub(super) span: Open,
}

impl Making {
    pub(super) fn begin(
        tracer: &Tracer,
        parent: Option<TraceContext>,
        job: JobId,
        name: &'static str,
    ) -> Self {
        // Where this coordinator sends no spans, the client and workers may.
        let trace = parent.filter(|parent| parent.sampled).or_else(|| match parent {
            None => tracer.root(),
            Some(_) => None,
        });
        let trace = trace.map(|trace| trace.of_job(job));
        let span = tracer.open(trace, parent.map(|parent| parent.span), name);
        Self { trace, span }
    }

    /// Which job it was in the end: another one, where the same request made one before.
    pub(super) fn done(mut self, job: JobId) {
        self.span.set("job", job.to_string());
    }

    /// It came to nothing.
    pub(super) fn failed(mut self) {
        self.span.fail();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_decides_whether_its_jobs_are_traced() {
        let job = JobId::new();
        let client = TraceContext::root();
        let of = |parent| Making::begin(&Tracer::off(), parent, job, "CreateJob");
        // It is passed on, though nothing is recorded here.
        assert_eq!(of(Some(client)).trace, Some(client.of_job(job)));
        assert_eq!(of(Some(client)).span.context(), None);
        assert_eq!(of(Some(TraceContext { sampled: false, ..client })).trace, None);
        assert_eq!(of(None).trace, None);
    }

    #[test]
    fn what_is_no_traceparent_is_passed_over() {
        let mut request = Request::new(());
        assert_eq!(parent_of(&request), None);
        request.metadata_mut().insert(TRACEPARENT, "00-nonsense".parse().unwrap());
        assert_eq!(parent_of(&request), None);
        let client = TraceContext::root();
        request.metadata_mut().insert(TRACEPARENT, client.to_string().parse().unwrap());
        assert_eq!(parent_of(&request), Some(client));
    }
}

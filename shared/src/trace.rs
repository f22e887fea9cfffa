//! Trace contexts, in the form of W3C Trace Context (`traceparent`).
//!
//! A trace is one job's way through the cluster. The ids of those spans that others hang below follow from the job and the
//! epoch, so that nobody has to be told them, and a restart finds them again.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::ids::{Epoch, JobId};

/// The name of the header, which is also that of the gRPC metadata.
pub const TRACEPARENT: &str = "traceparent";

/// A text that is no `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no traceparent of W3C Trace Context: 00-, 32 lower-case hex digits, -, 16 of them, - and 2, of which neither id is all zeros"
)]
pub struct TraceError;

/// The name of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

/// The name of a span within its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

impl SpanId {
    /// A fresh one.
    pub fn random() -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *Uuid::new_v4().as_bytes();
        Self([a, b, c, d, e, f, g, h])
    }

    /// Id of the span with this name and number of a job in this trace.
    fn derived(trace: TraceId, job: JobId, name: &str, number: u64) -> Self {
        let hash = Sha256::new()
            .chain_update(trace.0)
            .chain_update(job.to_string())
            .chain_update(name)
            .chain_update(number.to_be_bytes())
            .finalize();
        let mut id = [0; 8];
        id.iter_mut().zip(hash).for_each(|(to, from)| *to = from);
        Self(id)
    }
}

/// A span that others may hang below.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// Its trace.
    pub trace: TraceId,
    /// Itself.
    pub span: SpanId,
    /// Whether the trace is recorded at all.
    pub sampled: bool,
}

impl TraceContext {
    /// The first span of a new trace, which is recorded.
    pub fn root() -> Self {
        Self { trace: TraceId(*Uuid::new_v4().as_bytes()), span: SpanId::random(), sampled: true }
    }

    /// Another span of this trace.
    #[must_use]
    pub fn with_span(self, span: SpanId) -> Self {
        Self { span, ..self }
    }

    /// A fresh span of this trace.
    #[must_use]
    pub fn fresh(self) -> Self {
        self.with_span(SpanId::random())
    }

    /// The call that made the job.
    #[must_use]
    pub fn of_job(self, job: JobId) -> Self {
        self.with_span(SpanId::derived(self.trace, job, "job", 0))
    }

    /// The job's ring in that epoch.
    #[must_use]
    pub fn of_ring(self, job: JobId, epoch: Epoch) -> Self {
        self.with_span(SpanId::derived(self.trace, job, "ring", epoch.0))
    }

    /// Whether this trace is among that share of all traces: the same ones wherever it is asked, and those of a smaller
    /// share are among those of a larger one.
    pub fn is_within(&self, share: f64) -> bool {
        let [.., a, b, c, d, e, f, g] = self.trace.0;
        let place = u64::from_be_bytes([0, a, b, c, d, e, f, g]) as f64 / (1_u64 << 56) as f64;
        place < share
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (hex::encode(self.trace.0), hex::encode(self.span.0));
        write!(formatter, "00-{trace}-{span}-{:02x}", u8::from(self.sampled))
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TraceContext({self})")
    }
}

impl FromStr for TraceContext {
    type Err = TraceError;

    /// Of a version later than this one, what comes after its parts is skipped, as the specification wants it.
    fn from_str(text: &str) -> Result<Self, TraceError> {
        let mut parts = text.split('-');
        let mut part = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits).ok_or(TraceError)?;
            match part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
                true => hex::decode(part).map_err(|_| TraceError),
                false => Err(TraceError),
            }
        };
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let (trace, span) = (trace.try_into(), span.try_into());
        let (trace, span): ([u8; 16], [u8; 8]) =
            (trace.map_err(|_| TraceError)?, span.map_err(|_| TraceError)?);
        let more = parts.next().is_some();
        let wrong = match version.first() {
            Some(0) => more,
            Some(255) | None => true,
            Some(_) => false,
        };
        if wrong || trace == [0; 16] || span == [0; 8] {
            return Err(TraceError);
        }
        let sampled = flags.first().is_some_and(|flags| flags & 1 == 1);
        Ok(Self { trace: TraceId(trace), span: SpanId(span), sampled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_written_is_read_and_the_rest_refused() {
        let context: TraceContext = EXAMPLE.parse().unwrap();
        assert_eq!(context.to_string(), EXAMPLE);
        assert!(context.sampled);
        let root = TraceContext::root();
        assert_eq!(root.to_string().parse(), Ok(root));
        // A later version may say more, and flags that nobody knows yet are passed over.
        let later = EXAMPLE.replace("00-", "01-").replace("-01", "-fe-more");
        let later: TraceContext = later.replacen("fe-0af", "01-0af", 1).parse().unwrap();
        assert!(!later.sampled && later.trace == context.trace);
        let zeros = |digits: usize| "0".repeat(digits);
        for wrong in [
            String::new(),
            EXAMPLE.to_uppercase(),
            format!("{EXAMPLE}-more"),
            EXAMPLE.replace("00-", "ff-"),
            EXAMPLE.replace("-01", ""),
            EXAMPLE.replace("0af7651916cd43dd8448eb211c80319c", &zeros(32)),
            EXAMPLE.replace("b7ad6b7169203331", &zeros(16)),
            EXAMPLE.replace("b7ad6b7169203331", "b7ad6b716920333"),
            EXAMPLE.replace("b7ad", "b7aä"),
        ] {
            assert_eq!(wrong.parse::<TraceContext>(), Err(TraceError), "{wrong}");
        }
    }

    #[test]
    fn spans_of_a_job_have_the_same_ids_wherever_they_are_asked_for() {
        let context: TraceContext = EXAMPLE.parse().unwrap();
        let (job, other) = (JobId::new(), JobId::new());
        let elsewhere = context.fresh();
        assert_ne!(elsewhere.span, context.span);
        assert_eq!(elsewhere.of_ring(job, Epoch(3)), context.of_ring(job, Epoch(3)));
        let ids = [
            context.of_job(job),
            context.of_job(other),
            context.of_ring(job, Epoch(1)),
            context.of_ring(job, Epoch(2)),
            context.of_ring(other, Epoch(1)),
        ];
        for (index, id) in ids.iter().enumerate() {
            assert!(!ids[..index].contains(id), "{index}");
        }
    }

    #[test]
    fn a_share_of_the_traces_is_chosen_by_their_ids() {
        let traces: Vec<TraceContext> = (0..4000).map(|_| TraceContext::root()).collect();
        let within = |share| traces.iter().filter(|trace| trace.is_within(share)).count();
        assert_eq!((within(0.0), within(1.0)), (0, 4000));
        assert!((800..1200).contains(&within(0.25)), "{}", within(0.25));
        assert!(traces.iter().all(|trace| !trace.is_within(0.25) || trace.is_within(0.5)));
    }
}

//! Takes spans, and makes nobody wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use ringtune_shared::trace::{SpanId, TraceContext};
use tokio::sync::mpsc;

use crate::span::{Span, Value};

/// Spans that may wait for the collector; what comes then is lost.
pub(crate) const WAITING: usize = 4096;

/// Takes spans. All clones are one; the default takes none.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Arc<Queue>>);

#[derive(Debug)]
struct Queue {
    spans: mpsc::Sender<Span>,
    lost: Arc<AtomicU64>,
    ratio: f64,
}

impl Tracer {
    /// A tracer with its queue and its count of dropped spans.
    pub(crate) fn new(ratio: f64) -> (Self, mpsc::Receiver<Span>, Arc<AtomicU64>) {
        let (spans, receiver) = mpsc::channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        (Self(Some(Arc::new(Queue { spans, lost: lost.clone(), ratio }))), receiver, lost)
    }

    /// Takes none.
    pub fn off() -> Self {
        Self::default()
    }

    /// Whether spans of this trace are taken.
    pub fn takes(&self, context: &TraceContext) -> bool {
        self.0.as_ref().is_some_and(|queue| context.sampled && context.is_within(queue.ratio))
    }

    /// The first span of a new trace, unless no spans are sent, or not of this one.
    pub fn root(&self) -> Option<TraceContext> {
        Some(TraceContext::root()).filter(|root| self.takes(root))
    }

    /// Takes a span that is over.
    pub fn record(&self, span: Span) {
        let Some(queue) = self.0.as_ref().filter(|_| self.takes(&span.context)) else { return };
        if queue.spans.try_send(span).is_err() {
            queue.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Begins a span. `context`: its own. None, or that of a trace that is not taken: nothing is recorded.
    pub fn open(&self, context: Option<TraceContext>, parent: Option<SpanId>, name: &'static str) -> Open {
        let span = context.filter(|context| self.takes(context)).map(|context| {
            let start = SystemTime::now();
            Span { context, parent, name, start, end: start, attributes: Vec::new(), failed: false }
        });
        Open::new(self.clone(), span)
    }

    /// A child span that was measured: its start and duration. It is recorded when it is dropped.
    pub fn past_below(
        &self,
        parent: Option<TraceContext>,
        name: &'static str,
        measured: (SystemTime, Duration),
    ) -> Open {
        let mut open = self.open_below(parent, name);
        if let Some(span) = &mut open.span {
            span.start = measured.0;
        }
        open.took = Some(measured.1);
        open
    }

    /// Begins a child span with a fresh id.
    pub fn open_below(&self, parent: Option<TraceContext>, name: &'static str) -> Open {
        self.open(parent.map(TraceContext::fresh), parent.map(|parent| parent.span), name)
    }
}

/// A span that goes on until it is dropped.
#[derive(Debug)]
#[must_use = "it is over when it is dropped"]
pub struct Open {
    /// None if it is not recorded.
    span: Option<Span>,
    tracer: Tracer,
    begun: Instant,
    /// Its duration, if known already.
    took: Option<Duration>,
}

impl Open {
    fn new(tracer: Tracer, span: Option<Span>) -> Self {
        Self { span, tracer, begun: Instant::now(), took: None }
    }

    /// Context for child spans. None if it is not recorded.
    pub fn context(&self) -> Option<TraceContext> {
        self.span.as_ref().map(|span| span.context)
    }

    /// Sets an attribute.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(span) = &mut self.span {
            span.attributes.push((key, value.into()));
        }
    }

    /// Adds an attribute.
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.set(key, value);
        self
    }

    /// It does not do what it is for.
    pub fn fail(&mut self) {
        if let Some(span) = &mut self.span {
            span.failed = true;
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(mut span) = self.span.take() {
            // By the monotonic clock.
            span.end = span
                .start
                .checked_add(self.took.unwrap_or_else(|| self.begun.elapsed()))
                .unwrap_or(span.start);
            self.tracer.record(span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_loses_what_comes_and_counts_it() {
        let (tracer, mut spans, lost) = Tracer::new(1.0);
        let root = tracer.root();
        for _ in 0..WAITING + 3 {
            drop(tracer.open_below(root, "step"));
        }
        assert_eq!(lost.load(Ordering::Relaxed), 3);
        let first = spans.try_recv().unwrap();
        assert_eq!((first.parent, first.name), (root.map(|root| root.span), "step"));
        assert_ne!(Some(first.context), root);
        assert!(first.end >= first.start);
    }

    #[test]
    fn only_what_was_chosen_is_taken() {
        let root = TraceContext::root();
        assert!(!Tracer::off().takes(&root) && Tracer::off().root().is_none());
        let (none, _spans, _) = Tracer::new(0.0);
        assert!(!none.takes(&root) && none.root().is_none());
        assert_eq!(none.open_below(Some(root), "step").context(), None);
        let (all, mut spans, _) = Tracer::new(1.0);
        assert!(all.takes(&root));
        drop(all.open_below(Some(TraceContext { sampled: false, ..root }), "step"));
        drop(all.open_below(None, "step"));
        assert!(spans.try_recv().is_err());
    }
}

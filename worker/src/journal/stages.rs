//! The stages of a preparation, as spans: each lasts until the next one begins.

use ringtune_shared::trace::TraceContext;
use ringtune_traces::{Open, Tracer};

use crate::session::ProgressStage;

/// The stage that a rank is at.
#[derive(Debug, Default)]
pub(super) struct Stages {
    /// Parent span. None: not traced.
    whole: Option<TraceContext>,
    tracer: Tracer,
    now: Option<(ProgressStage, Open)>,
}

impl Stages {
    /// None has begun yet.
    pub(super) fn below(tracer: &Tracer, whole: Option<TraceContext>) -> Self {
        Self { whole, tracer: tracer.clone(), now: None }
    }

    /// The rank is at this one.
    pub(super) fn at(&mut self, stage: ProgressStage) {
        let same = self.now.as_ref().is_some_and(|(now, _)| *now == stage);
        if self.whole.is_some() && !same {
            // The one before is over first.
            self.now = None;
            self.now = Some((stage, self.tracer.open_below(self.whole, name(stage))));
        }
    }
}

fn name(stage: ProgressStage) -> &'static str {
    match stage {
        ProgressStage::Fetch => "fetch",
        ProgressStage::Download => "download",
        ProgressStage::Load => "load",
        ProgressStage::Encode => "encode",
        ProgressStage::Draw => "draw",
        ProgressStage::Write => "write",
    }
}

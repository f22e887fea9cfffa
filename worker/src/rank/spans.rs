//! Spans of a rank's work, below its ring's.

use std::time::{Duration, Instant, SystemTime};

use ringtune_traces::{Open, Tracer};

use super::Rank;

/// Number of a rank's first steps that are all traced.
const FIRST_STEPS: u32 = 20;
/// After them, one in so long.
const PAUSE: Duration = Duration::from_secs(1);

impl Rank {
    /// Begins a span of what this rank does in its ring.
    pub(crate) fn span(&self, name: &'static str) -> Open {
        let job = self.life.job;
        let ring = &self.assignment.ring;
        let parent = self.assignment.trace.map(|trace| trace.of_ring(job, ring.epoch));
        let mut span = self.context.tracer.open_below(parent, name);
        if span.context().is_some() {
            span.set("job", job.to_string());
            span.set("epoch", ring.epoch.0);
            if let Some((rank, member)) =
                self.assignment.rank.and_then(|rank| Some((rank, ring.members.get(rank)?)))
            {
                span.set("rank", rank);
                span.set("worker", member.worker.to_string());
            }
        }
        span
    }

    /// Span of a step, if it is traced.
    pub(crate) fn step_span(&self, step: u64, pace: &mut StepPace) -> Open {
        match self.assignment.trace.is_some() && pace.is_due(Instant::now()) {
            true => self.span("step").with("step", step),
            false => Tracer::off().open_below(None, "step"),
        }
    }

    /// Begins a child span.
    pub(crate) fn span_below(&self, whole: &Open, name: &'static str) -> Open {
        self.context.tracer.open_below(whole.context(), name)
    }

    /// A child span that was measured.
    pub(crate) fn past_span_below(
        &self,
        whole: &Open,
        name: &'static str,
        measured: (SystemTime, Duration),
    ) -> Open {
        self.context.tracer.past_below(whole.context(), name, measured)
    }
}

/// Chooses the traced steps: a job may have a million of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepPace {
    shown: u32,
    last: Option<Instant>,
}

impl StepPace {
    fn is_due(&mut self, now: Instant) -> bool {
        let paused = self.last.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE);
        let due = self.shown < FIRST_STEPS || paused;
        if due {
            self.shown = self.shown.saturating_add(1);
            self.last = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_steps_are_shown_and_then_one_a_second() {
        let (mut pace, began) = (StepPace::default(), Instant::now());
        // Ten steps a second, for ten seconds.
        let due = |step: &u32| pace.is_due(began + Duration::from_millis(100) * *step);
        let shown: Vec<u32> = (1..=100).filter(due).collect();
        let expected: Vec<u32> = (1..=20).chain([30, 40, 50, 60, 70, 80, 90, 100]).collect();
        assert_eq!(shown, expected);
    }
}

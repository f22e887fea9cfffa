//! Throttles a rank's progress reports.
//!
//! It may go through ten thousand pictures in a second. Nobody reads that many reports, and the coordinator serves a
//! thousand workers.

use std::time::{Duration, Instant};

use crate::session::Progress;

/// Between two reports of one stage.
const PAUSE: Duration = Duration::from_secs(1);

/// The last report that was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    last: Option<(Progress, Instant)>,
}

impl Pace {
    /// Whether this is to be sent: the beginning of a stage, its end, and in between one report a second.
    pub(super) fn is_due(&mut self, progress: Progress, now: Instant) -> bool {
        let due = self.last.is_none_or(|(last, at)| {
            last.stage != progress.stage
                || (progress.done >= progress.total && progress != last)
                || now.saturating_duration_since(at) >= PAUSE
        });
        if due {
            self.last = Some((progress, now));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::ProgressStage;

    #[test]
    fn a_stage_is_told_at_its_beginning_its_end_and_once_a_second() {
        let (mut pace, began) = (Pace::default(), Instant::now());
        let mut told = |stage, total: u64, each: Duration| {
            let due = |done: &u64| {
                let now = began + each * u32::try_from(*done).unwrap();
                pace.is_due(Progress { stage, done: *done, total }, now)
            };
            (0..=total).filter(due).collect::<Vec<_>>()
        };
        // A thousand pictures in two and a half seconds, then none at all, then as many, each slow.
        assert_eq!(told(ProgressStage::Fetch, 1000, Duration::from_micros(2500)), [0, 400, 800, 1000]);
        assert_eq!(told(ProgressStage::Load, 0, PAUSE), [0]);
        assert_eq!(told(ProgressStage::Encode, 3, PAUSE * 2), [0, 1, 2, 3]);
        // The end is told once, however often it is said.
        let end = Progress { stage: ProgressStage::Encode, done: 3, total: 3 };
        assert!(!pace.is_due(end, began + PAUSE * 6));
    }
}

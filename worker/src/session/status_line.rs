//! The worker's status line for its service manager.

use ringtune_shared::ids::JobId;

use super::types::RankEvent;

/// Facts of the status line besides the session's state.
#[derive(Debug, Default)]
pub(super) struct StatusLine {
    /// Why there is no session; None: there was none yet, or there is one.
    pub(super) away: Option<String>,
    job: Option<JobId>,
    step: u64,
    /// 0: its job has no steps.
    last_step: u64,
}

impl StatusLine {
    /// Takes note that a rank's work begins; `last_step`: of its job, 0 where that has no steps.
    pub(super) fn begins(&mut self, job: JobId, last_step: u64) {
        (self.job, self.step, self.last_step) = (Some(job), 0, last_step);
    }

    /// Takes note of a rank's event.
    pub(super) fn heard(&mut self, job: JobId, event: &RankEvent) {
        if self.job != Some(job) {
            return;
        }
        match event {
            RankEvent::Step(step) => self.step = step.step,
            RankEvent::Entered { step, .. } | RankEvent::Waiting { step, .. } => self.step = *step,
            _ => {}
        }
    }

    /// `running`: the job of the rank whose work runs, and its place in its ring.
    pub(super) fn line(
        &self,
        running: Option<(JobId, Option<usize>)>,
        connected: bool,
        draining: bool,
    ) -> String {
        let does = running.map(|(job, place)| {
            let place = place.map_or_else(|| "a rank".to_owned(), |place| format!("rank {place}"));
            let step = match self.last_step {
                0 => String::new(),
                last if self.step > 0 => format!(", step {}/{last}", self.step),
                _ => ", preparing".to_owned(),
            };
            format!("{place} of job {job}{step}")
        });
        let link = match (&self.away, connected) {
            (_, true) => None,
            (Some(reason), false) => Some(format!("the coordinator cannot be reached: {reason}")),
            (None, false) => Some("looks for the coordinator".to_owned()),
        };
        let ending = draining.then(|| "leaves its ring to end".to_owned());
        let parts: Vec<String> = [does, link, ending].into_iter().flatten().collect();
        if parts.is_empty() { "idle, connected".to_owned() } else { parts.join("; ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::types::StepSummary;

    #[test]
    fn the_line_says_what_the_worker_does_and_what_keeps_it_from_it() {
        let job: JobId = "0190b5a0-0000-7000-8000-000000000001".parse().unwrap();
        let mut status_line = StatusLine::default();
        assert_eq!(status_line.line(None, false, false), "looks for the coordinator");
        assert_eq!(status_line.line(None, true, false), "idle, connected");
        status_line.begins(job, 300);
        let running = Some((job, Some(1)));
        assert_eq!(status_line.line(running, true, false), format!("rank 1 of job {job}, preparing"));
        status_line.heard(job, &RankEvent::Step(StepSummary::example(120)));
        assert_eq!(status_line.line(running, true, false), format!("rank 1 of job {job}, step 120/300"));
        status_line.away = Some("refused".to_owned());
        assert_eq!(
            status_line.line(running, false, true),
            format!(
                "rank 1 of job {job}, step 120/300; the coordinator cannot be reached: refused; leaves its ring to end"
            )
        );
        // A job that draws has no steps, and what another one said does not count.
        status_line.begins(job, 0);
        status_line.heard(JobId::new(), &RankEvent::Step(StepSummary::example(7)));
        assert_eq!(status_line.line(Some((job, None)), true, false), format!("a rank of job {job}"));
    }
}

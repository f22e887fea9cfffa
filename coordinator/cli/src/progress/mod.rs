//! A job's progress, from its events. Pure: no clock, no terminal.

mod display;
mod ranks;
mod text;

use std::collections::{BTreeMap, VecDeque};

use prost_types::Timestamp;
use ringtune_proto::{
    convert::{job_state_name, log_level_name, progress_stage_name},
    v1::{self, LogLevel, job_event::Event},
};

pub use display::Display;
pub use ranks::timing_text;

use ranks::{shares_text, straggler_text};
use text::{duration_text, rate_text};

/// Steps that the shown speed is an average of.
const STEPS_AVERAGED: usize = 20;
/// Plain lines: about this many a job, and one after this many seconds at the latest.
const LINES_PER_JOB: u64 = 20;
const SECONDS_PER_LINE: i64 = 10;

/// What an event means to somebody who looks on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// Something worth a line of its own.
    Remark(String),
    /// The ranks prepare.
    Preparing {
        /// Where each of them is.
        text: String,
        /// A rank has come to another stage.
        new_stage: bool,
    },
    /// A step was done; `due` when a plain line should say so.
    Step {
        /// Enough has happened since the last plain line.
        due: bool,
    },
}

/// How far a job is.
#[derive(Debug, Clone, Default)]
pub struct JobProgress {
    total_steps: u64,
    step: u64,
    loss: Option<f64>,
    validation_loss: Option<f64>,
    recent_step_seconds: VecDeque<f64>,
    stages: BTreeMap<i32, Stage>,
    last_line: Option<LastLine>,
    straggler: Option<i32>,
    /// What of a step the ranks exchange and wait, as far as they say it.
    shares: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct LastLine {
    step: u64,
    second: i64,
}

impl JobProgress {
    /// A job of that many steps of which nothing is known yet.
    pub fn new(total_steps: u64) -> Self {
        Self { total_steps, ..Self::default() }
    }

    /// The last step done; 0 before the first.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The steps that the job has in all.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// Takes the next event in. None when there is nothing to show.
    pub fn apply(&mut self, event: &v1::JobEvent) -> Option<Update> {
        match event.event.as_ref()? {
            Event::StateChange(change) => {
                let mut text = job_state_name(change.to()).to_lowercase();
                if !change.reason.is_empty() {
                    text = format!("{text}: {}", change.reason);
                }
                Some(Update::Remark(text))
            }
            Event::Step(step) => Some(self.apply_step(step, event.time.as_ref())),
            Event::Artifact(artifact) => {
                Some(Update::Remark(format!("kept {} ({} bytes)", artifact.name, artifact.size)))
            }
            Event::Log(line) => {
                let who = line.rank.map_or_else(|| "coordinator".to_owned(), |rank| format!("rank {rank}"));
                let level = match line.level() {
                    LogLevel::Info => String::new(),
                    _ => format!("{}: ", log_level_name(line.level)),
                };
                Some(Update::Remark(format!("{who}: {level}{}", line.message)))
            }
        }
    }

    /// Loss, speed, time left, and what the ranks do besides computing, in one line without the step count.
    pub fn numbers(&self) -> String {
        let mut parts = Vec::new();
        if let Some(loss) = self.loss {
            parts.push(format!("loss {loss:.4}"));
        }
        if let Some(loss) = self.validation_loss {
            parts.push(format!("validation {loss:.4}"));
        }
        if let Some(seconds) = self.seconds_per_step() {
            parts.push(rate_text(seconds));
            let left = self.total_steps.saturating_sub(self.step);
            parts.push(format!("ETA {}", duration_text(seconds * left as f64)));
        }
        parts.extend(self.shares.clone());
        parts.join("  ")
    }

    /// The line of a step for terminals without a bar, and for log files.
    pub fn line(&self) -> String {
        format!("step {}/{}  {}", self.step, self.total_steps, self.numbers())
    }

    fn seconds_per_step(&self) -> Option<f64> {
        let count = self.recent_step_seconds.len();
        (count > 0).then(|| self.recent_step_seconds.iter().sum::<f64>() / count as f64)
    }

    fn apply_step(&mut self, step: &v1::StepReport, time: Option<&Timestamp>) -> Update {
        self.step = u64::try_from(step.step).unwrap_or(0);
        if !step.skipped {
            self.loss = Some(step.loss);
        }
        if step.validation_loss.is_some() {
            self.validation_loss = step.validation_loss;
        }
        if step.step_seconds.is_finite() && step.step_seconds >= 0.0 {
            self.recent_step_seconds.push_back(step.step_seconds);
        }
        if self.recent_step_seconds.len() > STEPS_AVERAGED {
            self.recent_step_seconds.pop_front();
        }
        let second = time.map_or(0, |time| time.seconds);
        let every = (self.total_steps / LINES_PER_JOB).max(1);
        let due = self.step >= self.total_steps
            || self.last_line.is_none_or(|last| {
                self.step / every > last.step / every || second - last.second >= SECONDS_PER_LINE
            });
        if due {
            self.last_line = Some(LastLine { step: self.step, second });
        }
        Update::Step { due }
    }

    /// Takes in what a step takes on each rank. None where the others wait for the same rank as before, or for none.
    pub fn apply_timings(&mut self, ranks: &[v1::RankTiming]) -> Option<Update> {
        self.shares = shares_text(ranks);
        let straggler = ranks.iter().find(|rank| rank.straggler).map(|rank| rank.rank);
        let before = std::mem::replace(&mut self.straggler, straggler);
        if straggler == before {
            return None;
        }
        straggler_text(ranks).map(Update::Remark)
    }

    /// Takes in how far some ranks are. None when there is nothing to show.
    pub fn apply_ranks(&mut self, ranks: &[v1::RankProgress]) -> Option<Update> {
        let (mut changed, mut new_stage, mut drawing) = (false, false, false);
        for progress in ranks {
            let now = Stage {
                name: progress_stage_name(progress.stage),
                done: progress.done,
                total: progress.total,
            };
            let before = self.stages.insert(progress.rank, now.clone());
            changed |= before.as_ref() != Some(&now);
            new_stage |= before.is_none_or(|before| before.name != now.name);
            drawing = matches!(now.name, "draw" | "write");
        }
        if !changed {
            return None;
        }
        let ranks: Vec<String> =
            self.stages.iter().map(|(rank, stage)| format!("rank {rank} {}", stage.text())).collect();
        let ranks = ranks.join(", ");
        Some(Update::Preparing {
            text: if drawing { ranks } else { format!("preparing: {ranks}") },
            new_stage,
        })
    }
}

/// What a rank does before step 1, and how far it is with that.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stage {
    name: &'static str,
    done: i64,
    total: i64,
}

impl Stage {
    fn text(&self) -> String {
        if self.name == "download" && self.done < self.total {
            let [done, total] = [self.done, self.total].map(|bytes| bytes as f64 / 1e6);
            format!("download {done:.1}/{total:.1} MB")
        } else if self.done < self.total {
            format!("{} {}/{}", self.name, self.done, self.total)
        } else {
            self.name.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use ringtune_proto::v1::ProgressStage;

    use super::*;

    fn step(number: i64, second: i64) -> v1::JobEvent {
        v1::JobEvent {
            time: Some(Timestamp { seconds: second, nanos: 0 }),
            event: Some(Event::Step(v1::StepReport {
                step: number,
                loss: 0.5,
                step_seconds: 0.25,
                ..v1::StepReport::default()
            })),
            ..v1::JobEvent::default()
        }
    }

    #[test]
    fn a_straggler_is_told_once() {
        let mut progress = JobProgress::new(300);
        let ring = |straggler| {
            [0.4, 0.25].map(|seconds| v1::RankTiming {
                rank: i32::from(seconds < 0.3),
                compute_seconds: seconds,
                straggler: straggler && seconds > 0.3,
                slowdown: if straggler && seconds > 0.3 { 1.55 } else { 0.0 },
                ..v1::RankTiming::default()
            })
        };
        let mut told = |ranks: &[v1::RankTiming]| progress.apply_timings(ranks);
        let text = "rank 0 computes 1.6 times as long as the others: they wait for it";
        assert_eq!(told(&ring(false)), None);
        assert_eq!(told(&ring(true)), Some(Update::Remark(text.to_owned())));
        assert_eq!((told(&ring(true)), told(&ring(false)), told(&[])), (None, None, None));
        assert!(told(&ring(true)).is_some());
    }

    #[test]
    fn a_line_is_due_at_the_first_step_the_last_and_each_twentieth_of_the_job() {
        let mut progress = JobProgress::new(300);
        let due: Vec<i64> =
            (1..=300).filter(|s| progress.apply(&step(*s, 0)) == Some(Update::Step { due: true })).collect();
        assert_eq!(due.len(), 21);
        assert_eq!((due[0], due[1], due[20]), (1, 15, 300));
    }

    #[test]
    fn slow_steps_are_reported_by_time() {
        let mut progress = JobProgress::new(100_000);
        let due: Vec<i64> = (1..=6)
            .filter(|s| progress.apply(&step(*s, *s * 4)) == Some(Update::Step { due: true }))
            .collect();
        assert_eq!(due, [1, 4]);
    }

    #[test]
    fn the_time_left_follows_from_the_recent_steps() {
        let mut progress = JobProgress::new(41);
        progress.apply(&step(1, 0));
        assert_eq!(progress.line(), "step 1/41  loss 0.5000  4.0 steps/s  ETA 0:10");
        let rank = v1::RankTiming { compute_seconds: 0.9, wait_seconds: 0.1, ..v1::RankTiming::default() };
        progress.apply_timings(&[rank, rank]);
        assert!(progress.line().ends_with("ETA 0:10  exchange 0 %  wait 10 %"), "{}", progress.line());
        progress.apply_timings(&[]);
        assert!(progress.line().ends_with("ETA 0:10"), "{}", progress.line());
    }

    #[test]
    fn a_validation_loss_is_shown_until_the_next_one() {
        let mut progress = JobProgress::new(41);
        let mut judged = step(1, 0);
        if let Some(Event::Step(report)) = &mut judged.event {
            report.validation_loss = Some(0.25);
        }
        progress.apply(&judged);
        progress.apply(&step(2, 0));
        assert!(
            progress.line().starts_with("step 2/41  loss 0.5000  validation 0.2500  4.0"),
            "{}",
            progress.line()
        );
    }

    #[test]
    fn a_skipped_step_keeps_the_last_loss() {
        let mut progress = JobProgress::new(2);
        progress.apply(&step(1, 0));
        let mut skipped = step(2, 0);
        if let Some(Event::Step(report)) = &mut skipped.event {
            report.skipped = true;
            report.loss = f64::NAN;
        }
        progress.apply(&skipped);
        assert!(progress.line().starts_with("step 2/2  loss 0.5000"), "{}", progress.line());
    }

    #[test]
    fn preparation_is_shown_when_it_changes() {
        let mut progress = JobProgress::new(1);
        let shown = |text: &str, new_stage| Some(Update::Preparing { text: text.to_owned(), new_stage });
        let report = |rank, stage: ProgressStage, done, total| v1::RankProgress {
            rank,
            stage: stage.into(),
            done,
            total,
        };
        let mut told = |ranks: &[v1::RankProgress]| progress.apply_ranks(ranks);
        let first = [report(1, ProgressStage::Encode, 1, 6)];
        assert_eq!(told(&first), shown("preparing: rank 1 encode 1/6", true));
        assert_eq!(told(&first), None);
        assert_eq!(told(&[report(1, ProgressStage::Encode, 6, 6)]), shown("preparing: rank 1 encode", false));
        let download = [report(1, ProgressStage::Download, 1_250_000, 17_000_000)];
        assert_eq!(told(&download), shown("preparing: rank 1 download 1.2/17.0 MB", true));
        let both = [report(0, ProgressStage::Load, 0, 0), report(1, ProgressStage::Encode, 6, 6)];
        assert_eq!(told(&both), shown("preparing: rank 0 load, rank 1 encode", true));
        assert_eq!(
            told(&[report(0, ProgressStage::Draw, 1, 2)]),
            shown("rank 0 draw 1/2, rank 1 encode", true)
        );
    }
}

//! Measures the cost of a fault by states, reason codes, phases and epochs, not by words.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::{
    sight::Sight,
    story::{self, Seen},
};

/// Cost of a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// From the first fault to the first sign of it in the job.
    pub detect: Option<Duration>,
    /// From that sign to the first step of a newer ring.
    pub resume: Option<Duration>,
    /// Steps that were stored and done again.
    pub steps_lost: i64,
}

/// Measures the cost of a fault at `since`, when the newest ring's epoch was `epoch`.
///
/// # Errors
/// A newer ring did steps, and its rank 0 never said where it began: whether any was lost is not known then.
pub fn measure(events: &[Seen], sights: &[Sight], since: Instant, epoch: u64) -> Result<Measured> {
    let sign = sights.iter().find(|sight| sight.at >= since && sight.tells_of_a_loss(epoch));
    let mut newer = events.iter().filter(|seen| seen.at >= since);
    let newer = newer.find(|seen| story::step(seen).is_some_and(|step| step.epoch > epoch));
    // Between two looks at the job both may come.
    let detected = [sign.map(|sight| sight.at), newer.map(|seen| seen.at)].into_iter().flatten().min();
    let steps_lost = steps_done_again(events, since, epoch)?;
    Ok(Measured {
        detect: detected.map(|at| at.duration_since(since)),
        resume: newer.zip(detected).map(|(seen, detected)| seen.at.duration_since(detected)),
        steps_lost,
    })
}

/// A step that is stored is not stored again, so it is rank 0 that says where its ring begins: "resumed after step N; …", or
/// "training: N steps" from the first one on.
fn steps_done_again(events: &[Seen], since: Instant, epoch: u64) -> Result<i64> {
    let (mut lost, mut newest, mut beginnings, mut newest_epoch) = (0, 0, 0, epoch);
    for seen in events {
        let later = seen.at >= since;
        if let Some(step) = story::step(seen) {
            newest = newest.max(step.step);
            if later && step.epoch > newest_epoch {
                newest_epoch = step.epoch;
                Some(())
                    .filter(|()| beginnings > 0)
                    .with_context(|| format!("nobody said where the ring of epoch {newest_epoch} began"))?;
                beginnings = 0;
            }
        }
        if later && let Some(begins_after) = beginning(seen) {
            lost += (newest - begins_after).max(0);
            beginnings += 1;
        }
    }
    Ok(lost)
}

/// After which step a ring begins, if this says so.
fn beginning(seen: &Seen) -> Option<i64> {
    let said = story::line(seen).filter(|line| line.rank == Some(0))?;
    match said.message.strip_prefix("resumed after step ") {
        Some(rest) => rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok(),
        None => said.message.starts_with("training: ").then_some(0),
    }
}

#[cfg(test)]
mod tests {
    use ringtune_proto::v1::{self, JobReason, JobState, job_event::Event};

    use super::*;

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn told(start: Instant) -> Vec<Seen> {
        let seen = |at, event| Seen { at: start + milliseconds(at), event };
        let step = |step, epoch| Event::Step(v1::StepReport { step, epoch, ..Default::default() });
        let said = |rank, text: &str| {
            Event::Log(v1::LogLine { message: text.to_owned(), rank, ..Default::default() })
        };
        let log = |text: &str| said(Some(0), text);
        vec![
            seen(0, log("training: 60 steps")),
            seen(100, step(1, 1)),
            seen(200, step(2, 1)),
            seen(300, step(3, 1)),
            seen(500, said(None, "rank 1 was lost, gone, broken and away")),
            seen(1000, said(Some(1), "resumed after step 2; training: steps 3 to 60")),
            seen(1000, log("resumed after step 2; training: steps 3 to 60")),
            seen(1200, step(4, 2)),
        ]
    }

    fn sight(at: Instant, reason: JobReason, epoch: u64) -> Sight {
        Sight { at, state: JobState::Running, reason, epoch, member_is_out: false }
    }

    #[test]
    fn the_first_sign_the_first_step_and_the_steps_done_again_are_measured() {
        let start = Instant::now();
        let sights =
            [(0, JobReason::Training, 1), (900, JobReason::Reforming, 2), (1200, JobReason::Training, 2)];
        let sights = sights.map(|(at, reason, epoch)| sight(start + milliseconds(at), reason, epoch));
        let measured = measure(&told(start), &sights, start + milliseconds(400), 1).unwrap();
        let wanted =
            Measured { detect: Some(milliseconds(500)), resume: Some(milliseconds(300)), steps_lost: 1 };
        assert_eq!(measured, wanted);
    }

    #[test]
    fn what_was_before_the_fault_and_words_alone_do_not_count() {
        let start = Instant::now();
        let sights = [sight(start, JobReason::Training, 2)];
        let measured = measure(&told(start), &sights, start + milliseconds(400), 2).unwrap();
        assert_eq!(measured, Measured { steps_lost: 1, ..Measured::default() });
        assert_eq!(
            measure(&told(start), &sights, start + milliseconds(1300), 2).unwrap(),
            Measured::default()
        );
    }

    #[test]
    fn a_ring_of_which_nobody_says_where_it_began_is_an_error() {
        let start = Instant::now();
        let mut events = told(start);
        events.retain(|seen| story::line(seen).is_none());
        let error = measure(&events, &[], start + milliseconds(400), 1).unwrap_err().to_string();
        assert!(error.contains("epoch 2"), "{error}");
    }
}

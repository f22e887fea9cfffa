//! Verdict on a row.

use std::time::Duration;

use anyhow::{Result, ensure};
use ringtune_proto::v1::{self, JobState};

use super::{
    clean::Results,
    measure::Measured,
    row::{Learns, Row},
    story::{self, Seen},
};

/// Holds a finished job against the run without faults.
pub(super) fn judge(
    row: &Row,
    job: &v1::Job,
    events: &[Seen],
    results: &Results,
    clean: &Results,
) -> Result<()> {
    let all: Vec<i64> = (1..=row.steps).collect();
    succeeded(job)?;
    ensure!(job.step == row.steps, "it has done {} of {} steps", job.step, row.steps);
    let told: Vec<i64> = events.iter().filter_map(|seen| story::step(seen).map(|step| step.step)).collect();
    ensure!(told == all, "the steps of the events are {told:?}");
    ensure!(results.listed_steps == all, "ListSteps has {:?}", results.listed_steps);
    ensure!(results.measured_steps == all, "metrics.csv has {:?}", results.measured_steps);
    ensure!(results.learned == clean.learned, "it learned something else than without faults");
    for (name, hash) in &results.checkpoints {
        // What is kept of several may differ: one that was damaged is taken off the job.
        let as_without = clean.checkpoints.get(name).is_none_or(|wanted| wanted == hash);
        ensure!(as_without, "{name} is another one than without faults");
    }
    if row.keeps_checkpoints {
        let (found, wanted) = (results.checkpoints.keys(), clean.checkpoints.keys());
        ensure!(found.clone().eq(wanted.clone()), "its checkpoints are {found:?} instead of {wanted:?}");
    }
    if row.one_ring {
        let epochs = events.iter().filter_map(|seen| story::step(seen).map(|step| step.epoch));
        let newest = epochs.max().unwrap_or_default();
        ensure!(newest <= 1, "the ring changed, although nothing of it was lost: epoch {newest}");
    }
    for (step, (state, wanted)) in (1..).zip(results.states.iter().zip(&clean.states)) {
        // The engine's state is large: it is not hashed after each step.
        ensure!(row.learns != Learns::Word || !state.is_empty(), "step {step} has no hash of its state");
        ensure!(state == wanted, "after step {step} the state is another one than without faults");
    }
    Ok(())
}

/// Checks that no loss is reported if nothing was lost.
pub(super) fn needless(row: &Row, measured: Measured) -> Result<()> {
    let none = measured.detect.is_none() || !row.one_ring;
    ensure!(none, "a loss was seen although there was none: {measured:?}");
    Ok(())
}

/// It went on in time.
pub(super) fn in_time(row: &Row, measured: Measured) -> Result<()> {
    let Some(most) = row.within.map(Duration::from_secs) else { return Ok(()) };
    let took = measured.detect.zip(measured.resume).map(|(detect, resume)| detect + resume);
    ensure!(took.is_some_and(|took| took <= most), "it did not go on within {most:?}: {measured:?}");
    Ok(())
}

/// The job has to have succeeded.
pub(super) fn succeeded(job: &v1::Job) -> Result<()> {
    ensure!(job.state() == JobState::Succeeded, "the job is {:?}: {}", job.state(), job.state_reason);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Instant};

    use ringtune_proto::v1::job_event::Event;

    use super::*;

    fn results() -> Results {
        Results {
            learned: "e".to_owned(),
            states: ["a", "b"].map(str::to_owned).to_vec(),
            measured_steps: vec![1, 2],
            listed_steps: vec![1, 2],
            checkpoints: BTreeMap::from([("checkpoint-2.safetensors".to_owned(), "c".to_owned())]),
        }
    }

    fn problem(change: impl Fn(&mut v1::Job, &mut Vec<Seen>, &mut Results)) -> String {
        let mut job = v1::Job { step: 2, ..Default::default() };
        job.set_state(JobState::Succeeded);
        let seen = |step| Seen {
            at: Instant::now(),
            event: Event::Step(v1::StepReport { step, epoch: 1, ..Default::default() }),
        };
        let (mut events, mut found) = (vec![seen(1), seen(2)], results());
        change(&mut job, &mut events, &mut found);
        let row = Row { keeps_checkpoints: true, ..Row::new("row", 2).steps(2).one_ring() };
        judge(&row, &job, &events, &found, &results())
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn a_ring_that_lost_nothing_shows_no_loss() {
        let found = |detect: Option<u64>| Measured {
            detect: detect.map(Duration::from_millis),
            ..Measured::default()
        };
        let row = Row::new("row", 2);
        assert!(needless(&row, found(Some(1))).is_ok() && needless(&row, found(None)).is_ok());
        let row = row.one_ring();
        assert!(needless(&row, found(Some(1))).is_err() && needless(&row, found(None)).is_ok());
    }

    #[test]
    fn what_equals_the_run_without_faults_is_accepted() {
        assert_eq!(problem(|_, _, _| ()), "");
    }

    #[test]
    fn each_difference_is_named() {
        assert!(problem(|job, _, _| job.set_state(JobState::Failed)).contains("the job is Failed"));
        assert!(problem(|job, _, _| job.step = 1).contains("1 of 2 steps"));
        assert!(problem(|_, events, _| events.truncate(1)).contains("of the events are [1]"));
        assert!(problem(|_, _, found| found.listed_steps.push(2)).contains("ListSteps has [1, 2, 2]"));
        assert!(problem(|_, _, found| found.measured_steps = vec![2]).contains("metrics.csv has [2]"));
        assert!(problem(|_, _, found| found.learned.push('x')).contains("something else"));
        assert!(problem(|_, _, found| found.states[1].push('x')).contains("after step 2"));
        assert!(problem(|_, _, found| found.states[0].clear()).contains("step 1 has no hash"));
        let other = |found: &mut Results| {
            found.checkpoints.values_mut().for_each(|hash| hash.push('x'));
        };
        assert!(problem(|_, _, found| other(found)).contains("checkpoint-2.safetensors is another one"));
        assert!(problem(|_, _, found| found.checkpoints.clear()).contains("its checkpoints are []"));
        let changed = |_: &mut v1::Job, events: &mut Vec<Seen>, _: &mut Results| {
            if let Event::Step(step) = &mut events[1].event {
                step.epoch = 2;
            }
        };
        assert!(problem(changed).contains("the ring changed"));
    }
}

//! `ringtune watch`: one job with its progress, or many, a line for what happens to each.

use std::collections::HashMap;

use ringtune_proto::{
    convert::{is_terminal, job_state_name},
    v1::{self, JobState, job_event::Event},
};
use uuid::Uuid;

use super::{follow::follow, plural, reach::client_of, resolve, title};
use crate::{
    arguments::WatchArguments,
    client::{Client, ManyNews},
    error::Error,
    interrupt::Interrupts,
    objects::{EventObject, JobObject},
    output::{Output, remark},
    progress::{JobProgress, Update},
    references::short_id,
};

/// Follows one job until it ends, several until all of them have, or all jobs until Ctrl-C.
pub(super) async fn watch(arguments: WatchArguments, interrupts: &Interrupts) -> Result<(), Error> {
    let output = Output::new(arguments.ask.output.output);
    let client = client_of(&arguments.ask.coordinator).await?;
    let jobs = resolve::jobs(&client, &arguments.jobs).await?;
    if let [job] = jobs.as_slice() {
        let job = client.get_job(*job).await?;
        return follow(&client, &job, output, interrupts).await;
    }
    watch_to_the_end(&client, &jobs, arguments.all, output, interrupts).await?.outcome()
}

/// Follows jobs until all of them have ended; none: all jobs until Ctrl-C. `all`: that is what Ctrl-C is for.
pub(super) async fn watch_to_the_end(
    client: &Client,
    jobs: &[Uuid],
    all: bool,
    output: Output,
    interrupts: &Interrupts,
) -> Result<Jobs, Error> {
    let mut watch = client.watch_many(jobs);
    let mut jobs = Jobs::default();
    loop {
        let news = tokio::select! {
            biased;
            news = watch.next() => news?,
            // There is no other end of watching all jobs.
            () = interrupts.first(), if all => return Ok(jobs),
            () = interrupts.first() => {
                return Err(Error::Detached("stopped watching; the jobs go on".to_owned()));
            }
        };
        match news {
            Some(ManyNews::Job(job)) => {
                output.json(&JobObject::from(job.as_ref()))?;
                remark(&jobs.job(&job));
            }
            Some(ManyNews::Event(event)) => {
                output.json(&EventObject::from(event.as_ref()))?;
                jobs.event(&event).iter().for_each(|line| remark(line));
            }
            Some(ManyNews::Away(problem)) => {
                remark(&format!("lost the coordinator ({problem}); trying again"))
            }
            Some(ManyNews::Back) => remark("the coordinator is back"),
            None => return Ok(jobs),
        }
    }
}

/// What is known of the jobs that are watched.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    /// Those that go on.
    open: HashMap<String, Watched>,
    succeeded: usize,
    /// How the others ended, a line each.
    failures: Vec<String>,
}

#[derive(Debug)]
struct Watched {
    /// What its lines begin with.
    label: String,
    progress: JobProgress,
}

impl Jobs {
    /// The line that a job as it is is shown with.
    fn job(&mut self, job: &v1::Job) -> String {
        let label = format!("{} {}", short_id(&job.job_id), title(job));
        let steps = u64::try_from(job.total_steps).unwrap_or(0);
        let mut line = format!("{label}: {}", ending(job.state(), &job.state_reason));
        if job.step > 0 && !is_terminal(job.state()) {
            line.push_str(&format!(", step {}/{steps}", job.step));
        }
        let watched = Watched { label, progress: JobProgress::new(steps) };
        self.open.insert(job.job_id.clone(), watched);
        if is_terminal(job.state()) {
            self.end(&job.job_id, job.state(), &job.state_reason);
        }
        line
    }

    /// The line that an event is shown with, if it is.
    fn event(&mut self, event: &v1::JobEvent) -> Option<String> {
        let watched = self.open.get_mut(&event.job_id)?;
        let text = match watched.progress.apply(event)? {
            Update::Remark(text) => Some(text),
            Update::Step { due } => due.then(|| watched.progress.line()),
            Update::Preparing { .. } => None,
        };
        let line = text.map(|text| format!("{}: {text}", watched.label));
        if let Some(Event::StateChange(change)) = &event.event
            && is_terminal(change.to())
        {
            self.end(&event.job_id, change.to(), &change.reason);
        }
        line
    }

    fn end(&mut self, id: &str, state: JobState, reason: &str) {
        let Some(watched) = self.open.remove(id) else { return };
        if state == JobState::Succeeded {
            self.succeeded += 1;
        } else {
            self.failures.push(format!("{}: {}", watched.label, ending(state, reason)));
        }
    }

    /// Success where all jobs had it.
    fn outcome(self) -> Result<(), Error> {
        if self.failures.is_empty() {
            return Ok(());
        }
        let count = self.failures.len();
        let all = u32::try_from(count + self.succeeded).unwrap_or(u32::MAX);
        let lines = self.failures.join("\n  ");
        Err(Error::JobEnded(format!("{count} of {all} {} did not succeed:\n  {lines}", plural(all, "job"))))
    }
}

fn ending(state: JobState, reason: &str) -> String {
    let state = job_state_name(state).to_lowercase();
    if reason.is_empty() { state } else { format!("{state}: {reason}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str, state: JobState) -> v1::Job {
        let (job_id, name, state) = (id.to_owned(), "star".to_owned(), state as i32);
        v1::Job { job_id, name, state, total_steps: 2, step: 1, ..v1::Job::default() }
    }

    fn change(id: &str, to: JobState, reason: &str) -> v1::JobEvent {
        let change = v1::StateChange { to: to as i32, reason: reason.to_owned(), ..Default::default() };
        v1::JobEvent { job_id: id.to_owned(), event: Some(Event::StateChange(change)), ..Default::default() }
    }

    #[test]
    fn each_line_says_which_job_it_is_about() {
        let mut jobs = Jobs::default();
        let id = "01a22026-cdf3-728e-bdef-20f441b7eb6d";
        assert_eq!(Jobs::default().job(&job(id, JobState::Succeeded)), "41b7eb6d star: succeeded");
        assert_eq!(jobs.job(&job("a", JobState::Running)), "a star: running, step 1/2");
        assert_eq!(jobs.job(&job("b", JobState::Succeeded)), "b star: succeeded");
        let step = v1::StepReport { step: 2, loss: 0.5, step_seconds: 0.25, ..Default::default() };
        let step =
            v1::JobEvent { job_id: "a".to_owned(), event: Some(Event::Step(step)), ..Default::default() };
        assert_eq!(
            jobs.event(&step).as_deref(),
            Some("a star: step 2/2  loss 0.5000  4.0 steps/s  ETA 0:00")
        );
        assert_eq!(jobs.event(&change("x", JobState::Failed, "")), None, "a job that was never told");
        assert_eq!(
            jobs.event(&change("a", JobState::Failed, "no disk")).as_deref(),
            Some("a star: failed: no disk")
        );
        let failed = jobs.outcome().expect_err("one failed").to_string();
        assert_eq!(failed, "1 of 2 jobs did not succeed:\n  a star: failed: no disk");
    }

    #[test]
    fn all_must_succeed() {
        let mut jobs = Jobs::default();
        for id in ["a", "b"] {
            jobs.job(&job(id, JobState::Running));
            jobs.event(&change(id, JobState::Succeeded, "2 steps done"));
        }
        assert!(jobs.outcome().is_ok());
    }
}

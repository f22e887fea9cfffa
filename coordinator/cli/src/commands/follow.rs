//! Following a job to its end: progress, interrupts, and the daemons that are kept up meanwhile.

use std::time::Duration;

use ringtune_proto::{
    convert::{is_terminal, job_state_name},
    v1::{self, JobState, job_event::Event},
};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::keep::Keeper;
use crate::{
    client::{Client, Watch, WatchNews},
    cluster::{ClusterError, LocalCluster, NOTES},
    error::Error,
    interrupt::Interrupts,
    objects::{EventObject, ProgressObject},
    output::Output,
    progress::Display,
    timing_objects::TimingsObject,
};

/// How long a cancelled job may take to end: the coordinator itself allows its ranks 30 s.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

/// What the first Ctrl-C means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnInterrupt {
    /// The job is cancelled and followed to its end.
    Cancel,
    /// The job goes on without us.
    Detach,
}

/// The steps of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Steps {
    /// In all.
    pub(super) total: u64,
    /// Done by the job whose checkpoint it goes on from.
    pub(super) done_before: u64,
}

/// Follows a job on a coordinator that is not ours.
pub(super) async fn follow(
    client: &Client,
    job: &v1::Job,
    output: Output,
    interrupts: &Interrupts,
) -> Result<(), Error> {
    let job_id = job_id(job)?;
    let follow = Follow {
        client,
        job_id,
        steps: steps(job),
        output,
        on_interrupt: OnInterrupt::Detach,
        cluster: None,
        keeper: None,
    };
    follow.until_the_end(interrupts).await?.into_result(job_id)
}

/// The steps of a job; none is negative. Before its first one a job has done only those of its checkpoint.
pub(super) fn steps(job: &v1::Job) -> Steps {
    let not_begun = matches!(job.state(), v1::JobState::Queued | v1::JobState::Preparing);
    let done_before = if not_begun { u64::try_from(job.step).unwrap_or(0) } else { 0 };
    Steps { total: u64::try_from(job.total_steps).unwrap_or(0), done_before }
}

/// What to follow, and how.
#[derive(Debug)]
pub(super) struct Follow<'a> {
    pub(super) client: &'a Client,
    pub(super) job_id: Uuid,
    pub(super) steps: Steps,
    pub(super) output: Output,
    pub(super) on_interrupt: OnInterrupt,
    /// The daemons that the job runs on, when they are ours.
    pub(super) cluster: Option<&'a mut LocalCluster>,
    /// Where files are saved while the job goes on, when that is wanted.
    pub(super) keeper: Option<&'a Keeper>,
}

/// The id of a job that the coordinator answered with.
pub(super) fn job_id(job: &v1::Job) -> Result<Uuid, Error> {
    job.job_id.parse().map_err(|_| {
        Error::JobEnded(format!(
            "the coordinator answered with a job id that is not a UUID: {:?}",
            job.job_id
        ))
    })
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) state: JobState,
    pub(super) reason: String,
}

impl Outcome {
    /// Success, or the failure to end the command with.
    pub(super) fn into_result(self, job_id: Uuid) -> Result<(), Error> {
        if self.state == JobState::Succeeded {
            return Ok(());
        }
        let mut text = format!("job {job_id} {}", job_state_name(self.state).to_lowercase());
        if !self.reason.is_empty() {
            text.push_str(&format!(": {}", self.reason));
        }
        Err(Error::JobEnded(text))
    }
}

/// Something that happens while a job is followed.
enum Happening {
    News(Option<WatchNews>),
    Interrupted,
    /// Something about our daemons.
    Note(String),
    /// One of our daemons does not stay.
    GivenUp(ClusterError),
    CancelTimedOut,
}

impl Follow<'_> {
    /// Shows the job's progress until it ends.
    pub(super) async fn until_the_end(mut self, interrupts: &Interrupts) -> Result<Outcome, Error> {
        let mut display = Display::new(self.steps.total, self.steps.done_before);
        let outcome = self.follow(&mut display, interrupts).await;
        display.finish();
        outcome
    }

    async fn follow(&mut self, display: &mut Display, interrupts: &Interrupts) -> Result<Outcome, Error> {
        let mut watch = self.client.watch(self.job_id);
        let mut outcome = None;
        let mut cancelled_at = None;
        let (notes, mut said) = mpsc::channel(NOTES);
        let cluster = self.cluster.take();
        // One future for all of the time: a daemon that is being started again is not to be dropped with each event.
        let kept = async {
            match cluster {
                Some(cluster) => cluster.keep_up(notes).await,
                None => std::future::pending().await,
            }
        };
        let mut kept = std::pin::pin!(kept);
        loop {
            let happening = tokio::select! {
                // In this order: what the job did is shown before what happened to its daemons.
                biased;
                happening = next_happening(&mut watch, interrupts, cancelled_at) => happening?,
                Some(note) = said.recv() => Happening::Note(note),
                error = &mut kept => Happening::GivenUp(error),
            };
            match happening {
                Happening::News(Some(WatchNews::Event(event))) => {
                    self.output.json(&EventObject::from(event.as_ref()))?;
                    display.event(&event);
                    if let (Some(keeper), Some(Event::Artifact(artifact))) = (self.keeper, &event.event) {
                        keeper.announce(artifact);
                    }
                    outcome = outcome_of(&event).or(outcome);
                }
                Happening::News(Some(WatchNews::Progress(ranks))) => {
                    let id = self.job_id.to_string();
                    for rank in &ranks {
                        self.output.json(&ProgressObject::new(&id, rank))?;
                    }
                    display.ranks(&ranks);
                }
                Happening::News(Some(WatchNews::Timings(ranks))) => {
                    self.output.json(&TimingsObject::new(&self.job_id.to_string(), &ranks))?;
                    display.timings(&ranks);
                }
                Happening::News(Some(WatchNews::Away(problem))) => {
                    display.remark(&format!("lost the coordinator ({problem}); trying again"));
                }
                Happening::News(Some(WatchNews::Back)) => display.remark("the coordinator is back"),
                Happening::News(None) => {
                    return Ok(
                        outcome.unwrap_or(Outcome { state: JobState::Unspecified, reason: String::new() })
                    );
                }
                Happening::Interrupted if self.on_interrupt == OnInterrupt::Detach => {
                    return Err(Error::Detached(format!(
                        "stopped watching; the job goes on: ringtune watch {0}, ringtune cancel {0}",
                        self.job_id
                    )));
                }
                Happening::Interrupted => {
                    display.remark("cancelling the job; Ctrl-C again exits at once");
                    cancelled_at = Some(tokio::time::Instant::now());
                    let reason = format!("cancelled with {}", interrupts.cause());
                    self.client.cancel_job(self.job_id, &reason).await?;
                }
                Happening::Note(note) => display.remark(&note),
                Happening::GivenUp(error) => return Err(error.into()),
                Happening::CancelTimedOut => {
                    return Err(Error::Interrupted(format!(
                        "the job did not stop within {} s",
                        CANCEL_TIMEOUT.as_secs()
                    )));
                }
            }
        }
    }
}

/// What the job does, or whoever follows it. Safe to drop in mid-wait.
async fn next_happening(
    watch: &mut Watch,
    interrupts: &Interrupts,
    cancelled_at: Option<tokio::time::Instant>,
) -> Result<Happening, Error> {
    let cancel_timeout = async {
        match cancelled_at {
            Some(time) => tokio::time::sleep_until(time + CANCEL_TIMEOUT).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        news = watch.next() => Ok(Happening::News(news?)),
        () = interrupts.first(), if cancelled_at.is_none() => Ok(Happening::Interrupted),
        () = cancel_timeout => Ok(Happening::CancelTimedOut),
    }
}

fn outcome_of(event: &v1::JobEvent) -> Option<Outcome> {
    match &event.event {
        Some(Event::StateChange(change)) if is_terminal(change.to()) => {
            Some(Outcome { state: change.to(), reason: change.reason.clone() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_success_is_success() {
        let outcome = |state, reason: &str| Outcome { state, reason: reason.to_owned() };
        assert!(outcome(JobState::Succeeded, "").into_result(Uuid::nil()).is_ok());
        let failed = outcome(JobState::Failed, "rank 1 on x: no model_index.json").into_result(Uuid::nil());
        assert!(
            failed.expect_err("failed").to_string().ends_with("failed: rank 1 on x: no model_index.json")
        );
        assert!(outcome(JobState::Cancelled, "").into_result(Uuid::nil()).is_err());
        assert!(outcome(JobState::Unspecified, "").into_result(Uuid::nil()).is_err());
    }
}

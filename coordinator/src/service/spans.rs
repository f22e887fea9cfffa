//! What happened to a job, as spans: its waiting in the queue, its rings, and how they were formed anew.
//!
//! They follow from what a job was and what it is, both of which are stored: a restart in between loses none of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringtune_shared::ids::JobId;
use ringtune_shared::trace::TraceContext;
use ringtune_traces::{Span, Tracer};

use crate::core::{Cluster, Job, JobState, Time, Write};

/// Records what these writes change. `before`: the state that they are made on.
pub(super) fn record(tracer: &Tracer, before: &Cluster, writes: &[Write]) {
    let mut new: HashMap<JobId, &Arc<Job>> = HashMap::new();
    for write in writes {
        match write {
            Write::InsertJob(job) => drop(new.insert(job.id, job)),
            Write::UpdateJob(job) if job.trace.is_some_and(|trace| tracer.takes(&trace)) => {
                let old = new.get(&job.id).copied().or_else(|| before.job(job.id));
                let ended = old.map(|old| spans(old, job)).unwrap_or_default();
                ended.into_iter().for_each(|span| tracer.record(span));
            }
            _ => {}
        }
    }
}

/// What is over now.
fn spans(old: &Job, new: &Job) -> Vec<Span> {
    let Some(trace) = new.trace else { return Vec::new() };
    let span = |context: TraceContext, name, since| {
        Span {
            context,
            parent: Some(trace.span),
            name,
            start: system_time(since),
            end: system_time(new.updated),
            attributes: Vec::new(),
            failed: false,
        }
        .with("job", new.id.to_string())
    };
    let mut over = Vec::new();
    if old.state == JobState::Queued && new.state != JobState::Queued {
        // One that comes back to the queue changes last when it does.
        let since = if old.started.is_none() { old.created } else { old.updated };
        over.push(span(trace.fresh(), "queue", since).with("state", new.state.as_str()));
    }
    let Some(ring) = &old.ring else { return over };
    let now = new.ring.as_ref();
    if now.map(|now| now.epoch) != Some(ring.epoch) {
        let mut ended = span(trace.of_ring(new.id, ring.epoch), "ring", ring.formed)
            .with("epoch", ring.epoch.0)
            .with("ranks", ring.members.len())
            .with("step", new.step)
            .with("state", new.state.as_str());
        ended.failed = new.state == JobState::Failed;
        over.push(ended);
    }
    if let Some(reforming) = &ring.reforming
        && now.is_none_or(|now| now.reforming.is_none())
    {
        let mut whole = span(trace.fresh(), "re-forming", reforming.since)
            .with("epoch", now.unwrap_or(ring).epoch.0)
            .with("planned", reforming.planned);
        whole.failed = now.is_none() && new.state != JobState::Succeeded;
        over.push(whole);
    }
    over
}

fn system_time(time: Time) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(time.0).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use ringtune_shared::ids::Epoch;

    use super::*;
    use crate::core::{Reforming, Ring};
    use crate::store::conformance::queued_job;

    fn job() -> Job {
        let mut job = (*queued_job(1)).clone();
        job.created = Time(1000);
        job.updated = Time(1000);
        job.trace = Some(TraceContext::root());
        job
    }

    fn at(job: &Job, updated: i64, change: impl FnOnce(&mut Job)) -> Job {
        let mut next = job.clone();
        next.updated = Time(updated);
        change(&mut next);
        next
    }

    fn ring(epoch: u64, formed: i64, reforming: Option<i64>) -> Option<Arc<Ring>> {
        let reforming =
            reforming.map(|since| Reforming { since: Time(since), planned: true, spare_by: None });
        Some(Arc::new(Ring { formed: Time(formed), reforming, ..Ring::new(Epoch(epoch), Vec::new()) }))
    }

    fn shown(old: &Job, new: &Job) -> Vec<(&'static str, u64, u64, bool)> {
        let milliseconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let spans = spans(old, new);
        assert!(spans.iter().all(|span| span.parent == new.trace.map(|trace| trace.span)));
        spans
            .iter()
            .map(|one| (one.name, milliseconds(one.start), milliseconds(one.end), one.failed))
            .collect()
    }

    #[test]
    fn a_jobs_life_is_its_queue_its_rings_and_how_they_were_formed_anew() {
        let queued = job();
        let first = at(&queued, 2000, |job| {
            (job.state, job.started, job.ring) = (JobState::Preparing, Some(Time(2000)), ring(1, 2000, None));
        });
        assert_eq!(shown(&queued, &first), [("queue", 1000, 2000, false)]);
        let broken = at(&first, 3000, |job| job.ring = ring(1, 2000, Some(3000)));
        assert_eq!(shown(&first, &broken), []);
        let second = at(&broken, 3500, |job| job.ring = ring(2, 3500, Some(3000)));
        assert_eq!(shown(&broken, &second), [("ring", 2000, 3500, false)]);
        let whole = at(&second, 4000, |job| job.ring = ring(2, 3500, None));
        assert_eq!(shown(&second, &whole), [("re-forming", 3000, 4000, false)]);
        let lost = at(&whole, 5000, |job| (job.state, job.ring) = (JobState::Queued, None));
        assert_eq!(shown(&whole, &lost), [("ring", 3500, 5000, false)]);
        let third = at(&lost, 6000, |job| {
            (job.state, job.ring) = (JobState::Preparing, ring(3, 6000, None));
        });
        assert_eq!(shown(&lost, &third), [("queue", 5000, 6000, false)]);
        let failed = at(&third, 7000, |job| (job.state, job.ring) = (JobState::Failed, None));
        assert_eq!(shown(&third, &failed), [("ring", 6000, 7000, true)]);
        let gone = at(&second, 7000, |job| (job.state, job.ring) = (JobState::Queued, None));
        assert_eq!(shown(&second, &gone), [("ring", 3500, 7000, false), ("re-forming", 3000, 7000, true)]);
    }

    #[test]
    fn workers_know_the_span_of_their_ring() {
        let first = at(&job(), 2000, |job| (job.state, job.ring) = (JobState::Running, ring(7, 2000, None)));
        let over = at(&first, 3000, |job| (job.state, job.ring) = (JobState::Succeeded, None));
        let trace = first.trace.unwrap();
        let [span] = spans(&first, &over).try_into().unwrap();
        assert_eq!(span.context, trace.of_ring(first.id, Epoch(7)));
        assert_ne!(Some(span.context.span), span.parent);
        let untraced = at(&over, 3000, |job| job.trace = None);
        assert_eq!(spans(&first, &untraced), []);
    }
}

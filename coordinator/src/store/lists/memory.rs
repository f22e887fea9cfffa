//! Lists of things in memory.

use ringtune_shared::checkpoint::is_recovery_name;

use super::{ArtifactQuery, EventQuery, JobFilter, JobPlace, JobQuery};
use crate::core::{ArtifactRecord, Job, JobEvent};

/// The page of `jobs`, which are in any order.
pub(in crate::store) fn jobs<'a>(jobs: impl Iterator<Item = &'a Job>, query: &JobQuery) -> Vec<Job> {
    let mut found: Vec<(JobPlace, &Job)> = jobs
        .filter(|job| wanted(&query.filter, job))
        .map(|job| (query.order.place(job), job))
        .filter(|(place, _)| query.after.as_ref().is_none_or(|after| query.compare(place, after).is_gt()))
        .collect();
    found.sort_by(|(one, _), (other, _)| query.compare(one, other));
    found.into_iter().take(query.limit as usize).map(|(_, job)| job.clone()).collect()
}

fn wanted(filter: &JobFilter, job: &Job) -> bool {
    filter.states.as_ref().is_none_or(|states| states.contains(&job.state))
        && filter.name.as_ref().is_none_or(|name| *name == job.spec.common.name)
        && filter.owner.as_ref().is_none_or(|owner| *owner == job.queue.owner)
        && filter.priority.is_none_or(|priority| priority == job.queue.priority)
        && filter.kind.is_none_or(|kind| kind == job.spec.kind())
        && filter.labels.iter().all(|(key, value)| job.queue.labels.get(key) == Some(value))
}

/// The page of a job's artifacts, which are in any order.
pub(in crate::store) fn artifacts<'a>(
    artifacts: impl Iterator<Item = &'a ArtifactRecord>,
    query: &ArtifactQuery,
) -> Vec<ArtifactRecord> {
    let compare = |one: (i64, &str), other: (i64, &str)| match (query.by_time, query.descending) {
        (false, false) => one.1.cmp(other.1),
        (false, true) => other.1.cmp(one.1),
        (true, false) => one.cmp(&other),
        (true, true) => other.0.cmp(&one.0).then(one.1.cmp(other.1)),
    };
    fn place(one: &ArtifactRecord) -> (i64, &str) {
        (one.created.0, &one.name)
    }
    let mut found: Vec<&ArtifactRecord> = artifacts
        .filter(|one| one.job == query.job && !is_recovery_name(&one.name))
        .filter(|one| query.name.as_ref().is_none_or(|name| *name == one.name))
        .filter(|one| query.media_type.as_ref().is_none_or(|media_type| *media_type == one.media_type))
        .filter(|one| {
            let after = query.after.as_ref().map(|(time, name)| (time.0, name.as_str()));
            after.is_none_or(|after| compare(place(one), after).is_gt())
        })
        .collect();
    found.sort_by(|one, other| compare(place(one), place(other)));
    found.into_iter().take(query.limit as usize).cloned().collect()
}

/// The page of a job's events, which come in their order.
pub(in crate::store) fn events<'a>(
    events: impl DoubleEndedIterator<Item = &'a JobEvent>,
    query: &EventQuery,
) -> Vec<JobEvent> {
    let wanted = |event: &&JobEvent| {
        event.sequence > query.above
            && query.below.is_none_or(|below| event.sequence < below)
            && query.kind.is_none_or(|kind| kind == event.body.kind())
    };
    let limit = query.limit as usize;
    match query.descending {
        false => events.filter(wanted).take(limit).cloned().collect(),
        true => events.rev().filter(wanted).take(limit).cloned().collect(),
    }
}

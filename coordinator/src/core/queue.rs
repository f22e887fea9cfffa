//! The queue: jobs by the numerics class that they are bound to, if they are, by what they need of their workers, and by the
//! fewest workers that they start on; within that in their order.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use ringtune_shared::ids::JobId;

use super::job::Job;
use super::needs::Needs;
use super::pool::Pool;
use super::precedence::{Precedence, Standing};
use super::{SharedMap, SharedSet};

/// Where jobs stand that the same workers could serve: the class that they are bound to, if they are, and what they need.
type Place = (Option<String>, Needs);

/// Jobs that wait for a ring.
///
/// Invariant: a job's pin, needs and urgency do not change while it is queued, as it is found again by them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Queue {
    /// The first job of each group, by place and size (min_world_size). Classes are few, and so are sizes.
    places: SharedMap<Place, SharedMap<u32, SharedSet<Head>>>,
    owners: SharedMap<String, Line>,
}

/// The jobs of one owner.
#[derive(Debug, Clone, Default, PartialEq)]
struct Line {
    standing: Standing,
    groups: SharedMap<Group, SharedMap<u64, JobId>>,
    jobs: usize,
}

/// Jobs of one owner that differ in age alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    place: Place,
    size: u32,
    urgency: u32,
}

/// The oldest job of a group, in the order of all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    precedence: Precedence,
    owner: String,
}

impl Group {
    fn of(job: &Job) -> Self {
        let place = (job.pin.as_ref().map(|pin| pin.numerics_class.clone()), Needs::of(job));
        let (_, size) = job.ranks();
        Self { place, size, urgency: job.urgency() }
    }

    fn head(&self, owner: &str, standing: Standing, number: u64) -> Head {
        let Standing { late, level } = standing;
        let precedence = Precedence { late, urgency: Reverse(self.urgency), level, number };
        Head { precedence, owner: owner.to_owned() }
    }
}

impl Queue {
    /// `standing`: of the job's owner.
    pub(super) fn insert(&mut self, job: &Job, standing: Standing) {
        self.set_standing(&job.queue.owner, standing);
        self.change(job, standing, |jobs| jobs.insert_mut(job.number, job.id));
    }

    pub(super) fn remove(&mut self, job: &Job) {
        let Some(line) = self.owners.get(&job.queue.owner) else { return };
        self.change(job, line.standing, |jobs| {
            jobs.remove_mut(&job.number);
        });
    }

    /// Changes the group of a job, and what follows from its first job.
    fn change(&mut self, job: &Job, standing: Standing, change: impl FnOnce(&mut SharedMap<u64, JobId>)) {
        let (owner, group) = (&job.queue.owner, Group::of(job));
        let mut line = self.owners.get(owner).cloned().unwrap_or(Line { standing, ..Line::default() });
        let mut jobs = line.groups.get(&group).cloned().unwrap_or_default();
        let (before, size) = (jobs.first().map(|(number, _)| *number), jobs.size());
        change(&mut jobs);
        let after = jobs.first().map(|(number, _)| *number);
        line.jobs = line.jobs + jobs.size() - size;
        if jobs.is_empty() {
            line.groups.remove_mut(&group);
        } else {
            line.groups.insert_mut(group.clone(), jobs);
        }
        if line.groups.is_empty() {
            self.owners.remove_mut(owner);
        } else {
            self.owners.insert_mut(owner.clone(), line);
        }
        if before != after {
            let head = |number| group.head(owner, standing, number);
            self.move_head(&group, before.map(head), after.map(head));
        }
    }

    /// An owner's jobs stand elsewhere from now on, if there are any.
    pub(super) fn set_standing(&mut self, owner: &str, standing: Standing) {
        let Some(line) = self.owners.get(owner).filter(|line| line.standing != standing).cloned() else {
            return;
        };
        for (group, jobs) in &line.groups {
            let Some((number, _)) = jobs.first() else { continue };
            let [from, to] = [line.standing, standing].map(|standing| group.head(owner, standing, *number));
            self.move_head(group, Some(from), Some(to));
        }
        self.owners.insert_mut(owner.to_owned(), Line { standing, ..line });
    }

    fn move_head(&mut self, group: &Group, from: Option<Head>, to: Option<Head>) {
        let mut sizes = self.places.get(&group.place).cloned().unwrap_or_default();
        let mut heads = sizes.get(&group.size).cloned().unwrap_or_default();
        if let Some(from) = from {
            heads.remove_mut(&from);
        }
        if let Some(to) = to {
            heads.insert_mut(to);
        }
        if heads.is_empty() {
            sizes.remove_mut(&group.size);
        } else {
            sizes.insert_mut(group.size, heads);
        }
        if sizes.is_empty() {
            self.places.remove_mut(&group.place);
        } else {
            self.places.insert_mut(group.place.clone(), sizes);
        }
    }

    /// How many jobs of an owner wait.
    pub(super) fn jobs_of(&self, owner: &str) -> usize {
        self.owners.get(owner).map_or(0, |line| line.jobs)
    }

    /// The owners whose jobs wait, with where they stand.
    pub(super) fn owners(&self) -> impl Iterator<Item = (&String, Standing)> {
        self.owners.iter().map(|(owner, line)| (owner, line.standing))
    }

    /// The first job, but for those that were `passed`, that could start on one of the classes that are `wanted` for what it needs,
    /// if none of its workers had a rank. `room`: how many more ranks an owner may have.
    pub(super) fn first_fitting(
        &self,
        pool: &Pool,
        wanted: impl Fn(&str, &Needs) -> bool,
        room: impl Fn(&str) -> u32,
        passed: &BTreeSet<JobId>,
    ) -> Option<JobId> {
        let mut first: Option<(Precedence, JobId)> = None;
        for (place, sizes) in &self.places {
            let (bound, needs) = place;
            let fits =
                |class: &str| bound.as_ref().is_none_or(|bound| bound == class) && wanted(class, needs);
            let workers = pool.largest_class(needs, fits);
            for (size, heads) in sizes.iter().take_while(|(size, _)| **size as usize <= workers) {
                for Head { precedence, owner } in heads {
                    // All that follow come after it.
                    if first.is_some_and(|(first, _)| first < *precedence) {
                        break;
                    }
                    if room(owner) < *size {
                        continue;
                    }
                    let group = Group { place: place.clone(), size: *size, urgency: precedence.urgency.0 };
                    let jobs = self.owners.get(owner).and_then(|line| line.groups.get(&group));
                    // Of those that were passed there are few: see [`super::queue_walk`].
                    let next = jobs.and_then(|jobs| jobs.iter().find(|(_, id)| !passed.contains(id)));
                    let found = next.map(|(number, id)| (Precedence { number: *number, ..*precedence }, *id));
                    first = found.into_iter().chain(first).min();
                }
            }
        }
        first.map(|(_, id)| id)
    }
}

//! The free workers, as one job may have them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use ringtune_shared::ids::{JobId, WorkerId};

use super::{Abilities, Availability, Class, Needs, Pool, View};
use crate::core::job::Job;
use crate::core::precedence::Precedence;
use crate::core::scheduler::{Candidate, FreeWorkers};
use crate::core::worker::Worker;
use crate::core::{SharedMap, SharedSet};

/// Free workers that are reserved, by numerics class and by what they have, with the precedence and id of the job that reserves
/// them.
pub(in crate::core) type Kept = BTreeMap<(String, Needs), (Precedence, JobId)>;

/// See the module. Workers that have not what the job needs, or that rest for its owner, are not open to it at all. Those that
/// refused it are not while others could take it, now or once they are free; where there are not enough others they come last.
#[derive(Debug, Clone)]
pub(in crate::core) struct OpenTo<'a> {
    view: Cow<'a, View>,
    needs: Needs,
    /// Workers that hold its model come first.
    holders: Option<&'a SharedSet<(String, WorkerId)>>,
    refused_by: &'a BTreeSet<WorkerId>,
    /// Workers that refused the job, by class. None: they are open to it.
    left_out: Option<BTreeMap<&'a str, Counts>>,
    /// Workers that rest for its owner, by class; `at_rest` has their ids.
    resting: BTreeMap<&'a str, Counts>,
    at_rest: BTreeSet<WorkerId>,
    /// What jobs before it reserve, and its own precedence.
    reserved: Option<(&'a Kept, Precedence)>,
}

/// Some workers of one class.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    serving: usize,
    usable: usize,
    free: usize,
}

impl<'a> OpenTo<'a> {
    /// `workers`: all that are known. `refusing`: those that refused the job, as far as they are known. `resting`: those that rest
    /// for its owner.
    pub(in crate::core) fn new(
        pool: &'a Pool,
        job: &'a Job,
        workers: impl Iterator<Item = (&'a Worker, Availability)>,
        refusing: impl Iterator<Item = (&'a Worker, Availability)>,
        resting: impl Iterator<Item = (&'a Worker, Availability)>,
    ) -> Self {
        let needs = Needs::of(job);
        let view = pool.view(&needs, workers);
        let fitting = |(worker, _): &(&Worker, _)| needs.are_met(&Abilities::of(worker));
        let resting: Vec<(&Worker, Availability)> = resting.filter(fitting).collect();
        let at_rest: BTreeSet<WorkerId> = resting.iter().map(|(worker, _)| worker.id).collect();
        // Whoever rests is not counted twice, but may serve later.
        let awake = |worker: &Worker| !at_rest.contains(&worker.id);
        let by_class = count(refusing.filter(fitting), awake);
        let resting = count(resting.into_iter(), |_| true);
        let (_, needed) = job.ranks();
        let enough_others = |(name, class): (&String, &Class)| {
            let refusing = by_class.get(name.as_str()).map_or(0, |refusing| refusing.serving);
            job.bound_to().is_none_or(|bound| bound == name) && class.serving >= refusing + needed as usize
        };
        let left_out = !job.refused_by.is_empty() && view.classes.iter().any(enough_others);
        let left_out = left_out.then_some(by_class);
        let (holders, refused_by) = (pool.holders.get(&job.model()), &job.refused_by);
        Self { view, needs, holders, refused_by, left_out, resting, at_rest, reserved: None }
    }

    /// Without what jobs before it reserve. `precedence`: this job's.
    pub(in crate::core) fn without_reserved(self, kept: &'a Kept, precedence: Precedence) -> Self {
        Self { reserved: Some((kept, precedence)), ..self }
    }

    /// Some refused the job, and there are enough others that could take it, now or later.
    pub(in crate::core) fn has_others(&self) -> bool {
        self.left_out.is_some()
    }

    /// Free workers that are not open to the job, as they refused it.
    pub(in crate::core) fn left_out(&self) -> usize {
        self.left_out.iter().flat_map(BTreeMap::values).map(|refusing| refusing.free).sum()
    }

    /// Connected workers that rest for the job's owner alone.
    pub(in crate::core) fn resting(&self) -> usize {
        self.resting.values().map(|resting| resting.usable).sum()
    }

    /// Whether a free worker of a class that is open to the job has what is needed for another one.
    pub(in crate::core) fn has_free(&self, class: &str, needs: &Needs) -> bool {
        self.free_of(class).any(|(_, abilities)| needs.are_met(abilities))
    }

    /// What the job needs of its workers.
    pub(in crate::core) fn needs(&self) -> &Needs {
        &self.needs
    }

    /// The workers that this class would have open to the job if nobody had a rank.
    pub(in crate::core) fn usable_of(&self, class: &str) -> usize {
        let (refusing, resting) = self.left_out_of(class);
        let usable = self.view.classes.get(class).map_or(0, |class| class.usable);
        usable.saturating_sub(refusing.usable + resting.usable)
    }

    /// The most that a class, of those that the job may have, would have open to it if nobody had a rank.
    pub(in crate::core) fn usable(&self, job: &Job) -> usize {
        let fits = |class: &&String| job.bound_to().is_none_or(|bound| bound == *class);
        let classes = self.view.classes.keys().filter(fits);
        classes.map(|class| self.usable_of(class)).max().unwrap_or(0)
    }

    fn left_out_of(&self, class: &str) -> (Counts, Counts) {
        let refusing = self.left_out.as_ref().and_then(|refusing| refusing.get(class));
        let [refusing, resting] =
            [refusing, self.resting.get(class)].map(|counts| counts.copied().unwrap_or_default());
        (refusing, resting)
    }

    /// What jobs before it reserve of a class.
    fn reserved_of(&self, class: &str) -> Vec<&Needs> {
        let Some((kept, own)) = self.reserved else { return Vec::new() };
        let before = kept.iter().filter(|((of, _), (before, _))| of == class && *before < own);
        before.map(|((_, needs), _)| needs).collect()
    }

    /// The free workers of a class: first those that hold the model, and last those that refused the job, where it may have them.
    /// Workers that are reserved are among them.
    fn free_of<'o>(&'o self, class: &str) -> impl Iterator<Item = (&'o (String, WorkerId), &'o Abilities)> {
        let class = self.view.classes.get(class).map(|class| &class.free).into_iter();
        let holders = move || self.holders.into_iter().flat_map(SharedSet::iter);
        let free = move |refused: bool| {
            let holding = class
                .clone()
                .flat_map(move |free| holders().filter_map(move |place| free.get_key_value(place)));
            let held =
                |place: &(String, WorkerId)| self.holders.is_some_and(|holders| holders.contains(place));
            let others = class.clone().flat_map(SharedMap::iter).filter(move |(place, _)| !held(place));
            let free = holding.chain(others);
            let awake = free.filter(|((_, worker), _)| !self.at_rest.contains(worker));
            awake.filter(move |((_, worker), _)| self.refused_by.contains(worker) == refused)
        };
        let last = self.left_out.is_none().then(|| free(true)).into_iter().flatten();
        free(false).chain(last)
    }
}

/// How many of these workers there are of each class.
fn count<'a>(
    workers: impl Iterator<Item = (&'a Worker, Availability)>,
    counts: impl Fn(&Worker) -> bool,
) -> BTreeMap<&'a str, Counts> {
    let mut by_class: BTreeMap<&str, Counts> = BTreeMap::new();
    for (worker, availability) in workers {
        let of_class = by_class.entry(&worker.capabilities.numerics_class).or_default();
        of_class.serving += usize::from(availability.serves());
        of_class.usable += usize::from(availability.usable() && counts(worker));
        of_class.free += usize::from(availability.free() && counts(worker));
    }
    by_class
}

impl FreeWorkers for OpenTo<'_> {
    fn classes(&self) -> impl Iterator<Item = (&str, usize)> {
        let free = |name: &String, class: &Class| {
            let (refusing, resting) = self.left_out_of(name);
            let all = class.free.size().saturating_sub(refusing.free + resting.free);
            match self.reserved_of(name) {
                reserved if reserved.is_empty() => all,
                // Whoever has what the job needs has what those before it need.
                reserved if reserved.iter().any(|needs| self.needs.include(needs)) => 0,
                _ => self.of_class(name, usize::MAX).len(),
            }
        };
        let all = self.view.classes.iter().map(move |(name, class)| (name.as_str(), free(name, class)));
        all.filter(|(_, free)| *free > 0)
    }

    fn of_class(&self, class: &str, most: usize) -> Vec<Candidate> {
        let reserved = self.reserved_of(class);
        let left = |(_, abilities): &(&(String, WorkerId), &Abilities)| {
            !reserved.iter().any(|needs| needs.are_met(abilities))
        };
        let candidate = |((host_name, worker), abilities): (&(String, WorkerId), &Abilities)| Candidate {
            worker: *worker,
            host_name: host_name.clone(),
            capabilities: abilities.capabilities.clone(),
        };
        self.free_of(class).filter(left).take(most).map(candidate).collect()
    }
}

//! The free workers, as one job may have them.

use std::collections::{BTreeMap, BTreeSet};

use ringtune_shared::ids::{JobId, WorkerId};

use super::{Abilities, Availability, Class, Pool};
use crate::core::job::Job;
use crate::core::precedence::Precedence;
use crate::core::scheduler::{Candidate, FreeWorkers};
use crate::core::worker::Worker;

/// Classes whose free workers are reserved, with the precedence and id of the job that reserves them.
pub(in crate::core) type Kept = BTreeMap<String, (Precedence, JobId)>;

/// See the module. Workers that refused the job are not open to it while others could take it, now or once they are free;
/// where there are not enough others they come last. Workers that rest for its owner are not open to it at all.
#[derive(Debug, Clone)]
pub(in crate::core) struct OpenTo<'a> {
    pool: &'a Pool,
    /// Only those that can verify.
    verifies: bool,
    refused_by: &'a BTreeSet<WorkerId>,
    /// Workers that refused the job, by class. None: they are open to it.
    left_out: Option<BTreeMap<&'a str, Counts>>,
    /// Workers that rest for its owner, by class; `at_rest` has their ids.
    resting: BTreeMap<&'a str, Counts>,
    at_rest: BTreeSet<WorkerId>,
    /// Classes reserved by jobs before it, and its own precedence.
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
    /// `refusing`: those that refused the job, as far as they are known. `resting`: those that rest for its owner.
    pub(in crate::core) fn new(
        pool: &'a Pool,
        job: &'a Job,
        refusing: impl Iterator<Item = (&'a Worker, Availability)>,
        resting: impl Iterator<Item = (&'a Worker, Availability)>,
    ) -> Self {
        let verifies = job.verification.is_some();
        let resting: Vec<(&Worker, Availability)> = resting.collect();
        let at_rest: BTreeSet<WorkerId> = resting.iter().map(|(worker, _)| worker.id).collect();
        // Whoever rests is not counted twice, but may serve later.
        let awake = |worker: &Worker| !at_rest.contains(&worker.id);
        let by_class = count(refusing, verifies, awake);
        let resting = count(resting.into_iter(), verifies, |_| true);
        let (_, needed) = job.ranks();
        let enough_others = |(name, class): (&String, &Class)| {
            let serving = if verifies { class.serving_to_verify } else { class.serving };
            let refusing = by_class.get(name.as_str()).map_or(0, |refusing| refusing.serving);
            job.bound_to().is_none_or(|bound| bound == name) && serving >= refusing + needed as usize
        };
        let left_out = !job.refused_by.is_empty() && pool.classes.iter().any(enough_others);
        let left_out = left_out.then_some(by_class);
        Self { pool, verifies, refused_by: &job.refused_by, left_out, resting, at_rest, reserved: None }
    }

    /// Without the classes that jobs before it reserve. `precedence`: this job's.
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

    /// The workers that this class would have open to the job if nobody had a rank.
    pub(in crate::core) fn usable_of(&self, class: &str) -> usize {
        let (refusing, resting) = self.left_out_of(class);
        self.pool.usable_of(class, self.verifies).saturating_sub(refusing.usable + resting.usable)
    }

    fn left_out_of(&self, class: &str) -> (Counts, Counts) {
        let refusing = self.left_out.as_ref().and_then(|refusing| refusing.get(class));
        let [refusing, resting] =
            [refusing, self.resting.get(class)].map(|counts| counts.copied().unwrap_or_default());
        (refusing, resting)
    }
}

/// How many of these workers there are of each class; of a job that verifies, those that can.
fn count<'a>(
    workers: impl Iterator<Item = (&'a Worker, Availability)>,
    verifies: bool,
    counts: impl Fn(&Worker) -> bool,
) -> BTreeMap<&'a str, Counts> {
    let mut by_class: BTreeMap<&str, Counts> = BTreeMap::new();
    for (worker, availability) in workers.filter(|(worker, _)| worker.verifies || !verifies) {
        let of_class = by_class.entry(&worker.capabilities.numerics_class).or_default();
        of_class.serving += usize::from(availability.serves());
        of_class.usable += usize::from(availability.usable() && counts(worker));
        of_class.free += usize::from(availability.free() && counts(worker));
    }
    by_class
}

impl FreeWorkers for OpenTo<'_> {
    fn classes(&self) -> impl Iterator<Item = (&str, usize)> {
        let free = |(name, class): (&'_ String, &Class)| {
            let all = if self.verifies { class.free_to_verify } else { class.free.size() };
            let (refusing, resting) = self.left_out_of(name);
            all.saturating_sub(refusing.free + resting.free)
        };
        let is_kept = |name: &str| {
            self.reserved.is_some_and(|(kept, own)| kept.get(name).is_some_and(|(before, _)| *before < own))
        };
        let all = self.pool.classes.iter().map(move |(name, class)| (name.as_str(), free((name, class))));
        all.filter(move |(name, free)| *free > 0 && !is_kept(name))
    }

    fn of_class(&self, class: &str, most: usize) -> Vec<Candidate> {
        let with = |refused: bool| {
            let free = self.pool.classes.get(class).into_iter().flat_map(|class| class.free.iter());
            let free = free.filter(|((_, worker), abilities)| {
                (abilities.verifies || !self.verifies) && !self.at_rest.contains(worker)
            });
            free.filter(move |((_, worker), _)| self.refused_by.contains(worker) == refused)
        };
        let candidate = |((host_name, worker), abilities): (&(String, WorkerId), &Abilities)| Candidate {
            worker: *worker,
            host_name: host_name.clone(),
            numerics_class: class.to_owned(),
            bf16: abilities.bf16,
            threads: abilities.threads,
        };
        let last = self.left_out.is_none().then(|| with(true)).into_iter().flatten();
        with(false).chain(last).take(most).map(candidate).collect()
    }
}

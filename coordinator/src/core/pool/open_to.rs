//! The free workers, as one job may have them.

use std::collections::{BTreeMap, BTreeSet};

use ringtune_shared::ids::{JobId, WorkerId};

use super::{Class, Pool, Seat, Standing};
use crate::core::job::Job;
use crate::core::scheduler::{Candidate, FreeWorkers};
use crate::core::worker::Worker;

/// Classes of which the free workers are kept, and for whom: its number and name.
pub(in crate::core) type Kept = BTreeMap<String, (u64, JobId)>;

/// See the module. Workers that refused the job are not open to it while others could take it, now or once they are free;
/// where there are not enough others they come last.
#[derive(Debug, Clone)]
pub(in crate::core) struct OpenTo<'a> {
    pool: &'a Pool,
    /// Only those that can verify.
    verifies: bool,
    refused_by: &'a BTreeSet<WorkerId>,
    /// Those who refused, by class, while they are not open to it.
    left_out: Option<BTreeMap<&'a str, Refusing>>,
    /// What older jobs keep for themselves, and the number of this one.
    but: Option<(&'a Kept, u64)>,
}

/// Workers of one class that refused the job.
#[derive(Debug, Clone, Copy, Default)]
struct Refusing {
    serving: usize,
    usable: usize,
    free: usize,
}

impl<'a> OpenTo<'a> {
    /// `refusing`: those that refused the job, as far as they are known.
    pub(in crate::core) fn new(
        pool: &'a Pool,
        job: &'a Job,
        refusing: impl Iterator<Item = (&'a Worker, Standing)>,
    ) -> Self {
        let verifies = job.verification.is_some();
        let mut by_class: BTreeMap<&str, Refusing> = BTreeMap::new();
        for (worker, standing) in refusing.filter(|(worker, _)| worker.verifies || !verifies) {
            let of_class = by_class.entry(&worker.capabilities.numerics_class).or_default();
            of_class.serving += usize::from(standing.serves());
            of_class.usable += usize::from(standing.usable());
            of_class.free += usize::from(standing.free());
        }
        let (_, needed) = job.ranks();
        let enough_others = |(name, class): (&String, &Class)| {
            let serving = if verifies { class.serving_to_verify } else { class.serving };
            let refusing = by_class.get(name.as_str()).map_or(0, |refusing| refusing.serving);
            job.bound_to().is_none_or(|bound| bound == name) && serving >= refusing + needed as usize
        };
        let left_out = !job.refused_by.is_empty() && pool.classes.iter().any(enough_others);
        let left_out = left_out.then_some(by_class);
        Self { pool, verifies, refused_by: &job.refused_by, left_out, but: None }
    }

    /// Without the workers that older jobs keep for themselves. `number`: that of this job.
    pub(in crate::core) fn but(self, kept: &'a Kept, number: u64) -> Self {
        Self { but: Some((kept, number)), ..self }
    }

    /// Some refused the job, and there are enough others that could take it, now or later.
    pub(in crate::core) fn has_others(&self) -> bool {
        self.left_out.is_some()
    }

    /// Free workers that are not open to the job, as they refused it.
    pub(in crate::core) fn left_out(&self) -> usize {
        self.left_out.iter().flat_map(BTreeMap::values).map(|refusing| refusing.free).sum()
    }

    /// The workers that this class would have open to the job if nobody had a rank.
    pub(in crate::core) fn usable_of(&self, class: &str) -> usize {
        let refusing = self.refusing(class).usable;
        self.pool.usable_of(class, self.verifies).saturating_sub(refusing)
    }

    fn refusing(&self, class: &str) -> Refusing {
        self.left_out.as_ref().and_then(|refusing| refusing.get(class)).copied().unwrap_or_default()
    }
}

impl FreeWorkers for OpenTo<'_> {
    fn classes(&self) -> impl Iterator<Item = (&str, usize)> {
        let free = |(name, class): (&'_ String, &Class)| {
            let all = if self.verifies { class.free_to_verify } else { class.free.len() };
            all.saturating_sub(self.refusing(name).free)
        };
        let is_kept = |name: &str| {
            self.but.is_some_and(|(kept, number)| kept.get(name).is_some_and(|(older, _)| *older < number))
        };
        let all = self.pool.classes.iter().map(move |(name, class)| (name.as_str(), free((name, class))));
        all.filter(move |(name, free)| *free > 0 && !is_kept(name))
    }

    fn of_class(&self, class: &str, most: usize) -> Vec<Candidate> {
        let with = |refused: bool| {
            let free = self.pool.classes.get(class).into_iter().flat_map(|class| class.free.iter());
            let free = free.filter(|(_, seat)| seat.verifies || !self.verifies);
            free.filter(move |((_, worker), _)| self.refused_by.contains(worker) == refused)
        };
        let candidate = |((host_name, worker), seat): (&(String, WorkerId), &Seat)| Candidate {
            worker: *worker,
            host_name: host_name.clone(),
            numerics_class: class.to_owned(),
            bf16: seat.bf16,
            threads: seat.threads,
        };
        let last = self.left_out.is_none().then(|| with(true)).into_iter().flatten();
        with(false).chain(last).take(most).map(candidate).collect()
    }
}

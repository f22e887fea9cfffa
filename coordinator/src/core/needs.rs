//! What the workers of a job have to have.

use std::collections::BTreeSet;
use std::sync::Arc;

use ringtune_shared::job::{Constraint, ModelSpec, OrdersSpec};

use super::job::Job;
use super::worker::{Capabilities, Worker};

/// What a job needs of each of its workers. It changes only where the job is ordered something for the first time.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Needs {
    /// `cluster.constraints`.
    constraints: BTreeSet<Constraint>,
    /// That it computes steps again.
    verifies: bool,
    /// That it carries out orders.
    orders: bool,
}

/// What a worker has, as far as it decides which ranks it gets. Fixed for a session.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Abilities {
    pub(super) capabilities: Arc<Capabilities>,
    pub(super) reforms: bool,
    verifies: bool,
    orders: bool,
}

impl Abilities {
    pub(super) fn of(worker: &Worker) -> Self {
        let Worker { capabilities, reforms, verifies, orders, .. } = worker;
        Self {
            capabilities: Arc::clone(capabilities),
            reforms: *reforms,
            verifies: *verifies,
            orders: *orders,
        }
    }
}

impl Needs {
    pub(super) fn of(job: &Job) -> Self {
        let common = &job.spec.common;
        Self {
            constraints: common.cluster.needs(),
            verifies: job.verification.is_some(),
            orders: !job.orders.is_empty() || common.orders != OrdersSpec::default(),
        }
    }

    /// Whether a worker has all of it.
    pub(super) fn are_met(&self, by: &Abilities) -> bool {
        let Capabilities { labels, cpu_flags, .. } = &*by.capabilities;
        self.constraints.iter().all(|constraint| constraint.is_met(labels, cpu_flags))
            && (by.verifies || !self.verifies)
            && (by.orders || !self.orders)
    }

    /// Whether a worker that has all of this has all of `other`, too.
    pub(super) fn include(&self, other: &Self) -> bool {
        self.constraints.is_superset(&other.constraints)
            && self.verifies >= other.verifies
            && self.orders >= other.orders
    }

    /// The constraints, for people; none: it has none.
    pub(super) fn constraints(&self) -> Option<String> {
        let texts: Vec<String> = self.constraints.iter().map(ToString::to_string).collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }
}

impl Job {
    /// Whether a worker may have a rank of it, whatever it does now: it has what the job needs, has not refused the job, and does
    /// not rest for its owner. `needs`: the job's.
    pub(super) fn takes(&self, worker: &Worker, needs: &Needs) -> bool {
        !self.refused_by.contains(&worker.id)
            && !worker.rests_for(&self.queue.owner)
            && needs.are_met(&Abilities::of(worker))
    }
}

impl Job {
    /// What its ranks load first: its base model, of that revision and variant.
    pub fn model(&self) -> String {
        let ModelSpec { base, revision, variant, .. } = &self.spec.common.model;
        [base.as_str(), revision, variant].join("\n")
    }
}

//! The workers as placement sees them: by what jobs need of them, by numerics class, by address, and by how long they are
//! gone.

mod open_to;

use std::borrow::Cow;
use std::collections::BTreeSet;

use ringtune_shared::ids::WorkerId;

pub(super) use self::open_to::{Kept, OpenTo};
use super::needs::{Abilities, Needs};
use super::time::Time;
use super::worker::{Worker, WorkerState};
use super::{SharedMap, SharedSet};

/// What the indexes depend on of a worker, beside what its session fixes (host name, address, class).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Availability {
    state: WorkerState,
    /// Ranks of several owners failed on it not long ago.
    rests: bool,
    /// So many owners' ranks failed on it, whose jobs it gets none of: with each that it rests for no more, some may be placed.
    doubted: usize,
    /// A ring gave it a place.
    has_place: bool,
    /// It is drained, or about to end.
    withdrawn: bool,
    /// Since when it is gone, unless a ring waits for it.
    forgettable: Option<Time>,
}

impl Availability {
    /// `has_rank`: a ring gave it one.
    pub(super) fn of(worker: &Worker, has_rank: bool) -> Self {
        Self {
            state: worker.state(has_rank),
            rests: worker.rests_until.is_some(),
            doubted: worker.doubts.iter().filter(|doubt| doubt.until.is_some()).count(),
            has_place: has_rank,
            withdrawn: worker.draining || worker.leaving,
            forgettable: worker.lost.filter(|_| worker.session.is_none() && !has_rank),
        }
    }

    fn connected(self) -> bool {
        self.state != WorkerState::Lost
    }

    /// It can take a rank at some time: now it may have one, or rest.
    fn serves(self) -> bool {
        self.connected() && !self.withdrawn
    }

    /// It could take a rank if it had nothing to do.
    pub(super) fn usable(self) -> bool {
        self.serves() && !self.rests
    }

    fn free(self) -> bool {
        self.state == WorkerState::Idle && self.usable()
    }
}

/// The connected workers of one numerics class.
#[derive(Debug, Clone, Default, PartialEq)]
struct Class {
    /// Free workers, in rank order.
    free: SharedMap<(String, WorkerId), Abilities>,
    /// Workers that could take a rank if they had none: not those that rest.
    usable: usize,
    /// Usable workers that no ring gave a place, and that are still letting go of another one.
    letting_go: usize,
    /// Usable workers and those that rest.
    serving: usize,
}

/// The workers that have what some jobs need, by numerics class.
#[derive(Debug, Clone, Default, PartialEq)]
struct View {
    classes: SharedMap<String, Class>,
    /// Jobs that need it.
    jobs: usize,
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Pool {
    /// All workers.
    all: View,
    /// For jobs that need more of their workers than that they are there.
    views: SharedMap<Needs, View>,
    addresses: SharedMap<String, WorkerId>,
    /// Workers by the model that they loaded last, in rank order.
    holders: SharedMap<String, SharedSet<(String, WorkerId)>>,
    forgettable: SharedSet<(Time, WorkerId)>,
    /// Those that rest for some owners alone.
    doubted: SharedSet<WorkerId>,
    idle: usize,
    busy: usize,
    lost: usize,
    resting: usize,
}

/// Adds one to a number that something enters, or takes one away from it.
fn count(number: &mut usize, counts: bool, enters: bool) {
    match (counts, enters) {
        (true, true) => *number += 1,
        (true, false) => *number = number.saturating_sub(1),
        (false, _) => {}
    }
}

impl View {
    fn count(&mut self, worker: &Worker, abilities: &Abilities, availability: Availability, enters: bool) {
        let name = &worker.capabilities.numerics_class;
        let mut class = self.classes.get(name).cloned().unwrap_or_default();
        count(&mut class.serving, true, enters);
        count(&mut class.usable, availability.usable(), enters);
        let letting_go = availability.usable() && !availability.has_place && !availability.free();
        count(&mut class.letting_go, letting_go, enters);
        if availability.free() {
            let place = (worker.host_name.clone(), worker.id);
            match enters {
                true => class.free.insert_mut(place, abilities.clone()),
                false => drop(class.free.remove_mut(&place)),
            }
        }
        if class.serving == 0 {
            self.classes.remove_mut(name);
        } else {
            self.classes.insert_mut(name.clone(), class);
        }
    }

    fn of<'a>(needs: &Needs, workers: impl Iterator<Item = (&'a Worker, Availability)>) -> Self {
        let mut view = Self::default();
        for (worker, availability) in workers.filter(|(_, availability)| availability.serves()) {
            let abilities = Abilities::of(worker);
            if needs.are_met(&abilities) {
                view.count(worker, &abilities, availability, true);
            }
        }
        view
    }
}

impl Pool {
    /// A worker is known from now on.
    pub(super) fn enter(&mut self, worker: &Worker, availability: Availability) {
        self.addresses.insert_mut(worker.address.clone(), worker.id);
        self.count(worker, availability, true);
    }

    /// A worker is known no more, or is about to be another.
    pub(super) fn leave(&mut self, worker: &Worker, availability: Availability) {
        if self.addresses.get(&worker.address) == Some(&worker.id) {
            self.addresses.remove_mut(&worker.address);
        }
        self.count(worker, availability, false);
    }

    /// A worker changed from one availability to another.
    pub(super) fn moved(&mut self, worker: &Worker, from: Availability, to: Availability) {
        self.count(worker, from, false);
        self.count(worker, to, true);
    }

    fn count(&mut self, worker: &Worker, availability: Availability, enters: bool) {
        count(&mut self.idle, availability.state == WorkerState::Idle, enters);
        count(&mut self.busy, availability.state == WorkerState::Busy, enters);
        count(&mut self.lost, availability.state == WorkerState::Lost, enters);
        count(&mut self.resting, availability.connected() && availability.rests, enters);
        if let Some(since) = availability.forgettable {
            let key = (since, worker.id);
            match enters {
                true => self.forgettable.insert_mut(key),
                false => drop(self.forgettable.remove_mut(&key)),
            }
        }
        if availability.doubted > 0 && enters {
            self.doubted.insert_mut(worker.id);
        } else if availability.doubted > 0 {
            self.doubted.remove_mut(&worker.id);
        }
        self.hold(worker, enters);
        if !availability.serves() {
            return;
        }
        let abilities = Abilities::of(worker);
        self.all.count(worker, &abilities, availability, enters);
        let met: Vec<Needs> = self.views.keys().filter(|needs| needs.are_met(&abilities)).cloned().collect();
        for needs in met {
            if let Some(view) = self.views.get_mut(&needs) {
                view.count(worker, &abilities, availability, enters);
            }
        }
    }

    /// A worker holds its model from now on, or no longer.
    pub(super) fn hold(&mut self, worker: &Worker, holds: bool) {
        let Some(model) = &worker.model else { return };
        let mut holders = self.holders.get(model).cloned().unwrap_or_default();
        let place = (worker.host_name.clone(), worker.id);
        match holds {
            true => holders.insert_mut(place),
            false => drop(holders.remove_mut(&place)),
        }
        match holders.is_empty() {
            true => drop(self.holders.remove_mut(model)),
            false => self.holders.insert_mut(model.clone(), holders),
        }
    }

    /// A job needs this of its workers from now on, of which these are known.
    pub(super) fn want<'a>(
        &mut self,
        needs: &Needs,
        workers: impl Iterator<Item = (&'a Worker, Availability)>,
    ) {
        if *needs == Needs::default() {
            return;
        }
        if !self.views.contains_key(needs) {
            self.views.insert_mut(needs.clone(), View::of(needs, workers));
        }
        if let Some(view) = self.views.get_mut(needs) {
            view.jobs += 1;
        }
    }

    /// A job that needed this needs it no more.
    pub(super) fn unwant(&mut self, needs: &Needs) {
        let Some(view) = self.views.get_mut(needs) else { return };
        view.jobs -= 1;
        if view.jobs == 0 {
            self.views.remove_mut(needs);
        }
    }

    /// Whether another job may need this, where jobs may need so many different things.
    pub(super) fn has_room_for(&self, needs: &Needs, most: usize) -> bool {
        self.known_view(needs).is_some() || self.views.size() < most
    }

    /// The workers that have what a job needs, of all that are known.
    fn view<'a>(
        &self,
        needs: &Needs,
        workers: impl Iterator<Item = (&'a Worker, Availability)>,
    ) -> Cow<'_, View> {
        match self.known_view(needs) {
            Some(view) => Cow::Borrowed(view),
            // Of a job that is about to come.
            None => Cow::Owned(View::of(needs, workers)),
        }
    }

    fn known_view(&self, needs: &Needs) -> Option<&View> {
        if *needs == Needs::default() { Some(&self.all) } else { self.views.get(needs) }
    }

    /// Without the addresses, which depend on the order of arrival.
    pub(super) fn counts(&self) -> Self {
        Self { addresses: SharedMap::default(), ..self.clone() }
    }

    pub(super) fn count_of(&self, state: WorkerState) -> usize {
        match state {
            WorkerState::Idle => self.idle,
            WorkerState::Busy => self.busy,
            WorkerState::Lost => self.lost,
        }
    }

    /// Workers with a session.
    pub(super) fn connected(&self) -> usize {
        self.idle + self.busy
    }

    /// Workers that get no rank of some owner for a while.
    pub(super) fn doubted(&self) -> impl Iterator<Item = WorkerId> {
        self.doubted.iter().copied()
    }

    /// Connected workers that get no rank for a while.
    pub(super) fn resting(&self) -> usize {
        self.resting
    }

    /// The most workers with what is needed that one of these classes would have free if nobody had a rank.
    pub(super) fn largest_class(&self, needs: &Needs, wanted: impl Fn(&str) -> bool) -> usize {
        let classes = self.known_view(needs).into_iter().flat_map(|view| view.classes.iter());
        classes.filter(|(name, _)| wanted(name)).map(|(_, class)| class.usable).max().unwrap_or(0)
    }

    /// Every numerics class of which a worker is connected.
    pub(super) fn classes(&self) -> impl Iterator<Item = &str> {
        self.all.classes.iter().map(|(name, _)| name.as_str())
    }

    /// Whether a worker of this class is free that has what is needed, and that none of `kept` asks for.
    pub(super) fn has_free<'a>(
        &self,
        class: &str,
        needs: &Needs,
        mut kept: impl Iterator<Item = &'a Needs> + Clone,
    ) -> bool {
        let Some(class) = self.known_view(needs).and_then(|view| view.classes.get(class)) else {
            return false;
        };
        // Whoever has what is needed has what those need.
        if kept.clone().any(|kept| needs.include(kept)) {
            return false;
        }
        class.free.values().any(|worker| !kept.any(|kept| kept.are_met(worker)))
    }

    /// Workers of this class, with what is needed, that are free in a moment: they let go of a rank that is none any more.
    pub(super) fn letting_go(&self, class: &str, needs: &Needs) -> usize {
        let class = self.known_view(needs).and_then(|view| view.classes.get(class));
        class.map_or(0, |class| class.letting_go)
    }

    /// Every numerics class that has a free worker, in the order of their names.
    pub(super) fn free_classes(&self) -> impl Iterator<Item = &str> {
        self.all.classes.iter().filter(|(_, class)| !class.free.is_empty()).map(|(name, _)| name.as_str())
    }

    /// The first free worker of a class that can join a running ring, without those in `except`.
    pub(super) fn spare_of(&self, class: &str, except: &BTreeSet<WorkerId>) -> Option<WorkerId> {
        let free = self.all.classes.get(class).into_iter().flat_map(|class| class.free.iter());
        let mut spares = free.filter(|(_, abilities)| abilities.reforms).map(|((_, worker), _)| *worker);
        spares.find(|worker| !except.contains(worker))
    }

    /// The worker that last announced this address.
    pub(super) fn at_address(&self, address: &str) -> Option<WorkerId> {
        self.addresses.get(address).copied()
    }

    /// The worker that is gone for longest, of those that no ring waits for.
    pub(super) fn longest_lost(&self) -> Option<WorkerId> {
        self.forgettable.first().map(|(_, worker)| *worker)
    }
}

//! The life of a rank, as the worker's tasks live it: pure, and with every moment at which it can be cut off.

use std::sync::Arc;

use ringtune_shared::{
    ids::Epoch,
    job::LiveOrder,
    ring::{EntryPlan, RingView, Standing, block_of},
};
use ringtune_worker::{
    ring::{Trouble, TroubleKind},
    session::{Assignment, NextRing, RankEvent, RankKey, RankOrders, StepSummary},
};

use crate::{
    chain::{self, State},
    check::rate_of,
    events::{Event, RingKey},
    faults::Planted,
    files::Files,
    ring::Row,
    world::{World, number_of},
};

/// A neighbour that is not reached for so long is not waited for.
const VIGIL: i64 = 2_500;

/// A life's activity.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum At {
    Preparing,
    Prepared,
    /// Waits for its neighbours.
    Connect,
    /// Sees whether all work on the same.
    Agree,
    Stand,
    Fetch(EntryPlan),
    Tell(EntryPlan),
    Close,
    /// Settles with the others what was ordered.
    Order,
    /// Opens the files. Nothing cuts that off.
    Begin,
    Compute,
    Gather,
    /// A second collective of the same step.
    Judge,
    /// A step is on its way to being done. Nothing cuts that off.
    Settle,
    /// Done with all steps.
    Last,
    Done,
    Waiting,
    /// Its files are on their way; then this is its last word.
    Finish(RankEvent),
}

/// A rank's life.
pub(crate) struct Life {
    pub(crate) number: u64,
    pub(crate) key: RankKey,
    pub(crate) ring: RingView,
    pub(crate) rank: Option<usize>,
    re_forms: bool,
    /// It goes on from a checkpoint, after this step.
    pub(crate) from: Option<u64>,
    pub(crate) orders: RankOrders,
    /// What users ordered of the job.
    pub(crate) ordered: Vec<LiveOrder>,
    pub(crate) at: At,
    pub(crate) clock: u64,
    /// The last settled step, and the state after it.
    pub(crate) step: u64,
    pub(crate) state: State,
    /// The trainee's state: ahead of the settled one in the middle of a step.
    pub(crate) trainee: State,
    pub(crate) unstored: Vec<StepSummary>,
    stored: u64,
    /// News of a step's last gather.
    heard: (Epoch, u64),
    /// The step after which it came into its ring.
    pub(crate) entered_at: u64,
    /// Reports of steps that it did not do.
    pub(crate) told: Vec<StepSummary>,
    /// The trouble that broke its ring.
    pub(crate) lost: Option<Trouble>,
    pub(crate) files: Option<Files>,
    pub(crate) learned: bool,
    pub(crate) microbatches: usize,
    pub(crate) steps: u64,
}

impl Life {
    pub(crate) fn ring_key(&self) -> RingKey {
        (self.key.job, self.ring.epoch)
    }

    pub(crate) fn is_first(&self) -> bool {
        self.rank == Some(0)
    }

    pub(crate) fn is_in_first_ring(&self) -> bool {
        self.ring.epoch == self.key.epoch && self.from.is_none()
    }

    pub(crate) fn keeps(&self) -> bool {
        self.orders.end.is_some_and(|end| end.keep_artifacts)
    }

    fn newer(&self) -> Option<Arc<NextRing>> {
        self.orders.ring_after(self.ring.epoch).cloned()
    }

    fn is_over(&self) -> bool {
        self.step >= self.steps
    }
}

impl World {
    pub(crate) fn begin_life(&mut self, worker: usize, given: Assignment) {
        self.count += 1;
        let (number, key) = (self.count, given.key());
        let wanted = self.wanted(key.job);
        let (steps, microbatches) = (wanted.steps, wanted.microbatches);
        let resumed = ringtune_shared::ids::ContentHash::from_uri(&given.resume_from).ok();
        let (from, state) = match resumed {
            None => (None, chain::start(key.job)),
            Some(hash) => {
                let (step, state) = self.contents[&hash];
                (Some(step), state)
            }
        };
        let step = from.unwrap_or_default();
        self.check_resumed(key.job, &given, step);
        let life = Life {
            number,
            key,
            ring: given.ring,
            rank: given.rank,
            re_forms: given.re_forms,
            from,
            orders: RankOrders::default(),
            ordered: given.orders,
            at: At::Preparing,
            clock: 0,
            step,
            state,
            trainee: state,
            unstored: Vec::new(),
            stored: 0,
            heard: (key.epoch, 0),
            entered_at: step,
            told: Vec::new(),
            lost: None,
            files: None,
            learned: false,
            microbatches,
            steps,
        };
        self.nodes[worker].life = Some(life);
        if given.rank.is_some() {
            self.take_seat(worker);
        }
        self.be_at(worker, At::Preparing, Some((100, 500)));
    }

    /// A life goes on to something else, which takes so long by itself.
    pub(crate) fn be_at(&mut self, worker: usize, at: At, takes: Option<(i64, i64)>) {
        let Some(life) = &mut self.nodes[worker].life else { return };
        (life.at, life.clock) = (at, life.clock + 1);
        let (number, clock) = (life.number, life.clock);
        if let Some((least, most)) = takes {
            self.after(least, most, Event::Clock { worker, life: number, clock });
        }
        self.look(worker);
    }

    pub(crate) fn life(&mut self, worker: usize) -> &mut Life {
        self.nodes[worker].life.as_mut().expect("a life")
    }

    pub(crate) fn says(&mut self, worker: usize, event: RankEvent) {
        let key = self.life(worker).key;
        self.say(worker, key, event);
    }

    /// Orders came, or the ring broke, or something new was begun: does it go on?
    pub(crate) fn look(&mut self, worker: usize) {
        let Some(life) = &self.nodes[worker].life else { return };
        let (ends, keeps) = (life.orders.end.is_some(), life.keeps());
        let newer = life.newer();
        match &life.at {
            At::Preparing if ends => self.die(worker, RankEvent::Stopped),
            At::Prepared if ends => self.die(worker, RankEvent::Stopped),
            At::Prepared if life.orders.train || life.orders.ring.is_some() => match life.rank {
                Some(_) => self.enter(worker),
                None => self.be_without(worker, None),
            },
            At::Connect | At::Agree | At::Stand | At::Fetch(_) | At::Tell(_) | At::Close | At::Order => {
                if ends {
                    self.stop(worker);
                } else if newer.is_some() {
                    self.be_without(worker, None);
                } else if let Some(trouble) = life.lost.clone() {
                    self.be_without(worker, Some(trouble));
                }
            }
            At::Compute | At::Gather | At::Judge | At::Last => {
                if ends {
                    self.stop(worker);
                } else if newer.is_some_and(|newer| !newer.after_step) {
                    self.be_without(worker, None);
                } else if let Some(trouble) = life.lost.clone() {
                    self.be_without(worker, Some(trouble));
                } else if life.files.as_ref().is_some_and(|files| files.refused) {
                    let fault = ringtune_worker::fault::Fault::Node;
                    let reason = "a file was refused".to_owned();
                    self.die(worker, RankEvent::Failed { reason, fault });
                }
            }
            At::Done if ends && !keeps => self.die(worker, RankEvent::Stopped),
            At::Done | At::Waiting => {
                if ends {
                    self.leave_ring(worker, false);
                    self.stop_between(worker);
                } else if let Some(next) = newer {
                    self.take_place(worker, &next);
                }
            }
            At::Finish(_) if ends && !keeps => self.die(worker, RankEvent::Stopped),
            _ => {}
        }
    }

    /// Its wait is over.
    pub(crate) fn time_is_over(&mut self, worker: usize) {
        match self.life(worker).at.clone() {
            At::Preparing => {
                self.says(worker, RankEvent::Ready);
                self.be_at(worker, At::Prepared, None);
            }
            At::Connect => {
                let life = self.life(worker);
                let (own, size) = (life.rank.unwrap_or_default(), life.ring.members.len());
                let neighbours = [(own + 1) % size, (own + size - 1) % size];
                let whose = neighbours.map(|rank| (rank, number_of(life.ring.members[rank].worker)));
                let lost = whose.into_iter().find(|(_, other)| !self.is_reached(worker, *other));
                // A neighbour that answers is waited for.
                let Some((rank, _)) = lost else {
                    return self.be_at(worker, At::Connect, Some((VIGIL, VIGIL)));
                };
                let (kind, text) = (TroubleKind::Unreachable, "it did not answer".to_owned());
                self.life(worker).lost = Some(Trouble { kind, rank, text });
                self.look(worker);
            }
            At::Fetch(plan) => self.has_fetched(worker, &plan),
            At::Begin => self.has_begun(worker),
            At::Compute => self.has_computed(worker),
            At::Settle => self.has_settled(worker),
            _ => {}
        }
    }

    /// Has its seat, and connects.
    fn enter(&mut self, worker: usize) {
        let life = self.life(worker);
        if life.is_in_first_ring() && life.is_first() && life.files.is_none() {
            life.files = Some(Files::new(true, 0));
        }
        self.be_at(worker, At::Connect, Some((VIGIL, VIGIL)));
        if self.nodes[worker].life.as_ref().is_some_and(|life| life.at == At::Connect) {
            self.dial_neighbours(worker);
        }
    }

    pub(crate) fn ring_stands(&mut self, worker: usize) {
        self.be_at(worker, At::Agree, None);
        if self.nodes[worker].life.as_ref().is_some_and(|life| life.at == At::Agree) {
            self.give(worker, Row::Plain);
        }
    }

    /// A collective is over.
    pub(crate) fn has_gathered(&mut self, worker: usize, rows: Vec<Row>) {
        match self.life(worker).at.clone() {
            At::Agree => {
                let life = self.life(worker);
                life.entered_at = life.step;
                let standing = Standing { step: life.step, state: chain::hash(life.state) };
                self.next(worker, At::Stand, Row::Standing(standing));
            }
            At::Stand => self.plan(worker, &rows),
            At::Tell(plan) => self.was_told(worker, plan, &rows),
            At::Close => {
                let settled = self.life(worker).ordered.iter().map(|order| order.settled).collect();
                self.next(worker, At::Order, Row::Settled(settled));
            }
            At::Order => {
                let known = rows.into_iter().filter_map(|row| match row {
                    Row::Settled(settled) => Some(settled),
                    _ => None,
                });
                let known: Vec<Vec<Option<u64>>> = known.collect();
                let life = self.life(worker);
                assert!(known.iter().all(|row| row.len() == life.ordered.len()), "ranks know other orders");
                LiveOrder::agree(&mut life.ordered, life.step, &known);
                if life.is_first() && life.files.is_none() {
                    let from = life.from.unwrap_or_default();
                    life.files = Some(Files::new(false, from));
                    return self.be_at(worker, At::Begin, Some((5, 30)));
                }
                self.run_in_ring(worker);
            }
            At::Gather => self.sum(worker, &rows),
            At::Judge => self.be_at(worker, At::Settle, Some((1, 3))),
            At::Last => self.all_done(worker),
            _ => {}
        }
    }

    /// Goes on to the next collective.
    pub(crate) fn next(&mut self, worker: usize, at: At, row: Row) {
        let seen = at.clone();
        self.be_at(worker, at, None);
        if self.nodes[worker].life.as_ref().is_some_and(|life| life.at == seen) {
            self.give(worker, row);
        }
    }

    /// It knows which checkpoints are kept, or gave up asking.
    fn has_begun(&mut self, worker: usize) {
        if self.reaches_coordinator(worker) {
            let (job, step, state) = {
                let life = self.life(worker);
                (life.key.job, life.step, life.state)
            };
            let kept = self.coordinator.disk.checkpoints_of(job);
            if let Some(files) = &mut self.life(worker).files {
                files.kept = kept.into();
            }
            if step > 0 && self.due(step) {
                self.save_checkpoint(worker, step, state);
            }
        }
        self.run_in_ring(worker);
    }

    fn run_in_ring(&mut self, worker: usize) {
        let life = self.life(worker);
        let (epoch, step) = (life.ring.epoch, life.step);
        self.says(worker, RankEvent::Entered { epoch, step });
        self.check_state(worker);
        self.check_entered(worker);
        if self.life(worker).is_over() {
            self.life(worker).learned = true;
            return self.next(worker, At::Last, Row::Plain);
        }
        self.step(worker);
    }

    fn step(&mut self, worker: usize) {
        if self.life(worker).is_over() {
            return self.next(worker, At::Last, Row::Plain);
        }
        self.be_at(worker, At::Compute, Some((60, 240)));
    }

    fn has_computed(&mut self, worker: usize) {
        let life = self.life(worker);
        let (before, step) = (life.trainee, life.step + 1);
        let (rank, size) = (life.rank.unwrap_or_default(), life.ring.members.len());
        let parts = block_of(rank, size, life.microbatches)
            .map(|microbatch| (microbatch, chain::part(before, step, microbatch)))
            .collect();
        let epoch = life.newer().map_or(life.ring.epoch, |newer| newer.view.epoch);
        let stored = life.orders.stored_step.max(life.stored);
        self.next(worker, At::Gather, Row::Parts(parts, epoch, stored));
    }

    fn sum(&mut self, worker: usize, rows: &[Row]) {
        let own_first = self.planted == Some(Planted::OrderOfSum);
        let life = self.life(worker);
        let step = life.step + 1;
        let mut parts = Vec::new();
        life.heard = (life.ring.epoch, 0);
        for row in rows {
            let Row::Parts(some, epoch, stored) = row else { panic!("a step's gather gave {row:?}") };
            parts.extend(some.iter().map(|(_, part)| *part));
            life.heard = (life.heard.0.max(*epoch), life.heard.1.max(*stored));
        }
        if own_first && life.ring.epoch > life.key.epoch {
            parts.rotate_left(life.rank.unwrap_or_default());
        }
        life.trainee = chain::after(life.trainee, step, parts);
        if step.is_multiple_of(2) {
            return self.next(worker, At::Judge, Row::Plain);
        }
        self.be_at(worker, At::Settle, Some((1, 3)));
    }

    /// A step is done.
    fn has_settled(&mut self, worker: usize) {
        let life = self.life(worker);
        (life.step, life.state, life.learned) = (life.step + 1, life.trainee, true);
        let learning_rate = rate_of(life.step, &life.ordered);
        let (step, state, epoch) = (life.step, life.state, life.ring.epoch);
        let summary = StepSummary {
            step,
            loss: 0.5,
            learning_rate,
            step_seconds: 0.1,
            compute_seconds: 0.1,
            world_size: life.ring.members.len(),
            epoch,
            state: Some(chain::hash(state)),
            ..StepSummary::default()
        };
        if let Some(files) = &mut life.files {
            files.record(step);
        }
        if life.re_forms {
            life.unstored.push(summary);
        }
        let (heard, keeps_files) = (life.heard, life.files.is_some());
        self.check_state(worker);
        self.check_rate(worker, step, learning_rate);
        if keeps_files && self.due(step) {
            self.save_checkpoint(worker, step, state);
        }
        self.says(worker, RankEvent::Step(summary));
        let life = self.life(worker);
        if heard.1 > life.stored {
            life.stored = heard.1;
            life.unstored.retain(|one| one.step > heard.1);
            self.says(worker, RankEvent::Stored(heard.1));
        }
        if !self.life(worker).is_over() && heard.0 > epoch {
            self.leave_ring(worker, true);
            return self.wait(worker, None);
        }
        self.step(worker);
    }

    fn all_done(&mut self, worker: usize) {
        self.leave_ring(worker, true);
        if self.life(worker).is_first() {
            return self.finish(worker, RankEvent::Finished);
        }
        let epoch = self.life(worker).ring.epoch;
        self.says(worker, RankEvent::Done { epoch });
        self.be_at(worker, At::Done, None);
    }

    /// Its ring broke, or another one is wanted at once.
    fn be_without(&mut self, worker: usize, trouble: Option<Trouble>) {
        self.leave_ring(worker, false);
        self.wait(worker, trouble);
    }

    fn wait(&mut self, worker: usize, trouble: Option<Trouble>) {
        let cut_off = self.planted == Some(Planted::DoubledStep);
        let life = self.life(worker);
        life.lost = None;
        if cut_off && trouble.is_some() {
            life.state = life.trainee;
        }
        life.trainee = life.state;
        if let Some(next) = life.newer() {
            return self.take_place(worker, &next);
        }
        let (epoch, step) = (life.ring.epoch, life.step);
        self.says(worker, RankEvent::Waiting { epoch, step, trouble });
        self.be_at(worker, At::Waiting, None);
    }

    fn take_place(&mut self, worker: usize, next: &NextRing) {
        self.leave_ring(worker, false);
        if next.rank.is_none() {
            return self.die(worker, RankEvent::Stopped);
        }
        let life = self.life(worker);
        (life.ring, life.rank, life.lost) = (next.view.clone(), next.rank, None);
        LiveOrder::hear(&mut life.ordered, &next.orders);
        self.take_seat(worker);
        self.enter(worker);
    }

    /// Its last word.
    pub(crate) fn die(&mut self, worker: usize, word: RankEvent) {
        self.says(worker, word);
        self.leave_ring(worker, false);
        self.nodes[worker].life = None;
    }
}

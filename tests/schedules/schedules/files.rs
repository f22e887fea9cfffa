//! Uploads of rank 0: checkpoints, and results at the end.

use std::collections::VecDeque;

use ringtune_coordinator::core::{ArtifactRecord, Input, Time};
use ringtune_shared::{checkpoint::file_name, ids::ContentHash};
use ringtune_worker::session::RankEvent;

use crate::{
    chain::{self, State},
    chance::mix,
    events::{Answer, Event},
    faults::Planted,
    life::At,
    world::World,
};

/// train.checkpointing_steps, and how many are kept.
pub(crate) const EVERY: u64 = 2;
pub(crate) const LIMIT: usize = 1;
/// Maximal repeats of a refused upload.
const MOST_REPEATS: u32 = 5;

/// An order for the coordinator.
#[derive(Clone, Debug, PartialEq)]
enum Order {
    /// Not before the report of this step is stored, if one is named.
    Upload(String, ContentHash, Option<u64>),
    Delete(String),
}

/// The files of a life that is, or was, rank 0.
#[derive(Debug)]
pub(crate) struct Files {
    /// It has written every step itself.
    own: bool,
    /// The steps in its table.
    recorded: Vec<u64>,
    /// Checkpoints, the oldest first.
    pub(crate) kept: VecDeque<u64>,
    from: u64,
    queue: VecDeque<Order>,
    flying: bool,
    repeats: u32,
    pub(crate) refused: bool,
}

impl Files {
    pub(crate) fn new(own: bool, from: u64) -> Self {
        Self {
            own,
            recorded: Vec::new(),
            kept: VecDeque::new(),
            from,
            queue: VecDeque::new(),
            flying: false,
            repeats: 0,
            refused: false,
        }
    }

    /// A step goes into the table.
    pub(crate) fn record(&mut self, step: u64) {
        self.recorded.push(step);
    }

    fn is_behind(&self, step: u64) -> bool {
        step > self.kept.back().copied().unwrap_or(self.from)
    }
}

impl World {
    /// Whether the state after a step is kept.
    pub(crate) fn due(&self, step: u64) -> bool {
        step.is_multiple_of(EVERY)
    }

    pub(crate) fn save_checkpoint(&mut self, worker: usize, step: u64, state: State) {
        let early = self.planted == Some(Planted::CheckpointDeletedEarly);
        let Some(life) = &mut self.nodes[worker].life else { return };
        let job = life.key.job;
        let Some(files) = &mut life.files else { return };
        if files.kept.back().is_some_and(|newest| *newest >= step) {
            return;
        }
        let hash = content(&file_name(step), chain::hash(state));
        self.contents.insert(hash, (step, state));
        let number = life.number;
        let pending = life.unstored.iter().any(|one| one.step == step);
        let upload = Order::Upload(file_name(step), hash, pending.then_some(step));
        files.kept.push_back(step);
        let mut orders = vec![upload];
        while files.kept.len() > LIMIT {
            let Some(oldest) = files.kept.pop_front() else { break };
            orders.push(Order::Delete(file_name(oldest)));
        }
        if early {
            orders.reverse();
        }
        files.queue.extend(orders);
        self.tell(|| format!("worker {worker} keeps step {step} of {}", crate::coordinator::short(job)));
        self.send_next(worker, number, 1, 10);
    }

    pub(crate) fn send_next(&mut self, worker: usize, life: u64, least: i64, most: i64) {
        let Some(living) = self.nodes[worker].life.as_mut().filter(|one| one.number == life) else { return };
        let orders = &living.orders;
        let may_go = |order: &Order| match order {
            Order::Upload(_, _, Some(step)) => orders.has_stored(*step),
            _ => true,
        };
        if let Some(files) = &mut living.files
            && !files.flying
            && files.queue.front().is_some_and(may_go)
            && !files.refused
        {
            files.flying = true;
            self.after(least, most, Event::Upload { worker, life });
        }
    }

    pub(crate) fn upload(&mut self, worker: usize, life: u64) {
        let reached = self.reaches_coordinator(worker);
        let Some(living) = self.nodes[worker].life_is(life) else { return };
        let Some(order) = living.files.as_ref().and_then(|files| files.queue.front().cloned()) else {
            return;
        };
        if !reached {
            return self.after(1, 5, Event::Answer { worker, life, answer: Answer::Away });
        }
        // Of the newest ring in which it has a place.
        let newest = living.orders.ring.as_ref().filter(|ring| ring.rank.is_some());
        let first = living.key.epoch;
        let epoch = Some(newest.map_or(first, |ring| ring.view.epoch.max(first)));
        let job = living.key.job;
        let input = match order {
            Order::Upload(name, hash, _) => {
                let created = Time(self.now);
                let media_type = String::new();
                let artifact = ArtifactRecord { job, name, hash, size: 1, media_type, created, epoch };
                Input::KeepArtifact { artifact }
            }
            Order::Delete(name) => Input::DropArtifact { job, name, epoch },
        };
        self.request(input, Some((worker, life)));
    }

    pub(crate) fn answered(&mut self, worker: usize, life: u64, answer: Answer) {
        let reached = self.reaches_coordinator(worker);
        let Some(living) = self.nodes[worker].life.as_mut().filter(|one| one.number == life) else { return };
        let job = living.key.job;
        let Some(files) = &mut living.files else { return };
        files.flying = false;
        match answer {
            Answer::Done if reached => {
                files.repeats = 0;
                if let Some(Order::Upload(name, hash, _)) = files.queue.pop_front() {
                    self.acknowledged(job, name, hash);
                }
                self.send_next(worker, life, 0, 3);
            }
            Answer::Refused => {
                files.repeats += 1;
                files.refused = files.repeats > MOST_REPEATS;
                self.send_next(worker, life, 100, 400);
            }
            Answer::Done | Answer::Away => self.send_next(worker, life, 100, 600),
        }
        self.look(worker);
        self.finish_if_sent(worker);
    }

    /// Asked to end in a ring: it leaves what it has, if that is wanted.
    pub(crate) fn stop(&mut self, worker: usize) {
        let Some(life) = &mut self.nodes[worker].life else { return };
        // The state of an interrupted step is irrelevant.
        let (keeps, learned, step, state) = (life.keeps(), life.learned, life.step, life.state);
        let behind = life.files.as_ref().is_some_and(|files| files.is_behind(step));
        if keeps && learned && behind {
            self.save_checkpoint(worker, step, state);
        }
        if keeps { self.finish(worker, RankEvent::Stopped) } else { self.die(worker, RankEvent::Stopped) }
    }

    /// Asked to end without a ring: nobody knows whether another one can keep the state.
    pub(crate) fn stop_between(&mut self, worker: usize) {
        let Some(life) = &mut self.nodes[worker].life else { return };
        if life.keeps() {
            let (step, state, from) = (life.step, life.state, life.from.unwrap_or_default());
            let files = life.files.get_or_insert_with(|| Files::new(false, from));
            if files.is_behind(step) {
                self.save_checkpoint(worker, step, state);
            }
            return self.finish(worker, RankEvent::Stopped);
        }
        self.die(worker, RankEvent::Stopped);
    }

    /// Waits until its files are there; then it says its last word.
    pub(crate) fn finish(&mut self, worker: usize, word: RankEvent) {
        let Some(life) = &mut self.nodes[worker].life else { return };
        let (step, state, number) = (life.step, chain::hash(life.state), life.number);
        if word == RankEvent::Finished
            && let Some(files) = &mut life.files
        {
            assert_eq!(step, life.steps, "it finishes after step {step}");
            let name = "learned_embeds.bin".to_owned();
            files.queue.push_back(Order::Upload(name, content("", state), None));
        }
        self.be_at(worker, At::Finish(word), None);
        self.send_next(worker, number, 1, 10);
        self.finish_if_sent(worker);
    }

    fn finish_if_sent(&mut self, worker: usize) {
        let Some(life) = &self.nodes[worker].life else { return };
        let At::Finish(word) = life.at.clone() else { return };
        let is_sent = life.files.as_ref().is_none_or(|files| files.queue.is_empty());
        if life.files.as_ref().is_some_and(|files| files.refused) {
            let (reason, fault) = ("a file was refused".to_owned(), ringtune_worker::fault::Fault::Node);
            // A rank that was asked to end says nothing more.
            let stops = word == RankEvent::Stopped;
            return self.die(worker, if stops { word } else { RankEvent::Failed { reason, fault } });
        }
        if is_sent {
            if word == RankEvent::Finished {
                self.check_table(worker);
            }
            self.die(worker, word);
        }
    }

    /// The table of all steps has each of them once.
    fn check_table(&mut self, worker: usize) {
        let Some(life) = &self.nodes[worker].life else { return };
        let Some(files) = &life.files else { return };
        let all: Vec<u64> = (1..=life.steps).collect();
        if files.own {
            assert_eq!(files.recorded, all, "the table of worker {worker}");
            return;
        }
        let stored = self.coordinator.disk.steps.get(&life.key.job).into_iter().flatten();
        let mut steps: Vec<u64> = stored.map(|step| step.step).collect();
        steps.extend(life.unstored.iter().map(|step| step.step));
        steps.sort_unstable();
        steps.dedup();
        assert_eq!(steps, all, "the table of worker {worker}, rank 0 since a later ring");
    }
}

/// The hash of a file with this name and state in it.
fn content(name: &str, state: ContentHash) -> ContentHash {
    let mut bytes = state.0;
    let name = name.bytes().fold(7, |all, byte| mix(all ^ u64::from(byte)));
    for (byte, other) in bytes.iter_mut().zip(name.to_le_bytes()) {
        *byte ^= other;
    }
    ContentHash(bytes)
}

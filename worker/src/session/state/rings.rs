//! Events of a rank's life, and its way from one ring to the next.

use std::sync::Arc;

use super::{Effect, Message, NextRing, Phase, RankEvent, RankKey, SHUTTING_DOWN, Session, report, unstored};
use crate::fault::Fault;

impl Session {
    /// The job goes on in another ring. Whoever works on it is told; whoever does not says so, so that nobody waits.
    pub(super) fn enter_ring(&mut self, ring: NextRing) -> Vec<Effect> {
        let key = ring.key();
        let running = self.running;
        let Some(held) = self.held.get_mut(&key.job) else {
            // Let go already, which is all that is asked of a rank without a place.
            let reason = "this worker does not hold the job".to_owned();
            return ring.rank.map_or_else(Vec::new, |rank| self.refuse(key, Some(rank), reason));
        };
        if held.shown.key.epoch >= key.epoch {
            return self.known(key).unwrap_or_default();
        }
        let running = running.filter(|running| running.key == held.life);
        match (running, ring.rank) {
            (None, None) => {
                self.held.remove(&key.job);
                Vec::new()
            }
            (None, Some(rank)) => {
                held.waiting = None;
                let finished = held.shown.phase == Phase::Finished && rank == 0;
                if finished {
                    // All that a rank 0 has to do is done, and its files are there.
                    (held.shown.key, held.shown.rank) = (key, Some(rank));
                    return unstored(held).chain([report(held, None)]).collect();
                }
                if held.shown.phase != Phase::Failed {
                    held.shown.phase = Phase::Failed;
                    held.shown.reason = "its work on the job has ended already".to_owned();
                }
                held.shown.fault = Some(held.shown.fault.unwrap_or(Fault::Node));
                (held.shown.key, held.shown.rank) = (key, Some(rank));
                vec![report(held, None)]
            }
            // It says how it ends, in whatever ring.
            (Some(running), _) if running.ending.is_some() => Vec::new(),
            (Some(running), None) => {
                held.let_go = true;
                vec![Effect::Enter(running.key, Arc::new(ring))]
            }
            (Some(running), Some(rank)) => {
                // What it saw is of the ring before. It trains on there to the end of the step, or is on its way.
                let goes_on = ring.after_step && held.shown.phase == Phase::Training;
                if !goes_on && held.shown.phase != Phase::Preparing {
                    held.shown.phase = Phase::Ready;
                }
                held.begun = true;
                held.shown.trouble = None;
                held.is_new_first = rank == 0 && (held.is_new_first || !held.is_first());
                (held.shown.key, held.shown.rank) = (key, Some(rank));
                vec![Effect::Enter(running.key, Arc::new(ring))]
            }
        }
    }

    /// Applies an event of a rank's life.
    pub(super) fn rank_event(&mut self, life: RankKey, event: RankEvent) -> Vec<Effect> {
        let was_asked = self.running.is_some_and(|running| running.key == life && running.was_asked);
        let tells_timings = self.timings;
        let Some(held) = self.living_mut(life) else {
            // Of a life that has been replaced: nobody asks any more how it went.
            return if event.is_last() { self.begin_next(life) } else { Vec::new() };
        };
        let (present, was_asked) = (held.shown.key.epoch, was_asked || held.let_go);
        match event {
            RankEvent::Progress(progress) => vec![report(held, Some(progress))],
            RankEvent::Ready => {
                held.shown.phase = Phase::Ready;
                vec![report(held, None)]
            }
            RankEvent::Step(step) => {
                // A step of an older ring may have been taken by another rank.
                let timings = (step.epoch == present).then(|| held.window.take(&step)).flatten();
                let timings = timings.filter(|_| tells_timings).zip(held.shown.rank);
                let mut effects = Vec::new();
                if held.take_step(step) {
                    effects.push(Effect::Send(Message::Step(held.shown.key, step)));
                }
                effects
                    .extend(timings.map(|(timings, rank)| {
                        Effect::Send(Message::Timings(held.shown.key, rank, timings))
                    }));
                effects
            }
            // Another rank heard it. What waits for it here is to hear it too.
            RankEvent::Stored(step) => {
                held.trim(step);
                vec![Effect::Stored(life, step)]
            }
            // It is told of a newer ring already: what it says of the one before it would be taken for that one's.
            RankEvent::Entered { epoch, step } if epoch < present => {
                held.shown.step = step;
                held.is_new_first = false;
                unstored(held).collect()
            }
            RankEvent::Entered { step, .. } => {
                (held.shown.phase, held.shown.step, held.shown.trouble) = (Phase::Training, step, None);
                // The rank 0 before it may not have got them to the coordinator.
                held.is_new_first = false;
                std::iter::once(report(held, None)).chain(unstored(held)).collect()
            }
            RankEvent::Waiting { epoch, step, trouble } => {
                held.shown.step = step;
                if epoch < present {
                    held.shown.phase = Phase::Ready;
                } else {
                    (held.shown.phase, held.shown.trouble) = (Phase::Waiting, trouble);
                }
                vec![report(held, None)]
            }
            // A rank 0 is done when its files are at the coordinator, which the one of the newer ring has still to see to.
            RankEvent::Done { epoch } if epoch < present && held.shown.rank == Some(0) => Vec::new(),
            // Also of a newer ring that it is told of already: rank 0, being done too, may never enter that one.
            RankEvent::Done { .. } => {
                held.shown.phase = Phase::Done;
                vec![report(held, None)]
            }
            RankEvent::Log(level, line) => {
                vec![Effect::Send(Message::Log(held.shown.key, held.shown.rank, level, line))]
            }
            RankEvent::Finished => self.end(life, Phase::Finished, ""),
            RankEvent::Failed { reason, fault } => self.fail(life, &reason, fault),
            RankEvent::NeighbourLost(reason) => {
                held.shown.neighbour_lost = true;
                self.fail(life, &reason, Fault::Link)
            }
            // Only the worker itself asked for it.
            RankEvent::Stopped if self.draining && !was_asked => {
                self.fail(life, SHUTTING_DOWN, Fault::Nobody)
            }
            RankEvent::Stopped => self.end(life, Phase::Stopped, ""),
        }
    }
}

//! A rank's way from one ring of its job to the next.
//!
//! A ring ends because it broke, because another one is wanted, or because all is done. The rank keeps what it has learned
//! and prepared, waits for the coordinator's word, and enters the next one.

use std::sync::Arc;

use ringtune_shared::{job::LiveOrder, version::REFORMING_RING_PROTOCOL};

use super::{Error, Left, LentRing, Orders, Rank, Work, entering};
use crate::{
    journal::LOG_FILE,
    ring::{self, Seat, Trouble},
    session::{Assignment, NextRing, RankEvent, dropped, ended},
};

/// A rank, and its place among others.
pub(super) struct Life {
    pub(super) rank: Rank,
    /// Its place in the ring of its epoch, until it is connected.
    pub(super) seat: Option<Seat>,
    pub(super) ring: LentRing,
}

/// The end of the work in all rings.
pub(super) enum Worked {
    /// Done; this rank reports it.
    Done,
    /// The rank was released.
    LetGo,
    /// Asked to end while it had no ring.
    StoppedBetweenRings,
}

/// Why a rank has no ring.
enum Without {
    /// It broke.
    Broken(Trouble),
    /// A newer one is wanted, or this rank has had none yet.
    Changing,
    /// Done; another rank writes the files.
    Done,
    /// All ranks are ending, and have left the ring.
    Ending,
}

/// The end of a wait for a ring.
enum Next {
    Ring(Arc<NextRing>),
    End,
}

impl Life {
    /// Goes from ring to ring until the work is done.
    pub(super) async fn work_in_rings<W: Work>(
        &mut self,
        work: &mut W,
        orders: &mut Orders,
    ) -> Result<Worked, Error> {
        loop {
            let worked = match self.seat {
                Some(_) => self.work_in_one(work, orders).await,
                None => Ok(Left::ToChange),
            };
            let without = match worked {
                Ok(Left::Done) if self.rank.assignment.is_first() || !self.can_change_rings() => {
                    self.ring.leave().await;
                    return Ok(Worked::Done);
                }
                Ok(Left::Done) => {
                    self.rank.journal.info(work.done()).await;
                    Without::Done
                }
                Ok(Left::ToChange) => {
                    self.ring.leave().await;
                    Without::Changing
                }
                Ok(Left::ToEnd) => {
                    // Frames that the others wait for would be lost with this rank's connections.
                    let mut told = orders.clone();
                    tokio::select! {
                        () = self.ring.leave() => (),
                        () = dropped(&mut told) => (),
                    }
                    Without::Ending
                }
                Err(Error::Ring(ring::Error::Replaced)) if self.can_change_rings() => Without::Changing,
                Err(error) => match error.trouble().filter(|_| self.can_change_rings()) {
                    Some(trouble) if self.ring.is_over() => {
                        let text =
                            format!("a certificate of the ring's connections has ended: {}", trouble.text);
                        self.rank.journal.info(text).await;
                        Without::Changing
                    }
                    Some(trouble) => Without::Broken(trouble),
                    None => return Err(error),
                },
            };
            let (is_done, is_ending) = (matches!(without, Without::Done), matches!(without, Without::Ending));
            let next = match without {
                Without::Done => self.wait_when_done(orders).await,
                Without::Ending => self.next(orders).await,
                Without::Broken(trouble) => {
                    // The neighbours' connections break with it: nobody finishes a step that others do not.
                    self.ring.break_off();
                    self.wait(work, Some(trouble), orders).await?
                }
                Without::Changing => {
                    self.ring.break_off();
                    self.wait(work, None, orders).await?
                }
            };
            self.ring.break_off();
            match next {
                // Its files are at the coordinator.
                Next::End if is_done && !is_to_keep(orders) => return Ok(Worked::LetGo),
                Next::End if is_ending => return Err(Error::Stopped),
                Next::End => return Ok(Worked::StoppedBetweenRings),
                Next::Ring(next) if next.rank.is_none() => {
                    self.rank.journal.info(format!("left the ring: {}", next.reason)).await;
                    return Ok(Worked::LetGo);
                }
                Next::Ring(next) => self.take_place(&next).await?,
            }
        }
    }

    /// Whether this ring may be followed by another one: all members and the coordinator have to know how.
    fn can_change_rings(&self) -> bool {
        let Assignment { re_forms, ring_protocol, .. } = &self.rank.assignment;
        *re_forms && *ring_protocol >= REFORMING_RING_PROTOCOL
    }

    /// Takes the seat that the assignment names.
    pub(super) fn take_seat(&mut self) -> Result<(), Error> {
        let Assignment { ring, rank, spec, ring_protocol, .. } = &self.rank.assignment;
        let rank = rank.ok_or(Error::Ring(ring::Error::Replaced))?;
        let rows = spec.global_microbatches() as usize;
        self.seat = Some(self.rank.context.rings.take_seat(ring, rank, rows, *ring_protocol)?);
        Ok(())
    }

    /// Enters the ring in which this rank has its seat, and works there.
    async fn work_in_one<W: Work>(&mut self, work: &mut W, orders: &mut Orders) -> Result<Left, Error> {
        let Some(seat) = self.seat.take() else { return Err(Error::Ring(ring::Error::Replaced)) };
        // A file that cannot be written is told before anybody waits for this rank.
        if self.rank.is_in_first_ring() {
            work.begin(&self.rank, orders).await?;
        }
        let epoch = self.rank.assignment.ring.epoch;
        let mut span = self.rank.span("enter");
        let (mut newer, rank, ring) = (orders.clone(), &mut self.rank, &mut self.ring);
        let entered = tokio::select! {
            entered = entering::enter(rank, work, seat, ring) => entered,
            _ = ended(orders) => Err(Error::Stopped),
            // Nothing is done here yet that could be taken to its end.
            Ok(_) = newer.wait_for(|orders| orders.ring_after(epoch).is_some()) => {
                Err(Error::Ring(ring::Error::Replaced))
            }
        };
        if entered.is_err() {
            span.fail();
        }
        drop(span);
        entered?;
        work.begin(&self.rank, orders).await?;
        work.run(&self.rank, &mut self.ring, orders).await
    }

    /// Waits for the next ring, and says so unless it is known already.
    async fn wait<W: Work>(
        &self,
        work: &mut W,
        trouble: Option<Trouble>,
        orders: &mut Orders,
    ) -> Result<Next, Error> {
        let epoch = self.rank.assignment.ring.epoch;
        if let Some(next) = orders.borrow().ring_after(epoch) {
            return Ok(Next::Ring(Arc::clone(next)));
        }
        let (journal, step) = (&self.rank.journal, work.last_step().await?);
        if let Some(trouble) = &trouble {
            let text = &trouble.text;
            journal.warn(format!("the ring of epoch {epoch} is broken after step {step}: {text}")).await;
        }
        journal.event(RankEvent::Waiting { epoch, step, trouble }).await;
        Ok(self.next(orders).await)
    }

    /// Says that all is done, leaves the ring when the others are done too, and waits for the end. Should rank 0 be lost
    /// with its files, there will be another ring.
    async fn wait_when_done(&mut self, orders: &mut Orders) -> Next {
        let epoch = self.rank.assignment.ring.epoch;
        self.rank.journal.event(RankEvent::Done { epoch }).await;
        let mut told = orders.clone();
        let over = told.wait_for(|orders| orders.end.is_some() || orders.ring_after(epoch).is_some());
        tokio::select! {
            () = self.ring.leave() => (),
            _ = over => (),
        }
        self.next(orders).await
    }

    async fn next(&self, orders: &mut Orders) -> Next {
        let epoch = self.rank.assignment.ring.epoch;
        let told = orders.wait_for(|orders| orders.end.is_some() || orders.ring_after(epoch).is_some()).await;
        match told {
            Ok(orders) if orders.end.is_none() => {
                orders.ring_after(epoch).cloned().map_or(Next::End, Next::Ring)
            }
            _ => Next::End,
        }
    }

    /// Takes the place that the next ring has for this rank.
    async fn take_place(&mut self, next: &NextRing) -> Result<(), Error> {
        let was_first = self.rank.assignment.is_first();
        let assignment = &mut self.rank.assignment;
        assignment.ring = next.view.clone();
        (assignment.rank, assignment.ring_protocol) = (next.rank, next.protocol);
        LiveOrder::hear(&mut assignment.orders, &next.orders);
        self.rank.journal.speak_as(next.rank, next.view.epoch);
        self.take_seat()?;
        if self.rank.assignment.is_first() && !was_first {
            let (journal, file) = (self.rank.journal.clone(), self.rank.folder.join(LOG_FILE));
            ringtune_shared::tasks::spawn_blocking(move || journal.write_to(&file)).await?;
        }
        let (members, epoch) = (next.view.members.len(), next.view.epoch);
        let rank = next.rank.unwrap_or_default();
        self.rank.journal.info(format!("epoch {epoch}, rank {rank} of {members}: {}", next.reason)).await;
        Ok(())
    }
}

/// Whether it was asked to end with what it has.
pub(super) fn is_to_keep(orders: &Orders) -> bool {
    orders.borrow().end.is_some_and(|end| end.keep_artifacts)
}

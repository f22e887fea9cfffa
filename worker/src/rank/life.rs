//! The life of a rank of any kind, from its assignment to its last word.

use std::time::Duration;

use ringtune_shared::version::VERSION;
use tokio::{sync::mpsc, time::timeout};

use super::{Context, Error, LentRing, Orders, Rank, Task, Work, agreement, folder::make_work_folder};
use crate::{
    journal::{Journal, LOG_FILE},
    ring::Seat,
    session::{Assignment, RankEvent, RankKey, dropped, ended},
};

/// A neighbour that fails tells the coordinator why, and the coordinator ends us. Only when that does not come is
/// "my neighbour is gone" the best reason there is.
const WAIT_FOR_A_BETTER_REASON: Duration = Duration::from_secs(3);
/// For what a failed job leaves.
const LAST_UPLOAD: Duration = Duration::from_secs(10);

/// Does the work and says how it ended; nothing else is ever the last word.
pub(crate) async fn live<T: Task>(
    task: T,
    assignment: Assignment,
    context: Context,
    mut orders: Orders,
    events: mpsc::Sender<(RankKey, RankEvent)>,
) {
    let key = assignment.key();
    let number = assignment.rank;
    let folder = context.rank_folder(key.job);
    let made = folder.clone();
    let folder_made = match tokio::task::spawn_blocking(move || make_work_folder(&made)).await {
        Ok(made) => made,
        Err(error) => Err(Error::Task(error)),
    };
    let log = (number == 0 && folder_made.is_ok()).then(|| folder.join(LOG_FILE));
    let journal = Journal::new(key, number, log, events);
    let rank = Rank { assignment, context, journal: journal.clone(), folder: folder.clone() };
    // In a task of its own, so that a panic is a reason too. Dropped with this one.
    let living = tokio::spawn(async move {
        let mut life = Life { rank, seat: None, ring: LentRing::default() };
        let outcome = match folder_made {
            Err(error) => Err(error),
            Ok(()) => Box::pin(life.run(task, &mut orders)).await,
        };
        (outcome, life)
    });
    let (outcome, life) = match tokio_util::task::AbortOnDropHandle::new(living).await {
        Ok((outcome, life)) => (outcome, Some(life)),
        Err(error) => (Err(Error::Task(error)), None),
    };
    let last_word = match outcome {
        Ok(()) => RankEvent::Finished,
        Err(Error::Stopped) => RankEvent::Stopped,
        Err(error) if error.is_loss_of_a_neighbour() => RankEvent::NeighbourLost(error.to_string()),
        Err(error) => RankEvent::Failed { reason: error.to_string(), fault: error.fault() },
    };
    // A temporary folder that stays is removed by the worker's next start.
    let _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(folder)).await;
    journal.event(last_word).await;
    // Not before: a neighbour that loses this rank has no better reason to give than that.
    drop(life);
}

/// A rank, and its place among others.
struct Life {
    rank: Rank,
    /// Its place, until it is connected.
    seat: Option<Seat>,
    ring: LentRing,
}

impl Life {
    async fn run<T: Task>(&mut self, task: T, orders: &mut Orders) -> Result<(), Error> {
        self.introduce().await;
        // 1. A place in the ring, so that a neighbour that is ready first finds it. It is given up last, after
        //    the reason for leaving has been said.
        let Assignment { ring, rank, spec, ring_protocol, .. } = &self.rank.assignment;
        let rows = spec.global_microbatches() as usize;
        self.seat = Some(self.rank.context.rings.take_seat(ring, *rank, rows, *ring_protocol)?);
        // 2. Prepare, and wait for the others.
        let prepared = tokio::select! {
            prepared = task.prepare(&self.rank) => prepared,
            _ = ended(orders) => return Err(Error::Stopped),
        };
        let journal = &self.rank.journal;
        if let Err(error) = &prepared {
            journal.error(format!("preparation failed: {error}")).await;
        }
        let mut work = prepared?;
        journal.event(RankEvent::Ready).await;
        match orders.wait_for(|orders| orders.train || orders.end.is_some()).await {
            Ok(orders) if orders.end.is_none() => (),
            _ => return Err(Error::Stopped),
        }
        // 3. Work, and leave something whatever happens.
        let worked = self.work(&mut work, orders).await;
        if worked.is_ok() {
            self.ring.leave().await;
        }
        // What else there is of the ring is kept up meanwhile: the neighbours wait for the last word.
        self.finish(&mut work, worked, orders).await
    }

    /// The first lines of its log.
    async fn introduce(&self) {
        let Rank { assignment, context, journal, .. } = &self.rank;
        let Assignment { ring, rank, spec, threads, precision, numerics_class, .. } = assignment;
        let (wanted, members) = (spec.mixed_precision().as_str(), ring.members.len());
        journal.info(format!("ringtune-worker {VERSION}, {}", context.about)).await;
        journal
            .info(format!(
                "rank {rank} of {members}, epoch {}, {threads} threads, class {numerics_class}",
                ring.epoch
            ))
            .await;
        journal.info(format!("computing in {precision} (the job asked for \"{wanted}\")")).await;
    }

    /// Joins the ring, makes sure that all ranks work on the same thing, and works.
    async fn work<W: Work>(&mut self, work: &mut W, orders: &mut Orders) -> Result<(), Error> {
        work.begin(&self.rank, orders).await?;
        let Some(seat) = self.seat.take() else { return Err(Error::Ring(crate::ring::Error::Replaced)) };
        let connected = tokio::select! {
            ring = seat.connect() => ring?,
            _ = ended(orders) => return Err(Error::Stopped),
        };
        let (ring, common) = (self.ring.put(connected), work.common());
        let agreed = tokio::select! {
            agreed = agreement::check(ring, &common) => agreed,
            _ = ended(orders) => Err(Error::Stopped),
        };
        if let Err(Error::Disagreement { .. }) = agreed {
            // All ranks see it; none is to take another's leaving for the reason.
            self.ring.leave().await;
        }
        agreed?;
        work.run(&self.rank, &mut self.ring, orders).await
    }

    /// Uploads what the outcome calls for.
    async fn finish<W: Work>(
        &self,
        work: &mut W,
        worked: Result<(), Error>,
        orders: &mut Orders,
    ) -> Result<(), Error> {
        match worked {
            Ok(()) => {
                self.rank.journal.info(work.done()).await;
                tokio::select! {
                    kept = work.finish(&self.rank, false) => kept,
                    () = dropped(orders) => Err(Error::Stopped),
                }
            }
            Err(Error::Stopped) => self.stop(work, orders).await,
            // A neighbour that was told to stop a moment before us has left the ring already.
            Err(error @ Error::Ring(_)) => match timeout(WAIT_FOR_A_BETTER_REASON, ended(orders)).await {
                Ok(_) => self.stop(work, orders).await,
                Err(_) => self.fail(error, work, orders).await,
            },
            Err(error) => self.fail(error, work, orders).await,
        }
    }

    /// Ends as asked to; keeps the artifacts if that was asked for too.
    async fn stop<W: Work>(&self, work: &mut W, orders: &mut Orders) -> Result<(), Error> {
        self.rank.journal.info("stopped on request").await;
        if orders.borrow().end.is_some_and(|end| end.keep_artifacts) {
            tokio::select! {
                kept = work.finish(&self.rank, true) => if let Err(error) = kept {
                    self.rank.journal.warn(format!("artifacts could not be kept: {error}")).await;
                },
                () = dropped(orders) => (),
            }
        }
        Err(Error::Stopped)
    }

    /// Says what went wrong, and leaves what there is.
    async fn fail<W: Work>(&self, error: Error, work: &mut W, orders: &mut Orders) -> Result<(), Error> {
        self.rank.journal.error(error.to_string()).await;
        let can_go_on = !error.would_come_again();
        // What cannot be kept in time is lost; the job has failed for another reason.
        tokio::select! {
            _ = timeout(LAST_UPLOAD, work.finish(&self.rank, can_go_on)) => (),
            () = dropped(orders) => (),
        }
        Err(error)
    }
}

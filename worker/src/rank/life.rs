//! The life of a rank of any kind, from its assignment to its last word.

use std::{path::Path, time::Duration};

use ringtune_shared::version::VERSION;
use ringtune_traces::Tracer;
use tokio::{sync::mpsc, time::timeout};
use tracing::Instrument as _;

use super::{
    Context, Error, LentRing, Orders, Rank, Task, Work,
    folder::make_work_folder,
    rings::{Life, Worked, is_to_keep},
};
use crate::{
    journal::{Journal, LOG_FILE},
    session::{Assignment, RankEvent, RankKey, RankOrders, dropped, ended},
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
    orders: Orders,
    events: mpsc::Sender<(RankKey, RankEvent)>,
) {
    let journal = Journal::new(assignment.key(), assignment.rank, events).of(context.access.clone());
    let span = journal.span();
    live_with(journal, task, assignment, context, orders).instrument(span).await;
}

async fn live_with<T: Task>(
    journal: Journal,
    task: T,
    assignment: Assignment,
    context: Context,
    mut orders: Orders,
) {
    let key = assignment.key();
    let folder = context.rank_folder(key.job);
    let folder_made = make_folder(&folder, &assignment, &journal).await;
    let worker = context.hung.clone();
    let context = Context { artifacts: context.artifacts.for_rank(journal.clone()), ..context };
    let rank = Rank { assignment, life: key, context, journal: journal.clone(), folder: folder.clone() };
    // In a task of its own, so that a panic is a reason too. Dropped with this one.
    let living = ringtune_shared::tasks::spawn(async move {
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
    let hung = matches!(outcome, Err(Error::Hung { .. }));
    let last_word = match outcome {
        Ok(()) => RankEvent::Finished,
        Err(Error::Stopped) => RankEvent::Stopped,
        Err(error) if error.is_loss_of_a_neighbour() => RankEvent::NeighbourLost(error.to_string()),
        Err(error) => RankEvent::Failed { reason: error.to_string(), fault: error.fault() },
    };
    // A temporary folder that stays is removed by the worker's next start.
    let _ = ringtune_shared::tasks::spawn_blocking(move || std::fs::remove_dir_all(folder)).await;
    journal.event(last_word).await;
    if hung {
        worker.cancel();
    }
    // Not before: a neighbour that loses this rank has no better reason to give than that.
    drop(life);
}

/// The folder that a rank writes in, with rank 0's log.
async fn make_folder(folder: &Path, assignment: &Assignment, journal: &Journal) -> Result<(), Error> {
    let (folder, journal, is_first) = (folder.to_owned(), journal.clone(), assignment.is_first());
    let make = move || {
        make_work_folder(&folder)?;
        if is_first {
            journal.write_to(&folder.join(LOG_FILE));
        }
        Ok(())
    };
    ringtune_shared::tasks::spawn_blocking(make).await?
}

/// Nothing that a job names is read before it is certain that all of it is within reach.
async fn prepare<T: Task>(task: T, rank: &Rank) -> Result<T::Work, Error> {
    let Rank { assignment, context, .. } = rank;
    // Steps that are only computed again leave no trace.
    let traces = context.allow_trace_dir && assignment.proof.is_none();
    context.access.check(&assignment.spec, traces)?;
    if assignment.is_first()
        && let Some(bucket) = rank.output_bucket()
    {
        bucket.check().await?;
        rank.journal.info(format!("the job's files go to {}, too", bucket.place)).await;
    }
    task.prepare(rank).await
}

impl Life {
    async fn run<T: Task>(&mut self, task: T, orders: &mut Orders) -> Result<(), Error> {
        self.introduce().await;
        // 1. A place in the ring, so that a neighbour that is ready first finds it. It is given up last, after
        //    the reason for leaving has been said.
        if self.rank.assignment.rank.is_some() {
            self.take_seat()?;
        }
        // 2. Prepare, and wait for the others.
        let mut span = self.rank.span("prepare");
        let journal = &self.rank.journal;
        journal.trace_stages(&self.rank.context.tracer, span.context());
        let prepared = tokio::select! {
            prepared = prepare(task, &self.rank) => prepared,
            _ = ended(orders) => Err(Error::Stopped),
        };
        journal.trace_stages(&Tracer::off(), None);
        if prepared.is_err() {
            span.fail();
        }
        drop(span);
        if let Err(Error::Stopped) = prepared {
            return Err(Error::Stopped);
        }
        if let Err(error) = &prepared {
            journal.error(format!("preparation failed: {error}")).await;
        }
        let mut work = prepared?;
        journal.event(RankEvent::Ready).await;
        let may_begin = |orders: &RankOrders| orders.train || orders.ring.is_some() || orders.end.is_some();
        match orders.wait_for(may_begin).await {
            Ok(orders) if orders.end.is_none() => (),
            _ => return Err(Error::Stopped),
        }
        // 3. Work, and leave something whatever happens.
        let worked = self.work_in_rings(&mut work, orders).await;
        // The ring is kept up meanwhile: the neighbours wait for its close.
        self.finish(&mut work, worked, orders).await
    }

    /// The first lines of its log.
    async fn introduce(&self) {
        let Rank { assignment, context, journal, .. } = &self.rank;
        let Assignment { ring, rank, spec, threads, precision, numerics_class, .. } = assignment;
        let (wanted, members) = (spec.mixed_precision().as_str(), ring.members.len());
        journal.info(format!("ringtune-worker {VERSION}, {}", context.about)).await;
        let place = match rank {
            Some(rank) => format!("rank {rank} of {members}, epoch {}", ring.epoch),
            None => format!("to join the {members} ranks of epoch {}", ring.epoch),
        };
        journal.info(format!("{place}, {threads} threads, class {numerics_class}")).await;
        journal.info(format!("computing in {precision} (the job asked for \"{wanted}\")")).await;
    }

    /// Uploads what the outcome calls for.
    async fn finish<W: Work>(
        &self,
        work: &mut W,
        worked: Result<Worked, Error>,
        orders: &mut Orders,
    ) -> Result<(), Error> {
        match worked {
            Ok(Worked::Done) => {
                self.rank.journal.info(work.done()).await;
                let mut span = self.rank.span("upload");
                let kept = tokio::select! {
                    kept = work.finish(&self.rank, false) => kept,
                    () = dropped(orders) => Err(Error::Stopped),
                };
                if kept.is_err() {
                    span.fail();
                }
                kept
            }
            Ok(Worked::LetGo) => Err(Error::Stopped),
            Ok(Worked::StoppedBetweenRings) => {
                self.keep_state(work, orders).await;
                self.stop(work, orders).await
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
        if is_to_keep(orders) {
            tokio::select! {
                kept = work.finish(&self.rank, true) => self.say_not_kept(kept).await,
                () = dropped(orders) => (),
            }
        }
        Err(Error::Stopped)
    }

    /// Keeps what the job can go on from: no other rank may be able to.
    async fn keep_state<W: Work>(&self, work: &mut W, orders: &mut Orders) {
        if is_to_keep(orders) {
            let told = orders.clone();
            tokio::select! {
                kept = work.keep_state(&self.rank, &told) => self.say_not_kept(kept).await,
                () = dropped(orders) => (),
            }
        }
    }

    async fn say_not_kept(&self, kept: Result<(), Error>) {
        if let Err(error) = kept {
            self.rank.journal.warn(format!("artifacts could not be kept: {error}")).await;
        }
    }

    /// Says what went wrong, and leaves what there is.
    async fn fail<W: Work>(&self, error: Error, work: &mut W, orders: &mut Orders) -> Result<(), Error> {
        self.rank.journal.error(error.to_string()).await;
        let can_go_on = !error.would_come_again();
        // Files that cannot be uploaded in time are lost; the job has failed for another reason.
        tokio::select! {
            _ = timeout(LAST_UPLOAD, work.finish(&self.rank, can_go_on)) => (),
            () = dropped(orders) => (),
        }
        Err(error)
    }
}

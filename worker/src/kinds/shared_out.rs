//! Work of parts that do not depend on each other: each rank makes its share of them, and each is kept as artifacts as soon as
//! it is there. Part i belongs to rank i mod n, whatever it is made of, so that any number of workers makes the same parts.
//! What a lost rank had not kept is missing at the coordinator, and the next ring makes it.

use std::{future::Future, time::Duration};

use ringtune_shared::{
    ids::{ContentHash, JobId},
    job::JobSpec,
    ring::Standing,
};

use crate::{
    contents::{ArtifactClient, UploadQueue, Uploads},
    journal::LOG_FILE,
    rank::{Error, GivenUp, JOB_FILE, Left, LentRing, Orders, Rank, Work, write_job_file},
    rank_state::{RankState, TakenState},
    session::{Progress, ProgressStage, RankEvent, StepSummary},
    train::SavedState,
};

/// Between two looks for the other ranks' files.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What there is to make.
pub(super) trait Parts: Send + Sync + 'static {
    /// One of them.
    type Part: Clone + Send + Sync;
    /// What making them is called.
    const STAGE: ProgressStage;
    /// What is said when all are made.
    const DONE: &'static str;

    /// What all ranks must have in common: names for people, and hashes.
    fn common(&self) -> Vec<(&'static str, ContentHash)>;

    /// What stands for a state, which there is none of: the same on all ranks.
    fn state(&self) -> ContentHash;

    /// All parts, the same on each rank.
    fn parts(&self) -> Vec<Self::Part>;

    /// The files of a part; at least one.
    fn names(&self, part: &Self::Part) -> Vec<String>;

    /// Makes a part and sends its files on their way. Dropped in the middle when the ring is lost.
    fn make(
        &mut self,
        rank: &Rank,
        part: Self::Part,
        uploads: &mut UploadQueue,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Whether something is made of all parts, by rank 0.
    fn has_whole(&self) -> bool;

    /// Makes it. The parts may still be on their way to the coordinator: see [`hashes_of`].
    fn make_whole(
        &mut self,
        rank: &Rank,
        uploads: &mut UploadQueue,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The contents of files that the ranks of a job keep, as soon as all are there.
pub(super) async fn hashes_of(
    client: &ArtifactClient,
    job: JobId,
    names: &[String],
) -> Result<Vec<ContentHash>, Error> {
    // A rank that fails ends the job, and with it this wait.
    loop {
        let kept = client.list(job).await?;
        match names.iter().map(|name| kept.get(name).copied()).collect() {
            Some(hashes) => return Ok(hashes),
            None => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// One rank's work.
#[derive(Debug)]
pub(crate) struct SharedOut<P> {
    parts: P,
    uploads: Option<Uploads>,
}

impl<P: Parts> SharedOut<P> {
    pub(super) fn new(parts: P) -> Self {
        Self { parts, uploads: None }
    }

    /// This rank's share, of what no ring before kept.
    async fn make_own(parts: &mut P, rank: &Rank, uploads: &mut UploadQueue) -> Result<(), Error> {
        let ring = &rank.assignment.ring;
        let (own, ranks) = (rank.assignment.rank.unwrap_or_default(), ring.members.len());
        if own == 0 {
            let (folder, spec): (_, JobSpec) = (rank.folder.clone(), rank.assignment.spec.clone());
            ringtune_shared::tasks::spawn_blocking(move || write_job_file(&folder, &spec)).await??;
            uploads.push(rank.folder.join(JOB_FILE)).await;
        }
        let mut share: Vec<P::Part> = parts.parts().into_iter().skip(own).step_by(ranks.max(1)).collect();
        if !rank.is_in_first_ring() {
            // Of those that fall to this rank now, some were made in another ring.
            let kept = rank.context.artifacts.list(ring.job).await?;
            share.retain(|part| !parts.names(part).iter().all(|name| kept.contains_key(name)));
        }
        let total = share.iter().map(|part| parts.names(part).len() as u64).sum();
        let mut done = 0;
        for part in share {
            say_made::<P>(rank, done, total).await;
            let files = parts.names(&part).len() as u64;
            parts.make(rank, part, uploads).await?;
            done += files;
        }
        say_made::<P>(rank, total, total).await;
        Ok(())
    }
}

async fn say_made<P: Parts>(rank: &Rank, done: u64, total: u64) {
    rank.journal.event(RankEvent::Progress(Progress { stage: P::STAGE, done, total })).await;
}

/// Waits until all files that are on their way are at the coordinator. What comes later goes another way.
async fn keep_all(rank: &Rank, orders: &Orders, uploads: &mut Option<Uploads>) -> Result<(), Error> {
    if let Some(running) = uploads.replace(rank.start_uploads(orders)) {
        running.finish().await?;
    }
    Ok(())
}

impl<P: Parts> Work for SharedOut<P> {
    fn common(&self) -> Vec<(&'static str, ContentHash)> {
        self.parts.common()
    }

    /// Parts do not depend on each other: whoever enters a ring finds at the coordinator how far the job is.
    async fn standing(&mut self) -> Result<Standing, Error> {
        Ok(Standing { step: 0, state: self.parts.state() })
    }

    async fn last_step(&mut self) -> Result<u64, Error> {
        Ok(0)
    }

    fn state(&self) -> RankState {
        RankState::small(SavedState::default())
    }

    async fn restore(&mut self, _: TakenState, _step: u64, _: Vec<StepSummary>) -> Result<(), Error> {
        Ok(())
    }

    fn unstored(&self) -> Vec<StepSummary> {
        Vec::new()
    }

    async fn tell_reports(&mut self, _rank: &Rank) -> Result<(), Error> {
        Ok(())
    }

    async fn begin(&mut self, rank: &Rank, orders: &Orders) -> Result<(), Error> {
        if self.uploads.is_none() {
            self.uploads = Some(rank.start_uploads(orders));
        }
        Ok(())
    }

    async fn run(&mut self, rank: &Rank, ring: &mut LentRing, orders: &mut Orders) -> Result<Left, Error> {
        rank.say_entered(0).await;
        let Self { parts, uploads } = self;
        let (ring, epoch) = (ring.get()?, rank.assignment.ring.epoch);
        let mut given_up = GivenUp::of(ring.failed(), epoch, orders);
        let Some(running) = uploads else { return Ok(Left::Done) };
        // 1. This rank's parts.
        tokio::select! {
            made = Self::make_own(parts, rank, &mut running.queue) => made?,
            error = running.task.failure() => return Err(error.into()),
            error = given_up.reason() => return Err(error),
        }
        // 2. Held until all are at the coordinator: a rank that is lost before is missed by the others, who then make what
        //    is missing. What is made of all is made of the files there.
        if ring.can_reform() {
            tokio::select! {
                kept = keep_all(rank, orders, uploads) => kept?,
                error = given_up.reason() => return Err(error),
            }
            tokio::select! {
                gathered = ring.gather_one_each(vec![0.0]) => drop(gathered?),
                error = given_up.reason() => return Err(error),
            }
        }
        let is_maker = rank.assignment.is_first() && parts.has_whole();
        if let Some(running) = uploads.as_mut().filter(|_| is_maker) {
            tokio::select! {
                made = parts.make_whole(rank, &mut running.queue) => made?,
                error = running.task.failure() => return Err(error.into()),
                error = given_up.reason() => return Err(error),
            }
        }
        Ok(Left::Done)
    }

    fn done(&self) -> &'static str {
        P::DONE
    }

    async fn finish(&mut self, rank: &Rank, _can_go_on: bool) -> Result<(), Error> {
        let Some(uploads) = self.uploads.take() else { return Ok(()) };
        let mut uploads = uploads.for_the_last_files();
        if rank.assignment.is_first() {
            uploads.queue.push(rank.folder.join(LOG_FILE)).await;
        }
        Ok(uploads.finish().await?)
    }

    /// Every part that is made is on its way: another ring makes the others.
    async fn keep_state(&mut self, _rank: &Rank, _orders: &Orders) -> Result<(), Error> {
        match self.uploads.take() {
            Some(uploads) => Ok(uploads.finish().await?),
            None => Ok(()),
        }
    }
}

//! The loop: step, validate, preview, keep.

use std::{future::Future, time::SystemTime};

use ringtune_shared::{
    ids::{ContentHash, Epoch},
    ring::{RingError, Standing},
};

use ringtune_traces::Open;

use super::{
    files::{TrainingFiles, failure_of},
    judging::{StepTaken, judge, previews, say_early_stop, update, validate},
    reports::Reports,
    settled::{Settled, compare},
    trainee::{Collect, Recovered, Trainee, Wish},
};
use crate::{
    rank::{Error, GivenUp, Left, LentRing, Orders, Rank, StepPace, Work},
    rank_state::{RankState, TakenState},
    ring::{News, RankRing},
    session::{RankEvent, StepSummary},
};

/// A trainee, and what rank 0 writes of it.
#[derive(Debug)]
pub(crate) struct Training<T: Trainee> {
    pub(super) trainee: T,
    pub(super) settled: Settled,
    /// The settled step, where not all is found out yet that its report says: see [`Trainee::IN_PLACE`].
    open: Option<StepSummary>,
    /// Rank 0's.
    pub(super) files: Option<TrainingFiles>,
    /// After the last finished step of this rank.
    learned: Option<T::Learned>,
    reports: Reports,
    /// Which steps are spans.
    pace: StepPace,
}

impl<T: Trainee> Training<T> {
    /// Of a trainee that is prepared.
    pub(crate) async fn new(trainee: T) -> Result<Self, Error> {
        let done = trainee.course().done;
        let settled = Settled::of(done, trainee.state(), trainee.is_hashed_after(done)).await?;
        let (files, learned, open) = (None, None, None);
        let (reports, pace) = (Reports::default(), StepPace::default());
        Ok(Self { trainee, settled, open, files, learned, reports, pace })
    }

    pub(super) fn step(&self) -> u64 {
        self.settled.step
    }

    /// Nothing is left to train; or, where steps are computed again, nothing of what was asked for.
    fn is_over(&self) -> bool {
        let step = self.step();
        match self.trainee.course().proof {
            Some(last) => step >= last,
            None => step >= self.trainee.course().total || (step > 0 && self.trainee.selection().is_over()),
        }
    }
}

impl<T: Trainee> Work for Training<T> {
    fn common(&self) -> Vec<(&'static str, ContentHash)> {
        let origin = self.trainee.origin();
        vec![("model (model.base)", origin.model_hash), (origin.data.what, origin.data_hash)]
    }

    async fn last_step(&mut self) -> Result<u64, Error> {
        match self.trainee.recover().await? {
            Some(Recovered::Step(taken)) => self.settle(taken.step, Some(taken)).await?,
            Some(Recovered::State(step)) => self.restored(step),
            None => {}
        }
        Ok(self.step())
    }

    async fn standing(&mut self) -> Result<Standing, Error> {
        self.last_step().await?;
        self.settled.standing().await
    }

    async fn assemble(&mut self, rank: &Rank, ring: &mut RankRing) -> Result<(), Error> {
        let step = self.last_step().await?;
        if let Some(taken) = self.trainee.assemble(step, ring).await? {
            let text = format!(
                "step {} was broken off, and is taken to its end: another rank had all of it",
                taken.step
            );
            self.settle(taken.step, Some(taken)).await?;
            rank.journal.info(text).await;
        }
        Ok(())
    }

    fn state(&self) -> RankState {
        self.settled.state.clone()
    }

    fn most_state_bytes(&self) -> u64 {
        self.trainee.most_state_bytes()
    }

    fn step_bytes(&self) -> u64 {
        self.trainee.step_bytes()
    }

    async fn restore(
        &mut self,
        state: TakenState,
        step: u64,
        reports: Vec<StepSummary>,
    ) -> Result<(), Error> {
        self.reports.arriving(reports);
        self.trainee.restore(state, step).await?;
        self.restored(step);
        Ok(())
    }

    fn unstored(&self) -> Vec<StepSummary> {
        self.reports.unstored().chain(self.open).collect()
    }

    async fn tell_reports(&mut self, rank: &Rank) -> Result<(), Error> {
        while let Some(step) = self.reports.first_arrived() {
            rank.journal.event(RankEvent::Step(step)).await;
            self.reports.first_is_told();
            if let Some(files) = &mut self.files {
                files.record(&step)?;
            }
            self.remember(rank, step);
        }
        Ok(())
    }

    fn amend(&mut self, rank: &Rank) -> Result<(), Error> {
        self.trainee.amend(&rank.assignment)?;
        if let Some(files) = &mut self.files {
            files.amend(&rank.assignment.spec);
        }
        Ok(())
    }

    async fn begin(&mut self, rank: &Rank, orders: &Orders) -> Result<(), Error> {
        if rank.assignment.is_first() && self.files.is_none() && self.trainee.course().proof.is_none() {
            let uploads = rank.start_uploads(orders);
            let Settled { step, hash, .. } = self.settled;
            let mut files = TrainingFiles::create(rank, &self.trainee, step, hash, uploads).await?;
            if !rank.is_in_first_ring() {
                files.take_over(rank).await;
                self.keep_due(&mut files, None).await?;
            }
            self.files = Some(files);
        }
        Ok(())
    }

    async fn run(&mut self, rank: &Rank, ring: &mut LentRing, orders: &mut Orders) -> Result<Left, Error> {
        let ring = ring.get()?;
        let epoch = rank.assignment.ring.epoch;
        let mut given_up = GivenUp::of(ring.failed(), epoch, orders);
        given_up = given_up.ending_with_others(self.trainee.is_shared());
        tokio::select! {
            entered = self.trainee.enter(rank, ring) => entered?,
            error = given_up.reason() => return Err(error),
        }
        rank.say_entered(self.step()).await;
        // The rank 0 before this one may not have kept it.
        let collected = !rank.is_in_first_ring() && self.is_due_together(self.step());
        if collected {
            self.collect(rank, ring, &mut given_up).await?;
        }
        self.find_out(rank, ring, &mut given_up).await?;
        if collected && let Some(mut files) = self.files.take() {
            let kept = self.keep_due(&mut files, None).await;
            self.files = Some(files);
            kept?;
        }
        self.carry_out(rank, ring, &mut given_up).await?;
        if self.step() > 0 && self.is_over() {
            self.learned = Some(self.trainee.learned());
            tokio::select! {
                ended_again = self.end_again(rank, ring) => ended_again?,
                error = given_up.reason() => return Err(error),
            }
        } else {
            rank.journal.info(self.trainee.course().plan(self.step())).await;
            let left = self.train(rank, ring, orders, &mut given_up).await?;
            if left != Left::Done {
                return Ok(left);
            }
        }
        if ring.can_reform() {
            // Whoever gets through knows that all have done the last step: nobody will ask for its state.
            tokio::select! {
                gathered = ring.gather_one_each(vec![0.0]) => drop(gathered?),
                error = given_up.reason() => return Err(error),
            }
        }
        Ok(Left::Done)
    }

    fn done(&self) -> &'static str {
        match self.trainee.course().proof {
            Some(_) => "all steps are computed again",
            None => "training is done",
        }
    }

    async fn finish(&mut self, rank: &Rank, can_go_on: bool) -> Result<(), Error> {
        self.close(rank).await?;
        let learned = self.learned.take_if(|_| self.files.is_some());
        let state = self.whole_state().filter(|_| can_go_on && learned.is_some());
        let Some(files) = &mut self.files else { return Ok(()) };
        files.finish(rank, &self.trainee, learned, state, self.reports.all_unstored()).await
    }

    async fn keep_state(&mut self, rank: &Rank, orders: &Orders) -> Result<(), Error> {
        if self.trainee.course().proof.is_some() {
            return Ok(());
        }
        let step = self.last_step().await?;
        self.tell_reports(rank).await?;
        let Some(state) = self.whole_state() else {
            // Otherwise rank 0 has it, or says so.
            if rank.assignment.is_first() {
                let text = format!("the state after step {step} is not kept: parts of it are on other ranks");
                rank.journal.warn(text).await;
            }
            return Ok(());
        };
        let pending = self.is_pending(step) || self.open.is_some();
        if let Some(files) = &mut self.files {
            return files.keep_state(step, state, pending).await;
        }
        let uploads = rank.start_uploads(orders);
        let Settled { step: stands_at, hash, .. } = self.settled;
        let mut files = TrainingFiles::create(rank, &self.trainee, stands_at, hash, uploads).await?;
        files.keep_state(step, state, pending).await?;
        files.uploaded().await
    }
}

impl<T: Trainee> Training<T> {
    /// The trainee has another rank's state. Nothing is awaited here: whoever drops this rank's way into a ring finds the step and
    /// the state that belong together.
    fn restored(&mut self, step: u64) {
        self.settled = Settled::unhashed(step, self.trainee.state());
        // What is still to be found out of the last step all ranks find out together.
        let is_open = |last: &StepSummary| T::IN_PLACE && last.validation_loss.is_none();
        self.open = self.reports.arrived(step, is_open);
        self.learned = Some(self.trainee.learned());
    }

    /// Step after step, until the last one or until another ring is wanted.
    async fn train(
        &mut self,
        rank: &Rank,
        ring: &mut RankRing,
        orders: &Orders,
        given_up: &mut GivenUp<impl Future<Output = RingError>>,
    ) -> Result<Left, Error> {
        let epoch = rank.assignment.ring.epoch;
        while !self.is_over() {
            let step = self.step() + 1;
            ring.tell(self.news(rank, orders, ring));
            self.trainee.wish(self.wish(orders));
            let mut span = rank.step_span(step, &mut self.pace);
            let taken = self.take_step(rank, &span, ring, given_up).await;
            if taken.is_err() {
                span.fail();
            }
            taken?;
            drop(span);
            self.carry_out(rank, ring, given_up).await?;
            self.hear(rank, ring.heard()).await;
            if self.trainee.wished() == Wish::End {
                return Ok(Left::ToEnd);
            }
            if !self.is_over() && ring.heard().newest_epoch > epoch {
                tokio::select! {
                    collected = self.trainee.collect(Collect::Everywhere, ring) => collected?,
                    error = given_up.reason() => return Err(error),
                }
                return Ok(Left::ToChange);
            }
        }
        let course = self.trainee.course();
        if course.proof.is_none() && self.step() < course.total {
            say_early_stop(rank, self.step(), self.trainee.selection()).await;
        }
        Ok(Left::Done)
    }

    /// One step and what is found out after it, together with all other ranks.
    async fn take_step(
        &mut self,
        rank: &Rank,
        span: &Open,
        ring: &mut RankRing,
        given_up: &mut GivenUp<impl Future<Output = RingError>>,
    ) -> Result<(), Error> {
        let step = self.step() + 1;
        let summary = tokio::select! {
            taken = update(&mut self.trainee, rank, span, step, ring) => taken?,
            error = failure_of(&mut self.files) => return Err(error),
            error = given_up.reason() => return Err(error),
        };
        if T::IN_PLACE {
            self.settle(step, Some(summary)).await?;
            if let Some(hash) = self.settled.hash {
                let compared = tokio::select! {
                    compared = compare(Standing { step, state: hash }, ring) => compared,
                    error = given_up.reason() => return Err(error),
                };
                if let Err(Error::Diverged(_)) = compared {
                    // Nobody knows which of them is right: nothing is said or kept of it.
                    (self.open, self.learned) = (None, None);
                }
                compared?;
            }
        }
        let taken = tokio::select! {
            taken = judge(&mut self.trainee, rank, span, summary, ring) => taken?,
            error = failure_of(&mut self.files) => return Err(error),
            error = given_up.reason() => return Err(error),
        };
        if !T::IN_PLACE {
            self.settle(step, None).await?;
        }
        let is_wished = self.trainee.wished() > Wish::Nothing && self.trainee.course().proof.is_none();
        if is_wished || self.is_due_together(step) {
            self.collect(rank, ring, given_up).await?;
        }
        self.keep_step(rank, span, taken).await
    }

    /// Finds out what belongs to the last step and is in no state: this rank may have it already, another one may not.
    async fn find_out(
        &mut self,
        rank: &Rank,
        ring: &mut RankRing,
        given_up: &mut GivenUp<impl Future<Output = RingError>>,
    ) -> Result<(), Error> {
        let step = self.step();
        if !T::IN_PLACE || step == 0 {
            return Ok(());
        }
        let span = rank.span("validation");
        let Some(open) = self.open else {
            if self.trainee.is_validated_after(step) {
                tokio::select! {
                    judged = validate(&mut self.trainee, rank, step, ring) => { judged?; }
                    error = given_up.reason() => return Err(error),
                }
            }
            return Ok(());
        };
        let taken = tokio::select! {
            taken = judge(&mut self.trainee, rank, &span, open, ring) => taken?,
            error = given_up.reason() => return Err(error),
        };
        self.keep_step(rank, &span, taken).await
    }

    /// What this rank knows of the job.
    fn news(&self, rank: &Rank, orders: &Orders, ring: &RankRing) -> News {
        let orders = orders.borrow();
        let epoch = rank.assignment.ring.epoch;
        // Nobody's ring is lost with the certificates of its connections: all leave it before, after the same step.
        let wanted = rank.assignment.re_forms && ring.is_to_reconnect(SystemTime::now());
        let without = if wanted { Epoch(epoch.0 + 1) } else { epoch };
        News {
            newest_epoch: orders.ring_after(epoch).map_or(without, |ring| ring.view.epoch),
            stored_step: orders.stored_step.max(self.reports.stored_step()),
        }
    }

    /// What any rank knew when the last step was taken.
    async fn hear(&mut self, rank: &Rank, news: News) {
        if self.reports.are_stored(news.stored_step) {
            rank.journal.event(RankEvent::Stored(news.stored_step)).await;
        }
    }

    /// A step is done: all of it is found out but for what is `open`. Dropped while its state is hashed, it is done all the same.
    async fn settle(&mut self, step: u64, open: Option<StepSummary>) -> Result<(), Error> {
        self.trainee.settle();
        (self.settled, self.open) = (Settled::unhashed(step, self.trainee.state()), open);
        if self.trainee.is_hashed_after(step) {
            self.settled.standing().await?;
        }
        Ok(())
    }

    /// Goes on behind the last step: its job was stopped, or its rank 0 lost, before its results were kept.
    async fn end_again(&mut self, rank: &Rank, ring: &mut RankRing) -> Result<(), Error> {
        let done = self.step();
        rank.journal.info(format!("resumed after step {done}, the last: nothing is left to train")).await;
        let learned = self.trainee.learned();
        let previews = previews(&mut self.trainee, rank, done, true, &learned, ring).await?;
        if let Some(files) = &mut self.files {
            for (shown, drawn) in previews {
                files.save_previews(shown, drawn.pictures).await?;
            }
        }
        Ok(())
    }

    /// Writes down what a step gave, and says that it is done.
    async fn keep_step(
        &mut self,
        rank: &Rank,
        span: &Open,
        taken: StepTaken<T::Learned>,
    ) -> Result<(), Error> {
        let StepTaken { mut summary, learned, previews } = taken;
        summary.state = self.said_hash();
        self.open = None;
        self.learned = Some(learned);
        self.remember(rank, summary);
        if let Some(mut files) = self.files.take() {
            let kept = async {
                files.record(&summary)?;
                let checkpoint =
                    files.checkpoint_is_due(self.step()).then(|| rank.span_below(span, "checkpoint"));
                self.keep_due(&mut files, checkpoint).await?;
                let pending = self.is_pending(self.step());
                if let Some(state) = self.whole_state() {
                    files.keep_recovery_point(self.step(), &state, pending).await;
                }
                for (shown, drawn) in previews {
                    files.save_previews(shown, drawn.pictures).await?;
                }
                Ok(())
            };
            let kept: Result<(), Error> = kept.await;
            self.files = Some(files);
            kept?;
        }
        rank.journal.event(RankEvent::Step(summary)).await;
        Ok(())
    }

    /// Writes what is to be kept of the last step, whoever did it; of its state, begins to. `checkpoint`: lasts as long as
    /// that.
    async fn keep_due(&self, files: &mut TrainingFiles, checkpoint: Option<Open>) -> Result<(), Error> {
        let step = self.step();
        if self.trainee.course().saves_after(step) {
            files.save_step(&self.trainee, &self.trainee.learned()).await?;
        }
        if files.checkpoint_is_due(step)
            && let Some(state) = self.whole_state()
        {
            files.save_checkpoint(step, state, self.is_pending(step), checkpoint).await?;
        }
        Ok(())
    }

    /// The hash of the settled state, where reports have it: it may have been taken for another reason.
    fn said_hash(&self) -> Option<ContentHash> {
        self.settled.hash.filter(|_| self.trainee.is_hashed_after(self.step()))
    }

    /// Takes what has begun to its end, and says it without what was still to be found out: nothing more will be.
    async fn close(&mut self, rank: &Rank) -> Result<(), Error> {
        self.last_step().await?;
        let Some(mut summary) = self.open.take() else { return Ok(()) };
        summary.state = self.said_hash();
        self.learned = Some(self.trainee.learned());
        self.remember(rank, summary);
        if let Some(files) = &mut self.files {
            files.record(&summary)?;
        }
        rank.journal.event(RankEvent::Step(summary)).await;
        Ok(())
    }

    /// Whether a step's report may not be stored yet.
    pub(super) fn is_pending(&self, step: u64) -> bool {
        self.reports.has(step)
    }

    /// Keeps a step's report, in case another ring's rank 0 has to say it.
    fn remember(&mut self, rank: &Rank, summary: StepSummary) {
        if rank.assignment.re_forms {
            self.reports.add(summary);
        }
    }
}

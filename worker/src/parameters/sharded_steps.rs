//! Steps of ranks that have the optimizer together, and how they enter rings.
//!
//! A step's gradients are added up until each chunk's sums are on the two ranks that have its moments. These move the chunk's
//! parameters, both alike, and the parameters then go the rest of the way around the ring. What counts of a rank is therefore what it
//! holds: parameters of others come again from whoever has them. Averages of parameters are on every rank: they follow where a parameter moves, or
//! comes.
//!
//! The norm of the gradient is the last thing that a step needs of others before it changes anything. Whoever has it knows
//! that all ranks had all else: so a rank whose ring broke before it came keeps what it had, and takes the step in the next ring, where
//! another one has taken it.

use std::{path::PathBuf, sync::Arc, time::Instant};

use ringtune_shared::{state::StateError, tasks::spawn_blocking};

use super::{
    Model,
    sharding::{Gives, Pending, Takes, bring},
    shares::{Entrant, Entry, Held, norm_parts_from_row, norm_parts_to_row},
    step::{Computed, StepBegun, also_exchanged},
    trainee::ParameterTrainee,
    unnamed_file::UnnamedFile,
};
use crate::{
    engine::AlignedFloats,
    fault::{Blame, Fault},
    rank::Error,
    rank_state::RankState,
    ring::{self, RankRing},
    session::StepSummary,
    training::{Collect, StateTogether, Wish},
};

/// Moments that nobody has any more.
#[derive(Debug, thiserror::Error)]
#[error(
    "{section}.shard_optimizer: ranks that are neighbours were lost together, and with them moments of the optimizer after step {step}: the job goes \
     on from what was kept last"
)]
struct Lost {
    section: &'static str,
    step: u64,
}

impl Blame for Lost {
    fn fault(&self) -> Fault {
        Fault::Node
    }
}

impl<M: Model> ParameterTrainee<M> {
    /// The rest of a step that this rank has computed its part of. Until its update begins, all of the step stays here, whatever becomes
    /// of the ring; from then on it is taken to its end.
    pub(super) async fn share_step(
        &mut self,
        begun: StepBegun,
        computed: Computed,
        ring: &mut RankRing,
    ) -> Result<StepSummary, Error> {
        let squared_norm = self.squared_norm(begun, computed, ring).await?;
        // A checkpoint of the state before it may still be on its way to the disk. The others have begun their updates.
        self.state.tensors.holds.all_let_go().await;
        let pending = self.sharding.as_mut().and_then(|sharding| sharding.pending.take());
        let Pending { begun, computed } = pending.ok_or(Error::Ring(ring::Error::Rows))?;
        self.begin(begun, computed, Some(squared_norm));
        self.untold = self.applied().await?;
        // Each rank has moved a part: here come the others'. Nothing hides that.
        self.share_out(ring).await?;
        self.tell().ok_or(Error::Ring(ring::Error::Replaced))
    }

    /// The squares of the whole gradient. What the step is stays pending.
    async fn squared_norm(
        &mut self,
        begun: StepBegun,
        mut computed: Computed,
        ring: &mut RankRing,
    ) -> Result<f64, Error> {
        let Some(sharding) = &mut self.sharding else { return Err(Error::Ring(ring::Error::Rows)) };
        let (looked_up, buckets) = (computed.looked_up.clone(), std::mem::take(&mut computed.buckets));
        let own = self.engine.squared_norm_parts(looked_up, buckets, sharding.shares(ring)).await;
        let (own, buckets) = own.map_err(Error::of_engine)?;
        computed.buckets = buckets;
        let row = norm_parts_to_row(&own, sharding.wish, sharding.cutting.most_parts(ring.world_size()));
        sharding.pending = Some(Pending { begun, computed });
        ring.begin_step();
        let computed_at = Instant::now();
        let rows = ring.gather_one_each(row).await?;
        let seen = ring.step_exchanged(computed_at, &[]);
        let missing = || Error::Ring(ring::Error::Rows);
        let rows: Option<Vec<_>> = rows.iter().map(|row| norm_parts_from_row(row)).collect();
        let (parts, wishes): (Vec<_>, Vec<_>) = rows.ok_or_else(missing)?.into_iter().unzip();
        let squared_norm = sharding.cutting.squared_norm(&parts).ok_or_else(missing)?;
        sharding.wished = wishes.into_iter().max().unwrap_or_default();
        let pending = sharding.pending.as_mut().ok_or_else(missing)?;
        also_exchanged(&mut pending.begun.summary, seen);
        Ok(squared_norm)
    }

    /// Takes note of a step that was taken, and keeps its buckets where others are to have what is in them.
    pub(super) fn share_was_applied(
        &mut self,
        step: u64,
        squared_norm: f64,
        skipped: bool,
        buckets: Vec<AlignedFloats>,
    ) {
        let Some(sharding) = &mut self.sharding else { return };
        (sharding.of_step, sharding.taken) = (step, Some((step, squared_norm)));
        let is_all = !matches!(sharding.held, Held::Share { ranks, .. } if ranks > 2);
        if skipped || is_all {
            buckets.into_iter().enumerate().for_each(|(bucket, memory)| self.spares.put(bucket, memory));
        } else {
            sharding.incomplete = true;
            self.unshared = buckets;
        }
    }

    /// Brings the parameters that other ranks moved, if there are any, and says of the step what that took. After an error they are
    /// missing until the next ring is entered.
    async fn share_out(&mut self, ring: &mut RankRing) -> Result<(), Error> {
        let Some(sharding) = self.sharding.as_mut().filter(|sharding| sharding.incomplete) else {
            return Ok(());
        };
        let began = Instant::now();
        ring.begin_step();
        let mut buckets = std::mem::take(&mut self.unshared);
        let behind = buckets.split_off(sharding.cutting.plan().buckets.len().min(buckets.len()));
        let mut whole = Vec::with_capacity(buckets.len());
        for bucket in buckets {
            whole.push(ring.share_out(bucket, sharding.cutting.granule()).await?);
        }
        let (seen, came) = (ring.step_exchanged(began, &[]), Instant::now());
        let average_decay = self.model.average_decay(self.state.count);
        let taken = self.engine.take_parameters(whole, sharding.shares(ring), average_decay).await;
        let whole = taken.map_err(Error::of_engine)?;
        sharding.incomplete = false;
        if let Some(summary) = &mut self.untold {
            also_exchanged(summary, seen);
            summary.compute_seconds += came.elapsed().as_secs_f64();
            summary.step_seconds += began.elapsed().as_secs_f64();
        }
        whole
            .into_iter()
            .chain(behind)
            .enumerate()
            .for_each(|(bucket, memory)| self.spares.put(bucket, memory));
        Ok(())
    }

    /// Puts all moments, of the step that all ranks have taken, into a file of this rank, or of others only.
    async fn collect_moments(&mut self, keep: bool, ring: &mut RankRing) -> Result<(), Error> {
        let Some(sharding) = &mut self.sharding else { return Ok(()) };
        let store = sharding.store(&self.state.tensors);
        let file = match keep {
            true => Some(Arc::new(create(self.folder.clone()).await?)),
            false => None,
        };
        let into = Takes::File(file.clone());
        let sources = sharding.cutting.own_of_each(ring.world_size());
        bring(&store, &sources, &Gives::Engine, &into, false, ring).await?;
        self.collected = file.map(|file| (sharding.of_step, file));
        Ok(())
    }

    /// Goes on with all moments in the file that was made last: whoever is in the next ring, nothing is missing there.
    fn hold_all(&mut self) {
        let (Some(sharding), Some((step, file))) = (&mut self.sharding, &self.collected) else { return };
        if *step == sharding.of_step {
            (sharding.held, sharding.all) = (Held::All, Some(Arc::clone(file)));
        }
    }

    pub(super) fn put_back(&self, buckets: Vec<AlignedFloats>) {
        buckets.into_iter().enumerate().for_each(|(bucket, memory)| self.spares.put(bucket, memory));
    }

    fn put_back_unshared(&mut self) {
        let unshared = std::mem::take(&mut self.unshared);
        self.put_back(unshared);
    }
}

impl<M: Model> StateTogether for ParameterTrainee<M> {
    fn is_shared(&self) -> bool {
        self.sharding.is_some()
    }

    /// All ranks of a ring come to have what falls to them there, of the newest step that any of them has taken. Gives that step where this
    /// rank takes it now.
    async fn assemble(&mut self, step: u64, ring: &mut RankRing) -> Result<Option<StepSummary>, Error> {
        let Some(sharding) = &mut self.sharding else { return Ok(None) };
        let (rank, ranks) = (ring.rank(), ring.world_size());
        // 1. Where all stand.
        let own = Entrant {
            step,
            pending: sharding.pending.as_ref().map_or(0, |pending| pending.begun.summary.step),
            held: if sharding.of_step == step { sharding.held } else { Held::Nothing },
            incomplete: sharding.incomplete,
            squared_norm: sharding
                .taken
                .filter(|(taken, _)| *taken == step)
                .map(|(_, squared_norm)| squared_norm),
        };
        let rows = ring.gather_one_each(own.to_row()).await?;
        let all: Option<Vec<Entrant>> = rows.iter().map(|row| Entrant::from_row(row)).collect();
        let entry = Entry::of(&all.ok_or(Error::Ring(ring::Error::Rows))?, &sharding.cutting);
        // 2. A step that another rank has taken, and of which this one lacked the squares alone. It stays here while others hold what it
        // changes.
        self.state.tensors.holds.all_let_go().await;
        let Some(sharding) = &mut self.sharding else { return Ok(None) };
        if let Some(Pending { begun, computed }) = sharding.pending.take() {
            match entry.squared_norm.filter(|_| own.step + 1 == entry.last && own.pending == entry.last) {
                Some(squared_norm) => {
                    self.begin(begun, computed, Some(squared_norm));
                    // Should this ring break too, it is told in the next one.
                    self.untold = self.applied().await?;
                }
                None => self.put_back(computed.buckets),
            }
        }
        self.put_back_unshared();
        let Some(sharding) = &mut self.sharding else { return Ok(None) };
        let has_step = own.step == entry.last || self.untold.is_some();
        // 3. What is missing comes from those who have it.
        self.state.tensors.holds.all_let_go().await;
        let store = sharding.store(&self.state.tensors);
        let shares = sharding.cutting.shares(rank, ranks);
        // Nothing of what is brought below is dropped half-way and still comes when the next ring has begun: see [`Store`].
        if entry.is_whole {
            match sharding.all.clone().filter(|_| sharding.held == Held::All) {
                Some(file) => {
                    store.clone().load(shares.clone(), file).await?;
                }
                // Whatever was brought here for a ring that broke.
                None if sharding.held == Held::All => {
                    self.engine.keep_moments(sharding.cutting.nothing()).await.map_err(Error::of_engine)?;
                }
                None => {}
            }
        } else {
            let lost = || Lost { section: M::SECTION, step: entry.last };
            let sources = sharding.cutting.sources(&entry.held).ok_or_else(lost)?;
            let from = match entry.held.get(rank) {
                Some(Held::All) => Gives::All(sharding.all.clone()),
                _ => Gives::Engine,
            };
            if !has_step {
                // What comes is of another step than what is here.
                sharding.held = Held::Nothing;
            }
            let into = Takes::Engine { parameters: has_step, shares: shares.clone() };
            bring(&store, &sources, &from, &into, true, ring).await?;
        }
        // 4. Nobody forgets anything before all have all.
        ring.gather_one_each(vec![0.0]).await?;
        // Said before it is done: the engine forgets the rest even if nobody waits for it any more.
        (sharding.held, sharding.of_step, sharding.incomplete) =
            (Held::Share { rank, ranks }, entry.last, false);
        sharding.all = None;
        self.engine.keep_moments(shares).await.map_err(Error::of_engine)?;
        Ok(self.tell())
    }

    async fn collect(&mut self, wanted: Collect, ring: &mut RankRing) -> Result<(), Error> {
        match wanted {
            Collect::Here => self.collect_moments(true, ring).await,
            Collect::Elsewhere => self.collect_moments(false, ring).await,
            Collect::Everywhere => {
                self.collect_moments(true, ring).await?;
                self.hold_all();
                Ok(())
            }
        }
    }

    fn whole_state(&self, step: u64) -> Option<RankState> {
        let sharding = self.sharding.as_ref()?;
        let collected = self.collected.as_ref().filter(|(of_step, _)| *of_step == step);
        let file = collected.map(|(_, file)| Arc::clone(file)).or_else(|| sharding.all_after(step))?;
        Some(self.state.to_whole_state(file))
    }

    fn wish(&mut self, wish: Wish) {
        if let Some(sharding) = &mut self.sharding {
            sharding.wish = wish;
        }
    }

    fn wished(&self) -> Wish {
        self.sharding.as_ref().map(|sharding| sharding.wished).unwrap_or_default()
    }
}

async fn create(folder: PathBuf) -> Result<UnnamedFile, Error> {
    let create = move || UnnamedFile::create(&folder).map_err(StateError::from);
    Ok(spawn_blocking(create).await??)
}

//! A connected rank: its microbatches, and the exchange of their rows.

use std::{
    future::Future,
    ops::Range,
    time::{Duration, Instant, SystemTime},
};

use ringtune_shared::{
    ids::Epoch,
    ring::{Buffer, Element, Reach, Ring, RingError, Spread, Summed, block_of, tree::TreeSum},
    version::REFORMING_RING_PROTOCOL,
};

use super::{
    Error, News, Seat,
    traffic::{Exchanges, StepExchange, behind},
    trouble::{Trouble, trouble_of},
};

/// A rank in its ring.
pub struct RankRing {
    ring: Ring,
    rows: usize,
    /// News to send with the next step.
    told: News,
    /// News of all ranks with the last step.
    heard: News,
    /// When the last exchange of a step began, and how long it took.
    exchanged: Option<(SystemTime, Duration)>,
    /// Exchanges of the current step.
    exchanges: Option<Exchanges>,
    /// Before its connections' certificates end, the ring is to be formed anew.
    reconnect_at: Option<SystemTime>,
    /// Holds the place until the end.
    seat: Seat,
}

/// The result of an exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct Gathered {
    /// A row per microbatch of the global batch, in order.
    pub rows: Vec<Vec<f32>>,
}

impl std::fmt::Debug for RankRing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("RankRing")
            .field("place", &self.ring.place())
            .field("rows", &self.rows)
            .finish()
    }
}

impl Seat {
    /// Dials the next rank, again and again while it does not listen or has not taken its seat, and waits for the previous
    /// one.
    ///
    /// # Errors
    /// A neighbour that cannot be reached or refuses; [`Error::Replaced`] when a newer epoch takes the place.
    pub async fn connect(mut self) -> Result<RankRing, Error> {
        let ring = self.ring().await?;
        let news = News::none(ring.place().epoch);
        let reconnect_at = self.valid().map(|valid| valid.reconnect_at(SystemTime::now()));
        Ok(RankRing {
            ring,
            rows: self.rows(),
            told: news,
            heard: news,
            exchanged: None,
            exchanges: None,
            reconnect_at,
            seat: self,
        })
    }
}

impl RankRing {
    /// Which membership of the job's ring it is.
    pub fn epoch(&self) -> Epoch {
        self.ring.place().epoch
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.ring.place().rank
    }

    /// Describes the connections to the next rank, if there are several or they were measured.
    pub fn reached(&self) -> Option<&str> {
        self.seat.reached()
    }

    /// Ranks in the ring.
    pub fn world_size(&self) -> usize {
        self.ring.place().world_size
    }

    /// The microbatches of every step that fall to this rank.
    pub fn microbatches(&self) -> Range<u32> {
        let block = block_of(self.rank(), self.world_size(), self.rows);
        // At most world_size x gradient_accumulation_steps, both far below 2^32.
        block.start as u32..block.end as u32
    }

    /// The rank of a microbatch.
    pub fn rank_of(&self, microbatch: usize) -> usize {
        (0..self.world_size())
            .find(|rank| block_of(*rank, self.world_size(), self.rows).contains(&microbatch))
            .unwrap_or(0)
    }

    /// Whether this ring can go on in a new epoch: all its members speak a protocol in which the ranks tell each other
    /// where they stand, and news with each step.
    pub fn can_reform(&self) -> bool {
        self.seat.protocol() >= REFORMING_RING_PROTOCOL
    }

    /// Whether it is time to form the ring anew, as a certificate of its connections ends soon.
    pub fn is_to_reconnect(&self, now: SystemTime) -> bool {
        self.reconnect_at.is_some_and(|at| at <= now)
    }

    /// Whether a certificate of its connections has ended, and with it the ring.
    pub fn is_over(&self, now: SystemTime) -> bool {
        self.seat.valid().is_some_and(|valid| valid.is_over(now))
    }

    /// This goes with the next steps' gathers, until something newer is told.
    pub fn tell(&mut self, news: News) {
        self.told = news;
    }

    /// What the ranks said with the last step's gather, together: the same on all of them. Before the first one, and where
    /// the ring cannot re-form, nothing new.
    pub fn heard(&self) -> News {
        self.heard
    }

    /// Waits until the ring fails, also between gathers. Never ends while it does not, nor once it was left in peace.
    pub fn failed(&self) -> impl Future<Output = RingError> + Send + 'static {
        let ring = self.ring.canceller();
        async move { ring.failed().await }
    }

    /// The trouble with another rank of the ring. None: not the ring's fault.
    pub fn trouble_of(error: &Error) -> Option<Trouble> {
        trouble_of(error)
    }

    /// The exchange of a step: this rank's rows (one a microbatch of [`RankRing::microbatches`], all equally long) for
    /// everybody's. What was told goes with them.
    pub async fn gather(&mut self, own: Vec<Vec<f32>>) -> Result<Gathered, Error> {
        let (at, began) = (SystemTime::now(), Instant::now());
        let gathered = self.gather_with_news(own).await;
        self.exchanged = Some((at, began.elapsed()));
        gathered
    }

    /// When the last exchange of a step began, and how long it took, waiting included.
    pub fn exchanged(&self) -> Option<(SystemTime, Duration)> {
        self.exchanged
    }

    async fn gather_with_news(&mut self, mut own: Vec<Vec<f32>>) -> Result<Gathered, Error> {
        let width = own.first().map_or(0, Vec::len);
        if !self.can_reform() || width == 0 {
            return self.gather_of(self.rows, width, own).await;
        }
        own.iter_mut().for_each(|row| row.extend(self.told.columns()));
        let mut gathered = self.gather_of(self.rows, width + News::COLUMNS, own).await?;
        let mut news = gathered.rows.iter_mut().map(News::strip);
        let none = News::none(self.ring.place().epoch);
        self.heard = news.try_fold(none, |all, one| Some(all.and(one?))).ok_or(Error::Rows)?;
        Ok(gathered)
    }

    /// This rank's share of `rows` rows that are not a step's microbatches; there may be fewer rows than ranks.
    pub fn share_of(&self, rows: usize) -> Range<usize> {
        block_of(self.rank(), self.world_size(), rows)
    }

    /// Exchanges this rank's rows (one for each of [`RankRing::share_of`], each `width` long) for all `rows` rows.
    pub async fn gather_of(
        &mut self,
        rows: usize,
        width: usize,
        own: Vec<Vec<f32>>,
    ) -> Result<Gathered, Error> {
        if width == 0 || own.iter().any(|row| row.len() != width) {
            return Err(Error::Ring(RingError::Misuse("rows of different or no length".to_owned())));
        }
        let began = Instant::now();
        let own = own.concat();
        let gathered = self.seat.guard(self.ring.gather_rows(&own, width, rows)).await?;
        let (exchange, ranks) = (self.ring.last_exchange(), self.world_size());
        if let Some(all) = &mut self.exchanges {
            all.add(began, exchange, size_of_val(gathered.as_slice()), ranks - 1, ranks);
        }
        Ok(Gathered { rows: gathered.chunks_exact(width).map(<[f32]>::to_vec).collect() })
    }

    /// The sum of all microbatches' numbers, whoever computed them: the same bits for any number of ranks. `own`: this rank's,
    /// those of [`RankRing::microbatches`]; `length`: numbers of each; `room`: as many, where this rank has none; `spread`: which
    /// ranks get which sums.
    pub async fn sum<B: Buffer>(
        &mut self,
        own: TreeSum<B>,
        length: usize,
        room: impl FnOnce() -> B,
        spread: Spread,
    ) -> Result<Summed<B>, Error> {
        let began = Instant::now();
        let sum = self.ring.sum_exactly_spread(own, length, room, spread).await?;
        self.travelled(began, length * Element::Fp32.bytes(), spread.reach.hops(self.world_size()));
        Ok(sum)
    }

    /// The sum of all ranks' numbers in the ring's own order, in numbers that travel as `element`: the same bits for the same number
    /// of ranks and the same chunks.
    pub async fn sum_fast<B: Buffer>(
        &mut self,
        own: B,
        element: Element,
        spread: Spread,
    ) -> Result<B, Error> {
        let (began, length) = (Instant::now(), own.len());
        let sum = self.ring.all_reduce_spread(own, element, spread).await?;
        self.travelled(began, length * element.bytes(), spread.reach.hops(self.world_size()));
        Ok(sum)
    }

    /// The rest of the way of a sum that ended on two ranks: what each rank made of its two chunks, on every rank.
    pub async fn share_out<B: Buffer>(&mut self, made: B, granule: usize) -> Result<B, Error> {
        let (began, length) = (Instant::now(), made.len());
        let made = self.ring.share_out(made, granule).await?;
        self.travelled(began, length * Element::Fp32.bytes(), Reach::Two.rest(self.world_size()));
        Ok(made)
    }

    /// Copies rank `root`'s numbers to every rank. `numbers`: of the same length on all of them.
    pub async fn broadcast(&mut self, numbers: Vec<f32>, root: usize) -> Result<Vec<f32>, Error> {
        Ok(self.ring.broadcast(numbers, root).await?)
    }

    /// Takes note of these hops of a sum, whose numbers are so many bytes on their way.
    fn travelled(&mut self, began: Instant, bytes: usize, hops: Range<usize>) {
        let (exchange, ranks) = (self.ring.last_exchange(), self.world_size());
        if let Some(all) = &mut self.exchanges {
            all.add(began, exchange, bytes, hops.len(), ranks);
        }
    }

    /// Counts the traffic from here on as a step's, until [`RankRing::step_exchanged`].
    pub fn begin_step(&mut self) {
        self.exchanges = Some(Exchanges::default());
    }

    /// What the exchanges since [`RankRing::begin_step`] took. `computed`: when this rank had computed; `seconds`: what each
    /// microbatch of the step took, whoever computed it.
    pub fn step_exchanged(&mut self, computed: Instant, seconds: &[f32]) -> StepExchange {
        let ranks = self.world_size();
        let blocks: Vec<Range<usize>> = (0..ranks).map(|rank| block_of(rank, ranks, self.rows)).collect();
        let exchanges = self.exchanges.take().unwrap_or_default();
        exchanges.seen(computed, behind(seconds, &blocks, self.rank()))
    }

    /// Microbatches of a step, over all ranks.
    pub fn all_microbatches(&self) -> usize {
        self.rows
    }

    /// Exchanges one row of this rank, as long as everybody's, for one of each rank, in their order.
    pub async fn gather_one_each(&mut self, own: Vec<f32>) -> Result<Vec<Vec<f32>>, Error> {
        Ok(self.gather_of(self.world_size(), own.len(), vec![own]).await?.rows)
    }

    /// Leaves after the last exchange, without harm to slower neighbours.
    pub async fn close(self) -> Result<(), Error> {
        Ok(self.ring.close().await?)
    }
}

//! Runs one piece of work on all ranks of a ring, and notices when it hangs.

use std::future::Future;
use std::time::Duration;

use ringtune_shared::ids::{Epoch, JobId};
use ringtune_shared::ring::{Place, Ring, RingConfig, RingError};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{Failure, Fault, Faulty, Graveyard, NewRing, SuiteConfig, TransportFactory};

/// What all cases are run with.
#[derive(Clone, Copy)]
pub(super) struct Suite<'suite> {
    pub(super) factory: &'suite dyn TransportFactory,
    pub(super) config: &'suite SuiteConfig,
}

/// A ring to run a case on.
pub(super) struct Case<'suite> {
    pub(super) name: String,
    pub(super) factory: &'suite dyn TransportFactory,
    pub(super) world_size: usize,
    pub(super) ring: RingConfig,
    /// The rank with a fault.
    pub(super) fault: Option<(usize, Fault)>,
    /// Beyond this the case hangs.
    pub(super) patience: Duration,
}

/// What became of a rank.
#[derive(Debug)]
pub(super) struct Outcome<T> {
    pub(super) result: Result<T, RingError>,
    /// When it ended, counted from the start of the case.
    pub(super) after: Duration,
}

/// The epoch of the suite's rings: one that has older and newer neighbours.
pub(super) const EPOCH: Epoch = Epoch(7);

impl<'suite> Case<'suite> {
    pub(super) fn new(name: String, Suite { factory, config }: Suite<'suite>, world_size: usize) -> Self {
        // Twice: a rank may begin to listen only when another one has given up.
        let patience = (config.ring.peer_timeout + config.ring.pulse_interval) * 2 + config.slack;
        Self { name, factory, world_size, ring: config.ring.clone(), fault: None, patience }
    }

    pub(super) fn failure(&self, problem: impl Into<String>) -> Failure {
        let fault = self.fault.map(|(rank, fault)| format!(", rank {rank}: {fault:?}")).unwrap_or_default();
        let (ranks, segment) = (self.world_size, self.ring.segment_floats);
        Failure::new(format!("{} ({ranks} ranks, segments of {segment}{fault})", self.name), problem)
    }

    /// Every rank's outcome, in the order of the ranks.
    pub(super) async fn run<T, Work, Working>(&self, work: Work) -> Result<Vec<Outcome<T>>, Failure>
    where
        T: Send + 'static,
        Work: Fn(Ring) -> Working,
        Working: Future<Output = Result<T, RingError>> + Send + 'static,
    {
        let graveyard = Graveyard::default();
        let rings = self.rings(&graveyard).await?;
        let began = Instant::now();
        let mut ranks = JoinSet::new();
        for (rank, ring) in rings.into_iter().enumerate() {
            let working = work(ring);
            ranks.spawn(async move {
                let result = working.await;
                (rank, Outcome { result, after: began.elapsed() })
            });
        }
        let mut outcomes = timeout(self.patience, ranks.join_all())
            .await
            .map_err(|_| self.failure(format!("hangs for {:?}", self.patience)))?;
        outcomes.sort_by_key(|(rank, _)| *rank);
        Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
    }

    async fn rings(&self, graveyard: &Graveyard) -> Result<Vec<Ring>, Failure> {
        let job = JobId::new();
        if self.world_size == 1 {
            return Ok(vec![Ring::alone(job, EPOCH)]);
        }
        let new_ring = NewRing { job, epoch: EPOCH, world_size: self.world_size };
        let connecting = timeout(self.patience, self.factory.connect(new_ring));
        let transports = connecting.await.map_err(|_| self.failure("connecting the ring hangs"))??;
        if transports.len() != self.world_size {
            return Err(self.failure(format!("the factory made {} transports", transports.len())));
        }
        let mut rings = Vec::with_capacity(self.world_size);
        for (rank, mut transport) in transports.into_iter().enumerate() {
            if let Some((faulty, fault)) = self.fault
                && faulty == rank
            {
                transport = Faulty::any(transport, fault, graveyard);
            }
            let place = Place { job, epoch: EPOCH, rank, world_size: self.world_size };
            let ring = Ring::start(place, transport, self.ring.clone());
            rings.push(ring.map_err(|error| self.failure(error.to_string()))?);
        }
        Ok(rings)
    }
}

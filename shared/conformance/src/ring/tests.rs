use ringtune_shared::ring::{Place, Ring, RingError, StripedReceive, StripedSend, Transport};

use super::harness::EPOCH;
use super::*;

struct Memory {
    capacity: usize,
}

#[async_trait]
impl TransportFactory for Memory {
    async fn connect(&self, ring: NewRing) -> Result<Vec<AnyTransport>, Failure> {
        let transports = memory::ring(ring.world_size, self.capacity);
        Ok(transports.into_iter().map(AnyTransport::new).collect())
    }
}

/// Several of them as one.
struct Striped {
    streams: usize,
}

struct Stripes(Vec<memory::MemoryTransport>);

impl Transport for Stripes {
    type Send = StripedSend<memory::MemorySendHalf>;
    type Receive = StripedReceive<memory::MemoryReceiveHalf>;

    fn split(self) -> (Self::Send, Self::Receive) {
        let (send, receive) = self.0.into_iter().map(Transport::split).unzip();
        (StripedSend::new(send), StripedReceive::new(receive))
    }
}

#[async_trait]
impl TransportFactory for Striped {
    async fn connect(&self, ring: NewRing) -> Result<Vec<AnyTransport>, Failure> {
        let mut ranks: Vec<_> = (0..ring.world_size).map(|_| Stripes(Vec::new())).collect();
        for _ in 0..self.streams {
            let ring = memory::ring(ring.world_size, 2);
            ranks.iter_mut().zip(ring).for_each(|(rank, stream)| rank.0.push(stream));
        }
        Ok(ranks.into_iter().map(AnyTransport::new).collect())
    }
}

fn rings(world_size: usize, capacity: usize, config: &RingConfig) -> Vec<Ring> {
    faulty_rings(world_size, capacity, config, &[], &Graveyard::default())
}

fn faulty_rings(
    world_size: usize,
    capacity: usize,
    config: &RingConfig,
    faults: &[(usize, Fault)],
    graveyard: &Graveyard,
) -> Vec<Ring> {
    let job = JobId::new();
    let mut rings = Vec::new();
    for (rank, transport) in memory::ring(world_size, capacity).into_iter().enumerate() {
        let mut transport = AnyTransport::new(transport);
        for (_, fault) in faults.iter().filter(|(faulty, _)| *faulty == rank) {
            transport = Faulty::any(transport, *fault, graveyard);
        }
        let place = Place { job, epoch: EPOCH, rank, world_size };
        rings.push(Ring::start(place, transport, config.clone()).unwrap());
    }
    rings
}

#[tokio::test(start_paused = true)]
async fn the_ring_in_memory_passes() {
    for capacity in [1, 16] {
        run_all(&Memory { capacity }, &SuiteConfig::default()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_ring_over_several_streams_passes() {
    run_all(&Striped { streams: 3 }, &SuiteConfig::default()).await.unwrap();
    let few = SuiteConfig { world_sizes: vec![2, 3], sizes: vec![0, 5, 1000], ..SuiteConfig::default() };
    for streams in [2, 8] {
        run_all(&Striped { streams }, &few).await.unwrap();
    }
}

/// A rank that is done stays for as long as the previous one needs, however long that is.
#[tokio::test(start_paused = true)]
async fn a_rank_that_is_done_first_breaks_nobodys_ring() {
    let config = RingConfig::default();
    let [mut slow, mut done]: [Ring; 2] = rings(2, 4, &config).try_into().ok().unwrap();
    let (first, second) = tokio::join!(slow.all_reduce(vec![1.0; 8]), done.all_reduce(vec![2.0; 8]));
    first.and(second).unwrap();
    let leaving = tokio::spawn(done.close());
    // It pulses all the time.
    tokio::time::sleep(config.peer_timeout * 5).await;
    assert_eq!(slow.failure(), None);
    assert!(!leaving.is_finished());
    slow.close().await.unwrap();
    leaving.await.unwrap().unwrap();
}

/// As above on a real clock and several threads, as over sockets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ring_in_memory_passes_on_a_real_clock() {
    let config = SuiteConfig {
        world_sizes: vec![1, 3],
        sizes: vec![0, 5, 1000, 100_003],
        ring: RingConfig {
            pulse_interval: Duration::from_millis(50),
            peer_timeout: Duration::from_millis(1000),
            ..RingConfig::default()
        },
        ..SuiteConfig::default()
    };
    run_all(&Memory { capacity: 4 }, &config).await.unwrap();
}

/// Another order of additions gives other bits with the suite's numbers, so the suite would see it.
#[test]
fn the_suites_numbers_show_the_order_of_additions() {
    let (world_size, size) = (3, 1000);
    let backwards: Vec<f32> = (0..size)
        .map(|index| (0..world_size).rev().fold(0.0, |sum, rank| sum + reference::contribution(rank, index)))
        .collect();
    assert!(reference::difference(&backwards, &reference::reduced(world_size, size)).is_some());
    assert!(reference::difference(&[0.0], &[-0.0]).is_some());
    assert!(reference::difference(&[0.0], &[0.0, 0.0]).is_some());
}

#[tokio::test(start_paused = true)]
async fn random_schedules_end_well_or_with_a_typed_error() {
    for seed in 0..300 {
        schedule::run(&Memory { capacity: 1 + seed as usize % 5 }, seed).await.unwrap();
    }
}

/// What makes a failing seed useful: it does the same again, to the microsecond.
#[tokio::test(start_paused = true)]
async fn a_seed_replays_its_schedule() {
    let mut ends_in_failure = 0;
    for seed in [7, 8, 9, 10] {
        let once = schedule::run(&Memory { capacity: 2 }, seed).await.unwrap();
        let again = schedule::run(&Memory { capacity: 2 }, seed).await.unwrap();
        assert!(once.len() > 20, "{once:?}");
        assert_eq!(once, again);
        ends_in_failure += usize::from(once.iter().any(|line| line.contains("ends: Err")));
    }
    assert!(
        (1..4).contains(&ends_in_failure),
        "both kinds should be among the seeds: {ends_in_failure} fail"
    );
}

#[tokio::test]
async fn a_ring_of_one_copies() {
    let mut ring = Ring::alone(JobId::new(), EPOCH);
    let buffer = ring.all_reduce(vec![1.5, -0.0]).await.unwrap();
    assert_eq!(buffer.iter().map(|number| number.to_bits()).collect::<Vec<_>>(), [0x3fc0_0000, 0x8000_0000]);
    assert_eq!(ring.gather_rows(&[1.0, 2.0, 3.0, 4.0], 2, 2).await.unwrap(), [1.0, 2.0, 3.0, 4.0]);
    let canceller = ring.canceller();
    canceller.cancel();
    assert_eq!(ring.all_reduce(buffer).await, Err(RingError::Cancelled));
    assert_eq!(canceller.failed().await, RingError::Cancelled);
    ring.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn impossible_demands_are_refused_and_end_the_ring() {
    let mut ring = Ring::alone(JobId::new(), EPOCH);
    assert!(matches!(ring.gather_rows(&[1.0], 2, 1).await, Err(RingError::Misuse(_))));
    let mut ring = Ring::alone(JobId::new(), EPOCH);
    assert!(matches!(ring.gather_rows(&[], usize::MAX, 2).await, Err(RingError::Misuse(_))));

    let mut ring = rings(2, 4, &RingConfig::default());
    let mut other = ring.pop().unwrap();
    let mut one = ring.pop().unwrap();
    let misuse = one.gather_rows(&[0.0; 3], 2, 2).await.unwrap_err();
    assert!(matches!(misuse, RingError::Misuse(_)));
    assert_eq!(one.failure(), Some(misuse));
    assert!(matches!(other.all_reduce(vec![0.0]).await, Err(RingError::PeerLost { rank: 0, .. })));
}

#[tokio::test]
async fn wrong_settings_are_refused() {
    let place = Place { job: JobId::new(), epoch: EPOCH, rank: 0, world_size: 2 };
    let good = RingConfig::default();
    for wrong in [
        RingConfig { segment_floats: 0, ..good.clone() },
        RingConfig { segment_floats: 1 << 19, ..good.clone() },
        RingConfig { segment_growth: 0, ..good.clone() },
        RingConfig { segment_growth: 5, ..good.clone() },
        RingConfig { frames_in_flight: 1, ..good.clone() },
        RingConfig { pulse_interval: Duration::ZERO, ..good.clone() },
        RingConfig { peer_timeout: good.pulse_interval, ..good.clone() },
    ] {
        let transport = memory::ring(2, 1).pop().unwrap();
        assert!(matches!(Ring::start(place, transport, wrong), Err(RingError::Misuse(_))));
    }
    let transport = memory::ring(2, 1).pop().unwrap();
    let outside = Place { rank: 2, ..place };
    assert!(matches!(Ring::start(outside, transport, good), Err(RingError::Misuse(_))));
}

/// Whoever drops a collective half-way has left the others in it: the ring is over, for all.
#[tokio::test(start_paused = true)]
async fn a_collective_that_is_dropped_half_way_ends_the_ring() {
    let mut ring = rings(2, 1, &RingConfig::default());
    let mut other = ring.pop().unwrap();
    let mut one = ring.pop().unwrap();
    let dropped = tokio::time::timeout(Duration::from_secs(2), one.all_reduce(vec![1.0; 10])).await;
    assert!(dropped.is_err());
    assert_eq!(one.all_reduce(vec![1.0; 10]).await, Err(RingError::Cancelled));
    assert!(matches!(other.all_reduce(vec![1.0; 10]).await, Err(RingError::PeerLost { .. })));
    assert_eq!(one.close().await, Err(RingError::Cancelled));
}

/// What waits on the way may take many times a lease, as long as each segment takes less.
#[tokio::test(start_paused = true)]
async fn a_slow_link_that_moves_is_waited_for_to_the_end() {
    let config = RingConfig { segment_floats: 1, ..RingConfig::default() };
    let slow = Fault::Slow { pause: config.peer_timeout / 2 };
    let mut ring = faulty_rings(2, 1, &config, &[(0, slow)], &Graveyard::default());
    let (mut other, mut one) = (ring.pop().unwrap(), ring.pop().unwrap());
    let summed = tokio::join!(one.all_reduce(vec![1.0; 80]), other.all_reduce(vec![2.0; 80]));
    assert_eq!(summed, (Ok(vec![3.0; 80]), Ok(vec![3.0; 80])));
}

/// An idle ring notices too: a rank need not be in a collective to learn that the ring is over.
#[tokio::test(start_paused = true)]
async fn an_idle_rank_learns_that_a_neighbour_is_gone() {
    let mut ring = rings(3, 1, &RingConfig::default());
    let watching = ring[2].canceller();
    drop(ring.remove(0));
    assert!(matches!(watching.failed().await, RingError::PeerLost { .. }));
}

/// Rank 0 has all it needs and leaves in peace; rank 2, which has sent all that rank 0 needed, does
/// not take in any more. No failure can reach rank 1 through rank 0, so it has to notice itself.
#[tokio::test(start_paused = true)]
async fn a_rank_that_stops_taking_in_is_noticed_after_the_previous_one_has_left() {
    let config =
        RingConfig { segment_floats: 1, segment_growth: 1, frames_in_flight: 2, ..RingConfig::default() };
    // Chunks of 20 segments, 4 hops: rank 2 sends 80 frames in all, the last ones when rank 1 has as many left for it.
    let slow = Fault::Slow { pause: Duration::from_millis(1) };
    let (faults, graveyard) = ([(1, slow), (2, Fault::Freeze { after: 80 })], Graveyard::default());
    let mut ring = faulty_rings(3, 1, &config, &faults, &graveyard);
    let mut two = ring.pop().unwrap();
    let mut one = ring.pop().unwrap();
    let mut zero = ring.pop().unwrap();
    let working = tokio::spawn(async move {
        let result = two.all_reduce(vec![2.0; 60]).await;
        std::future::pending::<()>().await;
        (result, two)
    });
    let leaving = tokio::spawn(async move {
        zero.all_reduce(vec![0.0; 60]).await?;
        zero.close().await
    });
    let result = one.all_reduce(vec![1.0; 60]).await;
    assert!(matches!(result, Err(RingError::Stalled { rank: 2, .. })), "{result:?}");
    assert_eq!(leaving.await.unwrap(), Ok(()));
    working.abort();
}

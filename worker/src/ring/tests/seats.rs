//! Forming a ring: seats that are taken at any time and in any order, and leftovers of earlier rings.

use ringtune_shared::ring::RingError;

use super::*;
use crate::ring::{News, RankRing, TroubleKind};

fn view_of(job: JobId, epoch: u64, workers: &[(Rings, SocketAddr)]) -> RingView {
    view(job, Epoch(epoch), workers.iter().map(|(_, address)| *address))
}

/// All ranks of a ring, connected.
async fn connected(view: &RingView, workers: &[(Rings, SocketAddr)], protocol: u32) -> Vec<RankRing> {
    let mut connecting = JoinSet::new();
    for (rank, (rings, _)) in workers.iter().enumerate() {
        let seat = rings.take_seat(view, rank, workers.len(), protocol).unwrap();
        connecting.spawn(async move { (rank, seat.connect().await.unwrap()) });
    }
    let mut rings = connecting.join_all().await;
    rings.sort_by_key(|(rank, _)| *rank);
    rings.into_iter().map(|(_, ring)| ring).collect()
}

/// Runs a step of every rank: each row names its rank.
async fn step(rings: &mut [RankRing]) {
    let world_size = rings.len();
    let expected: Vec<Vec<f32>> = (0..world_size).map(|rank| vec![rank as f32, 0.5]).collect();
    let gathering =
        rings.iter_mut().enumerate().map(|(rank, ring)| ring.gather(vec![vec![rank as f32, 0.5]]));
    for gathered in futures_of(gathering).await {
        assert_eq!(gathered.unwrap().rows, expected);
    }
}

/// Results of futures that run concurrently.
async fn futures_of<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, given) in &mut running {
            if given.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *given = Some(value);
            }
        }
        match running.iter().all(|(_, given)| given.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    running.into_iter().filter_map(|(_, given)| given).collect()
}

async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_stream_that_comes_before_the_seat_is_taken_waits_for_it() {
    let workers = workers(2, RingOptions::default()).await;
    let job = JobId::new();
    // The second one has no seat at first, and then one in the epoch before.
    for epoch in [1, 2] {
        let view = view_of(job, epoch, &workers);
        let early = workers[0].0.take_seat(&view, 0, 2, RING_PROTOCOLS.max).unwrap();
        let early = ringtune_shared::tasks::spawn(early.connect());
        until(|| workers[1].0.waiting() == 1).await;
        let late = workers[1].0.take_seat(&view, 1, 2, RING_PROTOCOLS.max).unwrap();
        let mut rings = vec![late.connect().await.unwrap()];
        rings.insert(0, early.await.unwrap().unwrap());
        assert_eq!(workers[1].0.waiting(), 0);
        step(&mut rings).await;
    }
}

/// Rank 1 is silent while rank 0 has not called it, and rank 2 knows that it may be.
#[tokio::test]
async fn a_rank_that_connects_long_after_the_others_breaks_no_ring() {
    let workers = workers(3, quick(Duration::from_millis(300))).await;
    let view = view_of(JobId::new(), 1, &workers);
    let seat = |rank: usize| workers[rank].0.take_seat(&view, rank, 3, RING_PROTOCOLS.max).unwrap();
    let (late, others) = (seat(0), [1, 2].map(|rank| ringtune_shared::tasks::spawn(seat(rank).connect())));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let mut rings = vec![late.connect().await.unwrap()];
    for other in others {
        rings.push(other.await.unwrap().unwrap());
    }
    step(&mut rings).await;
}

#[tokio::test]
async fn an_address_where_nobody_listens_yet_is_dialled_again() {
    let one = listening(RingOptions::default()).await;
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let view = view(JobId::new(), Epoch::FIRST, [one.1, address]);
    let early =
        ringtune_shared::tasks::spawn(one.0.take_seat(&view, 0, 2, RING_PROTOCOLS.max).unwrap().connect());
    // It may well have tried once or twice by now; it succeeds in any case.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let two = Rings::new(quick(Duration::from_secs(2)), Arc::new(Metrics::new().unwrap()));
    serve(&two, TcpListener::bind(address).await.unwrap());
    let late = two.take_seat(&view, 1, 2, RING_PROTOCOLS.max).unwrap().connect().await.unwrap();
    step(&mut [early.await.unwrap().unwrap(), late]).await;
}

#[tokio::test]
async fn an_older_epoch_is_refused_for_good_and_counted() {
    let workers = workers(2, RingOptions::default()).await;
    let job = JobId::new();
    let (older, newer) = (view_of(job, 3, &workers), view_of(job, 4, &workers));
    let _seat = workers[1].0.take_seat(&newer, 1, 2, RING_PROTOCOLS.max).unwrap();
    let left_behind = workers[0].0.take_seat(&older, 0, 2, RING_PROTOCOLS.max).unwrap();
    let error = left_behind.connect().await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused { rank: 1, reason, .. } if reason.contains("an older one")),
        "{error}"
    );
    assert_eq!(workers[1].0.metrics().stale_calls.get(), 1);
    // Nor does an older place come back on the same worker.
    let again = workers[1].0.take_seat(&older, 1, 2, RING_PROTOCOLS.max);
    assert!(matches!(again, Err(Error::Replaced)));
}

#[tokio::test]
async fn a_rank_that_still_connects_gives_way_to_a_newer_epoch() {
    let workers = workers(2, RingOptions::default()).await;
    let job = JobId::new();
    let seat = workers[0].0.take_seat(&view_of(job, 1, &workers), 0, 2, RING_PROTOCOLS.max).unwrap();
    let connecting = ringtune_shared::tasks::spawn(seat.connect());
    until(|| workers[1].0.waiting() == 1).await;
    let newer = view_of(job, 2, &workers);
    let mut rings = connected(&newer, &workers, RING_PROTOCOLS.max).await;
    assert!(matches!(connecting.await.unwrap(), Err(Error::Replaced)));
    step(&mut rings).await;
}

#[tokio::test]
async fn a_new_ring_is_not_disturbed_by_what_is_left_of_the_old_one() {
    let workers = workers(3, RingOptions::default()).await;
    let job = JobId::new();
    let mut old = connected(&view_of(job, 1, &workers), &workers, RING_PROTOCOLS.max).await;
    step(&mut old).await;
    // The old connections stand while the new ring forms, and break afterwards.
    let mut new = connected(&view_of(job, 2, &workers), &workers, RING_PROTOCOLS.max).await;
    step(&mut new).await;
    let broken = old[1].failed();
    drop(old.remove(0));
    assert!(matches!(broken.await, RingError::PeerLost { .. }));
    drop(old);
    step(&mut new).await;
    // The places are still those of the new ring.
    assert!(workers.iter().all(|(rings, _)| rings.place(job).is_some_and(|place| place.epoch == Epoch(2))));
    drop(new);
    assert!(workers.iter().all(|(rings, _)| rings.place(job).is_none()));
}

#[tokio::test]
async fn news_go_with_the_steps_of_rings_that_can_re_form() {
    let workers = workers(3, RingOptions::default()).await;
    for (protocol, heard) in [
        (RING_PROTOCOLS.max, News { newest_epoch: Epoch(5), stored_step: 9 }),
        (2, News { newest_epoch: Epoch(1), stored_step: 0 }),
    ] {
        let mut rings = connected(&view_of(JobId::new(), 1, &workers), &workers, protocol).await;
        assert!(rings.iter().all(|ring| ring.heard() == News { newest_epoch: Epoch(1), stored_step: 0 }));
        rings[1].tell(News { newest_epoch: Epoch(5), stored_step: 2 });
        rings[2].tell(News { newest_epoch: Epoch(1), stored_step: 9 });
        step(&mut rings).await;
        for ring in &rings {
            assert_eq!((ring.heard(), ring.can_reform()), (heard, protocol > 2));
        }
        // Other gathers are as they were.
        let others = rings.iter_mut().map(|ring| ring.gather_one_each(vec![ring.rank() as f32]));
        for rows in futures_of(others).await {
            assert_eq!(rows.unwrap(), [[0.0], [1.0], [2.0]]);
        }
    }
}

#[tokio::test]
async fn a_rank_that_computes_learns_that_its_neighbour_is_gone_and_says_who() {
    let workers = workers(2, RingOptions::default()).await;
    let mut rings = connected(&view_of(JobId::new(), 1, &workers), &workers, RING_PROTOCOLS.max).await;
    let failed = rings[0].failed();
    drop(rings.remove(1));
    let trouble = RankRing::trouble_of(&failed.await.into()).unwrap();
    assert_eq!((trouble.kind, trouble.rank), (TroubleKind::Closed, 1));
}

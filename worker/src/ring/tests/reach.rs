//! Neighbours that cannot be reached while a ring is being formed, and workers that somebody asks about.

use std::time::Instant;

use super::*;
use crate::{membership::testing::Certified, ring::RankRing};

const LEASE: Duration = Duration::from_millis(300);

/// A port on which connections are made, and nothing is said.
async fn mute() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A port where nobody listens.
async fn nowhere() -> SocketAddr {
    mute().await.1
}

/// Forms rank 0's ring with these neighbours: why it has none, and after how long.
async fn forming(options: RingOptions, others: &[SocketAddr]) -> (Error, Duration) {
    let (rings, address) = listening(options).await;
    let members = [address].into_iter().chain(others.iter().copied());
    let view = view(JobId::new(), Epoch::FIRST, members);
    let began = Instant::now();
    let seat = rings.take_seat(&view, 0, view.members.len(), RING_PROTOCOLS.max).unwrap();
    (seat.connect().await.unwrap_err(), began.elapsed())
}

/// Both the next rank, which is dialled, and the previous one, which was to call.
#[tokio::test]
async fn a_neighbour_that_is_not_reached_is_lost_within_the_lease_whichever_it_is() {
    let (_there, there) = listening(RingOptions::default()).await;
    let (_mute, mute) = mute().await;
    let nowhere = nowhere().await;
    for (others, lost, most) in
        [([mute, there], 1, 3), ([there, mute], 2, 3), ([nowhere, there], 1, 3), ([there, nowhere], 2, 3)]
    {
        let (error, took) = forming(quick(LEASE), &others).await;
        assert!(matches!(error, Error::Unreachable { rank, .. } if rank == lost), "{error}");
        assert!(took < Duration::from_secs(most), "{took:?}: {error}");
    }
}

#[tokio::test]
async fn a_neighbour_that_answers_is_waited_for_however_long_it_takes() {
    let (rings, address) = listening(quick(LEASE)).await;
    let (late, late_address) = listening(quick(LEASE)).await;
    let view = view(JobId::new(), Epoch::FIRST, [address, late_address]);
    let early =
        ringtune_shared::tasks::spawn(rings.take_seat(&view, 0, 2, RING_PROTOCOLS.max).unwrap().connect());
    // Many leases.
    tokio::time::sleep(10 * LEASE).await;
    let late = late.take_seat(&view, 1, 2, RING_PROTOCOLS.max).unwrap().connect().await.unwrap();
    drop((early.await.unwrap().unwrap(), late));
}

/// Rank 0 is called and has called, and the ring still waits for others when it loses one.
#[tokio::test]
async fn a_neighbour_that_falls_silent_before_the_first_exchange_is_lost() {
    let (one, one_address) = listening(quick(LEASE)).await;
    let (two, two_address) = listening(quick(LEASE)).await;
    let proxied = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let through = proxied.local_addr().unwrap();
    // Rank 1 is dialled through a door that is shut later.
    let (shut, open) = tokio::sync::watch::channel(true);
    let passing = tokio::spawn(async move {
        let mut passing = JoinSet::new();
        while let Ok((mut near, _)) = proxied.accept().await {
            let mut open = open.clone();
            passing.spawn(async move {
                let mut far = tokio::net::TcpStream::connect(two_address).await.unwrap();
                tokio::select! {
                    biased;
                    () = async { drop(open.wait_for(|open| !open).await) } => std::future::pending().await,
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => (),
                }
            });
        }
    });
    let view = view(JobId::new(), Epoch::FIRST, [one_address, through]);
    let seat = |rings: &Rings, rank| rings.take_seat(&view, rank, 2, RING_PROTOCOLS.max).unwrap();
    let (first, second) = tokio::join!(seat(&one, 0).connect(), seat(&two, 1).connect());
    let (mut first, _second) = (first.unwrap(), second.unwrap());
    shut.send_replace(false);
    let began = Instant::now();
    let error = first.gather(vec![vec![0.5]]).await.unwrap_err();
    assert!(RankRing::trouble_of(&error).is_some_and(|trouble| trouble.rank == 1), "{error}");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    passing.abort();
}

#[tokio::test]
async fn whoever_is_asked_about_is_reached_or_it_is_said_why_not() {
    let (rings, _) = listening(RingOptions::default()).await;
    let (_there, there) = listening(RingOptions::default()).await;
    let (_mute, mute) = mute().await;
    let worker = WorkerId::new();
    let look = async |address: SocketAddr| rings.look_at(worker, &address.to_string()).await;
    assert_eq!(look(there).await, Ok(()));
    let began = Instant::now();
    assert_eq!(look(mute).await, Err("it did not answer within 1.5 s".to_owned()));
    let refused = look(nowhere().await).await.unwrap_err();
    assert!(refused.contains("refused"), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// A worker's options in a secured cluster.
fn secured(certified: &Certified) -> RingOptions {
    RingOptions { trust: Some(certified.trust()), ..quick(LEASE) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_of_another_cluster_is_not_reached_and_makes_nobody_wait() {
    let (ours, theirs) = (Cluster::new(), Cluster::new());
    let stranger = theirs.worker();
    let (_rings, address) = listening(secured(&stranger)).await;
    let (error, took) = forming(secured(&ours.worker()), &[address]).await;
    assert!(matches!(error, Error::Unreachable { rank: 1, .. }), "{error}");
    assert!(took < Duration::from_secs(3), "{took:?}: {error}");
    let (rings, _) = listening(secured(&ours.worker())).await;
    let reason = rings.look_at(stranger.id, &address.to_string()).await.unwrap_err();
    assert!(reason.contains("CA"), "{reason}");
}

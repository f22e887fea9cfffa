//! One rank of a ring whose all-reduces are timed: a process of its own, which tests/bench/ring.py drives.
//!
//! usage: ring [--pki FOLDER] [--sockets FOLDER [--without-memory]] [--connections N]; the ranks share the folders. With the first, which the first rank
//! fills, the ring speaks TLS.
//!
//! Each line on stdin is an order, each answer a line on stdout:
//! - it begins with `{"worker": ID, "address": HOST:PORT}`;
//! - `{"job": ID, "rank": R, "members": [those lines]}` forms the ring: `{"connected": true, "reached": TEXT}`, how the next rank is
//!   reached, or null;
//! - `{"floats": N, "times": K}` adds N floats up K times: `{"seconds": [..], "processor_seconds": [..], "allocations": A,
//!   "segments": S}`: one time each, and what it took of processors; how often memory was asked for and how many segments were sent,
//!   all times together. With `"exact": true` by the tree whose sums do not depend on the ring. `"floats": [N, M]` adds up
//!   buffers of these sizes one after the other: the buckets of a model.
//!
//! Before each time the ranks wait for each other. It ends with its stdin.

mod counted;
mod orders;
mod worker;

use std::{error::Error, path::PathBuf, time::Instant};

use clap::Parser;
use counted::Cost;
use orders::{Address, Form, answer, orders};
use ringtune_shared::{
    ids::Epoch,
    ring::{Element, Member, Ring, RingView, tree::TreeSum},
    version::RING_PROTOCOLS,
};
use ringtune_worker::{node::keep_blocks, ring::Seat};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::runtime::Builder;
use worker::{Reach, Worker};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Deserialize)]
#[serde(untagged)]
enum Order {
    Form(Form),
    AddUp {
        floats: Sizes,
        times: usize,
        #[serde(default)]
        sums: Sums,
    },
}

/// How numbers are added up.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Sums {
    #[default]
    Fast,
    /// As fast, in numbers that travel in bf16.
    FastBf16,
    Exact,
}

/// Numbers of one buffer, or of several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Sizes {
    One(usize),
    Several(Vec<usize>),
}

/// How ranks reach each other.
#[derive(Parser)]
struct Options {
    /// Over TLS, with the certificate authority of this folder.
    #[arg(long)]
    pki: Option<PathBuf>,
    /// Through Unix sockets in this folder, and memory that neighbours share.
    #[arg(long)]
    sockets: Option<PathBuf>,
    /// Through the sockets alone.
    #[arg(long)]
    without_memory: bool,
    /// Connections to the next rank, over TCP and TLS; 0: as many as are worth while.
    #[arg(long, default_value_t = 0)]
    connections: usize,
    /// Cargo says it.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A rank's place, and its ring there.
struct Seated {
    ring: Ring,
    _seat: Seat,
}

fn main() -> Outcome<()> {
    let options = Options::parse();
    keep_blocks();
    let Options { pki, sockets, without_memory, connections, .. } = options;
    let reach = Reach { pki, sockets, without_memory, connections };
    Builder::new_multi_thread().enable_all().build()?.block_on(serve(reach))
}

async fn serve(reach: Reach) -> Outcome<()> {
    let worker = Worker::start(&reach).await?;
    let Member { worker: id, address } = worker.member.clone();
    answer(&Address { worker: id, address })?;
    let mut orders = orders();
    let mut seated = None;
    while let Some(order) = orders.recv().await {
        match serde_json::from_str(&order)? {
            Order::Form(Form { job, rank, members }) => {
                let members = members
                    .into_iter()
                    .map(|Address { worker, address }| Member { worker, address })
                    .collect();
                let view = RingView { job, epoch: Epoch::FIRST, members };
                let seat = worker.rings.take_seat(&view, rank, view.world_size(), RING_PROTOCOLS.max)?;
                let mut seat = seat.for_steps_of(u64::MAX);
                let ring = seat.ring().await?;
                answer(&json!({"connected": true, "reached": seat.reached()}))?;
                seated = Some(Seated { ring, _seat: seat });
            }
            Order::AddUp { floats, times, sums } => {
                let Seated { ring, .. } = seated.as_mut().ok_or("there is no ring yet")?;
                let floats = match floats {
                    Sizes::One(floats) => vec![floats],
                    Sizes::Several(floats) => floats,
                };
                answer(&add_up(ring, &floats, times, sums).await?)?;
            }
        }
    }
    Ok(())
}

/// What adding up cost this rank.
#[derive(Default, Serialize)]
struct Costs {
    /// Of each time.
    seconds: Vec<f64>,
    processor_seconds: Vec<f64>,
    /// Of all times together.
    allocations: u64,
    segments: u64,
}

async fn add_up(ring: &mut Ring, floats: &[usize], times: usize, sums: Sums) -> Outcome<Costs> {
    let place = ring.place();
    let mut buffers: Vec<Vec<f32>> = floats.iter().map(|floats| vec![0.0; *floats]).collect();
    let mut costs = Costs::default();
    costs.seconds.reserve(times);
    costs.processor_seconds.reserve(times);
    let expected = (0..place.world_size).map(|rank| (rank + 1) as f32).sum::<f32>();
    // The first time does not count.
    for time in 0..=times {
        buffers.iter_mut().for_each(|buffer| buffer.fill((place.rank + 1) as f32));
        ring.all_reduce(vec![0.0]).await?;
        let (began, before, mut segments) = (Instant::now(), Cost::so_far(), 0);
        for buffer in &mut buffers {
            let own = std::mem::take(buffer);
            *buffer = match sums {
                Sums::Fast => ring.all_reduce(own).await?,
                Sums::FastBf16 => ring.all_reduce_as(own, Element::Bf16).await?,
                Sums::Exact => {
                    let (floats, mut sum) = (own.len(), TreeSum::new(place.world_size));
                    sum.push(place.rank, own);
                    ring.sum_exactly(sum, floats, Vec::new).await?.sum
                }
            };
            segments += ring.last_exchange().sent_segments;
        }
        if time > 0 {
            costs.seconds.push(began.elapsed().as_secs_f64());
            let cost = Cost::so_far().since(before);
            costs.processor_seconds.push(cost.processor.as_secs_f64());
            costs.allocations += cost.allocations;
            costs.segments += segments;
        }
        // Whoever checks takes no core from those who still add up.
        ring.barrier().await?;
        if buffers.iter().flatten().any(|sum| *sum != expected) {
            return Err("the sums are wrong".into());
        }
    }
    Ok(costs)
}

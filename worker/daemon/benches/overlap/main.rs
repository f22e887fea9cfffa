//! One rank that takes the gradients of a GPT-2 and adds them up with others: a process of its own, which
//! tests/bench/overlap.py drives. It says how much of the exchange is left when its backward pass is over.
//!
//! Each line on stdin is an order, each answer a line on stdout:
//! - it begins with `{"worker": ID, "address": HOST:PORT}`;
//! - `{"job": ID, "rank": R, "members": [those lines]}` forms the ring: `{"connected": true}`;
//! - `{"layers": 12, "width": 768, "block": 256, "batch": 1, "microbatches": 1, "threads": 1}` opens a GPT-2 from scratch; each
//!   rank has so many microbatches of so many windows: `{"parameters": N}`;
//! - `{"exchange": "exact", "overlap": true}` takes a step: `{"step": S, "compute": S, "exposed": S}`, in seconds. Without
//!   overlap buckets leave when the whole backward pass is over.
//!
//! It ends with its stdin.

// What the ring's own bench needs too.
#[path = "../../../benches/ring/orders.rs"]
mod orders;
#[path = "../../../benches/ring/worker.rs"]
mod worker;

use std::error::Error;

use orders::{Address, Form, answer, orders};
use ringtune_engine::{
    BucketSizes, LanguageModelSource, NewLanguageModel, OpenLanguageModel, Precision, Threads, TokenBatch,
};
use ringtune_shared::{
    ids::Epoch,
    job::SumOrder,
    ring::{Member, RingView},
    version::RING_PROTOCOLS,
};
use ringtune_worker::{
    kinds::{GradientBench, Leaving},
    node::keep_blocks,
};
use serde::Deserialize;
use serde_json::json;
use tokio::runtime::Builder;
use worker::{Reach, Worker};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const VOCABULARY: usize = 50_257;

#[derive(Deserialize)]
#[serde(untagged)]
enum Order {
    Form(Form),
    Open(Open),
    Step { exchange: SumOrder, overlap: bool },
}

#[derive(Deserialize)]
struct Open {
    layers: usize,
    width: usize,
    block: usize,
    batch: usize,
    microbatches: usize,
    threads: usize,
}

fn main() -> Outcome<()> {
    keep_blocks();
    Builder::new_multi_thread().enable_all().build()?.block_on(serve())
}

async fn serve() -> Outcome<()> {
    let worker = Worker::start(&Reach::default()).await?;
    let Member { worker: id, address } = worker.member.clone();
    answer(&Address { worker: id, address })?;
    let mut orders = orders();
    let (mut place, mut bench) = (None, None);
    while let Some(order) = orders.recv().await {
        match serde_json::from_str(&order)? {
            Order::Form(Form { job, rank, members }) => {
                let members =
                    members.into_iter().map(|one| Member { worker: one.worker, address: one.address });
                place = Some((RingView { job, epoch: Epoch::FIRST, members: members.collect() }, rank));
                answer(&json!({"connected": true}))?;
            }
            Order::Open(open) => {
                let (view, rank) = place.take().ok_or("there is no ring yet")?;
                let rows = view.world_size() * open.microbatches;
                let seat = worker.rings.take_seat(&view, rank, rows, RING_PROTOCOLS.max)?;
                let engine = (ringtune_worker_daemon::LIBTORCH.start)(Threads::anywhere(open.threads))?;
                let model = engine.open_language_model(opening(&open)).await?;
                let ring = seat.connect().await?;
                let batches = (0..rows).map(|number| batch(&open, number)).collect();
                bench = Some(GradientBench::new(engine, ring, &model, batches));
                let parameters: usize =
                    model.parameters.list.iter().map(|parameter| parameter.elements()).sum();
                answer(&json!({"parameters": parameters}))?;
            }
            Order::Step { exchange, overlap } => {
                let bench: &mut GradientBench = bench.as_mut().ok_or("there is no model yet")?;
                let leaving = if overlap { Leaving::AtOnce } else { Leaving::Afterwards };
                let times = bench.step(exchange, leaving).await?;
                answer(&json!({"step": times.step, "compute": times.compute, "exposed": times.exposed}))?;
            }
        }
    }
    Ok(())
}

fn opening(open: &Open) -> OpenLanguageModel {
    let new = NewLanguageModel {
        vocab_size: VOCABULARY,
        n_positions: 1024,
        n_layer: open.layers,
        n_head: (open.width / 64).max(1),
        n_embd: open.width,
        bias: true,
        seed: 1,
    };
    let precision = if ringtune_model::Runtime::info().has_bf16 { Precision::Bf16 } else { Precision::Fp32 };
    let source = LanguageModelSource::New(new);
    OpenLanguageModel { source, precision, threads: open.threads, buckets: BucketSizes::default() }
}

/// A microbatch. Each of its ids is looked up once, as long as there are so many, and none of them by another microbatch: more rows
/// travel than real texts of as many tokens have.
fn batch(open: &Open, number: usize) -> TokenBatch {
    let tokens = open.batch * open.block;
    let id = |place: usize| ((number * tokens + place) * 7919 % VOCABULARY) as i64;
    let (inputs, targets) = ((0..tokens).map(id).collect(), (1..=tokens).map(id).collect());
    TokenBatch { batch: open.batch, block: open.block, inputs, targets, ..TokenBatch::default() }
}

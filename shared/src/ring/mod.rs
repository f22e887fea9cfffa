//! The ring: how the ranks of a job put their gradients together.
//!
//! # In prose first
//!
//! The **members** of a job's ring stand in a circle, in the order of their **ranks** 0 to n-1.
//! Rank r talks to its two neighbours only: it sends to the **next** rank, (r + 1) mod n, and
//! receives from the **previous** one, (r - 1) mod n. A connection with both neighbours is a
//! [`Transport`]; it is made anew for every **epoch**, that is for every membership of the ring.
//!
//! What all ranks do together is a **collective**; an epoch's collectives are counted from 1, and
//! all ranks do the same ones in the same order. A collective is a number of **hops**. In a hop
//! every rank sends one **message** to the next rank and receives one from the previous rank. A
//! message is cut into **segments**, so that the ring is busy everywhere at once: a segment that
//! has come in at hop h goes out again at hop h + 1 while the rest of its message is still on its
//! way. A segment travels in a **frame**, which says where it belongs: (job, epoch, collective,
//! hop, segment). Both sides know from sizes alone which frame comes next; any other one is an
//! error, and one of an older epoch is told apart, for it comes from a rank that was frozen while
//! the ring went on without it.
//!
//! Every message, even an empty one, is at least one frame. So a collective ends nowhere before all
//! ranks have begun it.
//!
//! A ring is a cycle: if every rank waited until the next one has room before taking in what the
//! previous one sends, all would wait for ever. So a rank always takes in, whatever its own
//! sending waits for, and all queues are bounded.
//!
//! Three collectives matter; the others ([`Ring::broadcast`], [`Ring::barrier`]) are parts of them:
//! - [`Ring::gather_rows`]: every rank has a **block** of rows, one row a microbatch; after n - 1
//!   hops, in which blocks are handed on, every rank has all rows, in the order of the
//!   microbatches. Nothing is added up on the way, so that the sum a rank then makes in that order
//!   does not depend on the ring's size. For small gradients.
//! - [`Ring::all_reduce`]: a buffer is cut into n **chunks**. In the first n - 1 hops chunk c
//!   starts at rank c and is handed on, every rank adding its own; rank c - 1 then holds the sum
//!   (reduce-scatter). In the next n - 1 hops the sums are handed on (all-gather). 2(n-1)/n of the
//!   buffer goes over each connection, which is the least possible, and the order of additions
//!   depends on nothing but n, so that all ranks hold the same bits. For large gradients. [`Ring::all_reduce_as`] does the
//!   same with numbers that travel in bf16 ([`Element`]): half the bytes, for a rounding at each hop.
//! - [`Ring::sum_exactly`]: the same, but what travels is added up by one tree over all microbatches ([`tree`]), so that the
//!   bits do not depend on n either. More goes over each connection, by the shape of the tree.
//!
//! Both sums may stop when each chunk's is whole and has gone one rank further ([`Reach::Two`]): so each rank has the sums of two chunks, and
//! may make something of them, and each chunk is on two ranks should one be lost. [`Ring::share_out`] takes what they made around the rest of
//! the way: together no more goes over a connection than in a sum that ends on all ranks.
//!
//! # Where the numbers are
//!
//! A collective runs where the ring's connections are read and written, whoever waits for it: a segment that has come is
//! added to, and goes on, while the core still has it near. What is summed is never copied to be sent: [`Ring::all_reduce`]
//! takes the buffer, lends its segments to the transport from where they lie, and gives it back when all have returned. Sums
//! that are whole go on as they came.
//!
//! # Signs of life
//!
//! Between its frames a rank sends **pulses**, every half second, also while it computes. Every frame and every pulse
//! is a sign of life. Each rank holds a **lease** on the previous one: `peer_timeout` and one pulse more, 2.5 s by default.
//! A rank that hears nothing for so long fails with [`RingError::Stalled`]; one that pulses may take as long as it likes.
//! The lease is in two parts because a process that was itself frozen finds it over when it wakes: it first looks at what
//! has come meanwhile, for one pulse, and only then blames its neighbour.
//!
//! The first sign of life may take longer, where ranks do not begin together (`first_sign`): a rank begins when the previous one has
//! called it and it has called the next one, so that a rank that was called may still wait for a call itself, and is silent.
//!
//! A rank whose ring has failed, for whatever reason, breaks both its connections, so that its neighbours fail too and
//! theirs after them. So within the lease all that live know that a rank is gone:
//! - a rank that is killed breaks its connections, and the one after it knows at once;
//! - one that is frozen is silent, and the one after it knows by the lease;
//! - over a link that carries nothing any more, the one behind it hears nothing, and knows by the lease. The one before it
//!   notices nothing by itself; it learns it through the ring, in a ring of two because its own lease ends as well.
//!
//! Signs of life go forward only. What a rank can tell about the next one is that it does not take in, and that means
//! something only while the next one has nothing else to do: a rank that has received all of a collective knows that the
//! next one has begun it, and if for the lease it cannot get rid of what it has to send, the next one has stalled. A next
//! rank that still computes has not begun, so that not all can have come, and is waited for. A link must carry a segment
//! within the lease.
//!
//! A rank that is in no collective learns of the end too ([`Canceller::failed`]), for it listens as long as there is room
//! for the frames that come before; there is, unless they are larger than gradients are where rows are gathered.
//!
//! A rank that is done says so ([`Ring::close`]), which is not a failure.
//!
//! Every frame has a checksum, CRC-32C of its payload. One that came otherwise than it was sent fails the ring with
//! [`RingError::Damaged`]: TCP's own checksum misses one damaged packet in thousands.
//!
//! # From ring to ring
//!
//! A ring that failed is never repaired. Its members form another one, in a new epoch, over new connections; where each of
//! them stands then, and how all get to the same state, is in [`membership`].

mod collectives;
mod element;
mod error;
mod exact;
mod frame;
mod hops;
mod lent;
mod link;
mod member;
pub mod membership;
mod payload;
mod place;
mod plan;
mod pool;
mod reduce;
mod segments;
mod spread;
mod striped;
mod transport;
pub mod tree;
pub mod whole;

pub use element::Element;
pub use error::RingError;
pub use exact::Summed;
pub use frame::{Frame, Signal};
pub use lent::Buffer;
pub use member::{Canceller, Exchange, Ring, RingConfig};
pub use membership::{Diverged, EntryPlan, Standing, plan_entry};
pub use payload::{Lender, Loan, Payload};
pub use place::Place;
pub use plan::{Member, PlanError, RingView, block_of};
pub use pool::Pool;
pub use spread::{Reach, Spread, chunk_of, held_chunks};
pub use striped::{StripedReceive, StripedSend};
pub use transport::{LinkBroken, ReceiveHalf, SendHalf, Transport};

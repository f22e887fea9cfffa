//! Rings: who has which seat, who is connected, and when a collective is over at each rank.
//!
//! A collective can end nowhere before all ranks have begun it; then it ends at each rank at another moment, and a ring
//! that breaks meanwhile leaves some ranks with it and some without.

use ringtune_shared::{ids::Epoch, ring::Standing};
use ringtune_worker::{
    ring::{Trouble, TroubleKind},
    session::StepSummary,
};

use crate::{
    chain::State,
    events::{Event, RingKey},
    faults::Planted,
    life::At,
    world::{World, number_of},
};

/// A lease on the previous rank, in milliseconds, with one pulse of patience.
const LEASE: i64 = 2_500;

/// A rank's contribution to a collective.
#[derive(Clone, Debug)]
pub(crate) enum Row {
    /// Something that all have anyhow, or that only shows that it is there.
    Plain,
    /// Its state on entering.
    Standing(Standing),
    /// Its steps that are not stored yet.
    Unstored(Vec<StepSummary>),
    /// After which step it has settled each order.
    Settled(Vec<Option<u64>>),
    /// Its parts of a step, each with its microbatch, and what it knows.
    Parts(Vec<(usize, State)>, Epoch, u64),
}

/// A rank's place.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) life: u64,
    /// It calls its neighbours.
    dials: bool,
    connected: bool,
    pub(crate) open: bool,
    /// It has left after its last collective.
    in_peace: bool,
    pub(crate) rows: Vec<Row>,
    /// It was taken to have given something that it gave in the ring before.
    mistaken: bool,
}

/// A ring of a job.
#[derive(Clone, Debug)]
pub(crate) struct RingSim {
    /// The workers in rank order.
    pub(crate) members: Vec<usize>,
    pub(crate) seats: Vec<Option<Seat>>,
    /// Collectives that all have begun.
    whole: usize,
}

impl RingSim {
    fn neighbours(&self, rank: usize) -> [usize; 2] {
        let size = self.members.len();
        [(rank + 1) % size, (rank + size - 1) % size]
    }

    pub(crate) fn rank_of(&self, worker: usize) -> Option<usize> {
        self.members.iter().position(|member| *member == worker)
    }

    fn open(&self, rank: usize) -> Option<&Seat> {
        self.seats.get(rank)?.as_ref().filter(|seat| seat.open)
    }
}

impl World {
    /// A life takes the place that it was given.
    pub(crate) fn take_seat(&mut self, worker: usize) {
        let Some(life) = &self.nodes[worker].life else { return };
        let (Some(rank), number, key) = (life.rank, life.number, life.ring_key()) else { return };
        let members: Vec<usize> = life.ring.members.iter().map(|member| number_of(member.worker)).collect();
        let size = members.len();
        let ring = self.rings.entry(key).or_insert(RingSim { members, seats: vec![None; size], whole: 0 });
        ring.seats[rank] = Some(Seat {
            life: number,
            dials: false,
            connected: false,
            open: true,
            in_peace: false,
            rows: Vec::new(),
            mistaken: false,
        });
        // Calls for an older ring of the job are refused.
        let older: Vec<RingKey> = self.rings.range((key.0, Epoch(0))..key).map(|(key, _)| *key).collect();
        for old in older {
            let ring = &self.rings[&old];
            let Some(rank) = ring.rank_of(worker) else { continue };
            for other in ring.neighbours(rank) {
                let caller = ring.open(other).filter(|seat| seat.dials && !seat.connected);
                if let Some(caller) = caller.map(|seat| seat.life) {
                    let to = ring.members[other];
                    let event =
                        Event::Closed { worker: to, life: caller, ring: old, by: rank, refused: true };
                    self.after(1, 30, event);
                    break;
                }
            }
        }
        self.connect_all(key);
    }

    /// It calls its neighbours, and waits for them.
    pub(crate) fn dial_neighbours(&mut self, worker: usize) {
        let Some(key) = self.nodes[worker].life.as_ref().map(|life| life.ring_key()) else { return };
        if let Some(ring) = self.rings.get_mut(&key)
            && let Some(rank) = ring.rank_of(worker)
            && let Some(seat) = &mut ring.seats[rank]
        {
            seat.dials = true;
        }
        self.connect_all(key);
    }

    /// Connects all ranks with both neighbours.
    pub(crate) fn connect_all(&mut self, key: RingKey) {
        let Some(ring) = self.rings.get(&key) else { return };
        let mut found = Vec::new();
        for (rank, worker) in ring.members.iter().enumerate() {
            let Some(seat) = ring.open(rank).filter(|seat| seat.dials && !seat.connected) else { continue };
            let [next, previous] = ring.neighbours(rank);
            let there = ring.open(next).is_some()
                && ring.open(previous).is_some_and(|seat| seat.dials)
                && [next, previous].iter().all(|other| {
                    let other = ring.members[*other];
                    self.is_linked(*worker, other) && self.nodes[other].frozen.is_none()
                });
            if there {
                found.push((rank, *worker, seat.life));
            }
        }
        for (rank, worker, life) in found {
            if let Some(Some(seat)) = self.rings.get_mut(&key).map(|ring| &mut ring.seats[rank]) {
                seat.connected = true;
            }
            self.after(1, 6, Event::Connected { worker, life, ring: key });
        }
    }

    /// A rank begins the next collective.
    pub(crate) fn give(&mut self, worker: usize, row: Row) {
        let Some(life) = &self.nodes[worker].life else { return };
        let key = life.ring_key();
        let Some(ring) = self.rings.get_mut(&key) else { return };
        let Some(rank) = ring.rank_of(worker) else { return };
        let Some(seat) = ring.seats[rank].as_mut().filter(|seat| seat.open) else { return };
        if std::mem::take(&mut seat.mistaken) {
            // The others had finished, and their contributions are there.
            let (life, number) = (seat.life, seat.rows.len() - 1);
            return self.after(1, 3, Event::Gathered { worker, life, ring: key, number });
        }
        seat.rows.push(row);
        self.complete(key);
    }

    /// A collective that all have begun ends at each of them.
    pub(crate) fn complete(&mut self, key: RingKey) {
        self.take_from_older(key);
        let Some(ring) = self.rings.get(&key) else { return };
        let number = ring.whole;
        let size = ring.members.len();
        let all = (0..size).all(|rank| {
            let given = ring.open(rank).is_some_and(|seat| seat.connected && seat.rows.len() > number);
            let next = ring.members[(rank + 1) % size];
            let worker = ring.members[rank];
            given && self.nodes[worker].frozen.is_none() && (size == 1 || self.is_linked(worker, next))
        });
        if !all {
            return;
        }
        let ranks: Vec<(usize, u64)> =
            (0..size).filter_map(|rank| Some((ring.members[rank], ring.open(rank)?.life))).collect();
        if let Some(ring) = self.rings.get_mut(&key) {
            ring.whole += 1;
        }
        // Now and then some are much later than others.
        let most = [3, 3, 3, 60][self.chance.below(4)];
        for (worker, life) in ranks {
            self.after(1, most, Event::Gathered { worker, life, ring: key, number });
        }
    }

    /// The fault: what a rank gave in the ring before is taken for what it has to give in this one.
    fn take_from_older(&mut self, key: RingKey) {
        if self.planted != Some(Planted::SkippedEpochCheck) {
            return;
        }
        let Some(ring) = self.rings.get(&key) else { return };
        let number = ring.whole;
        let Some(old) = self.rings.range(..key).next_back().filter(|(old, _)| old.0 == key.0) else { return };
        let mut taken = Vec::new();
        for rank in 0..ring.members.len() {
            let gives_parts = |seat: &Seat| matches!(seat.rows.get(number), Some(Row::Parts(..)));
            let wanted = (0..ring.members.len()).any(|other| ring.open(other).is_some_and(gives_parts));
            let late = ring.open(rank).is_some_and(|seat| seat.connected && seat.rows.len() == number);
            let stale = old
                .1
                .seats
                .get(rank)
                .and_then(Option::as_ref)
                .and_then(|seat| seat.rows.iter().rev().find(|row| matches!(row, Row::Parts(..))));
            if let (true, true, Some(row)) = (wanted, late, stale) {
                taken.push((rank, row.clone()));
            }
        }
        for (rank, row) in taken {
            if let Some(Some(seat)) = self.rings.get_mut(&key).map(|ring| &mut ring.seats[rank]) {
                seat.rows.push(row);
                seat.mistaken = true;
            }
        }
    }

    /// All ranks' contributions to a collective.
    pub(crate) fn rows_of(&self, key: RingKey, number: usize) -> Vec<Row> {
        let seats = self.rings.get(&key).map(|ring| ring.seats.as_slice()).unwrap_or_default();
        seats.iter().flatten().filter_map(|seat| seat.rows.get(number).cloned()).collect()
    }

    /// A rank leaves its ring: in peace, or so that it breaks for its neighbours too.
    pub(crate) fn leave_ring(&mut self, worker: usize, in_peace: bool) {
        let Some(key) = self.nodes[worker].life.as_ref().map(|life| life.ring_key()) else { return };
        self.close_seat(worker, key, in_peace);
    }

    fn close_seat(&mut self, worker: usize, key: RingKey, in_peace: bool) {
        let Some(ring) = self.rings.get_mut(&key) else { return };
        let Some(rank) = ring.rank_of(worker) else { return };
        let Some(seat) = ring.seats[rank].as_mut().filter(|seat| seat.open) else { return };
        (seat.open, seat.in_peace) = (false, in_peace);
        if in_peace {
            return;
        }
        let ring = &self.rings[&key];
        let mut told: Vec<(usize, u64)> = Vec::new();
        for other in ring.neighbours(rank) {
            let to = ring.members[other];
            if let Some(seat) = ring.open(other).filter(|seat| seat.connected)
                && self.is_linked(worker, to)
                && !told.contains(&(to, seat.life))
            {
                told.push((to, seat.life));
            }
        }
        for (worker, life) in told {
            self.after(1, 4, Event::Closed { worker, life, ring: key, by: rank, refused: false });
        }
    }

    /// A connection that ended while nothing got through has ended for the neighbour too, once something does.
    pub(crate) fn tell_of_closed(&mut self, key: RingKey) {
        let Some(ring) = self.rings.get(&key) else { return };
        let mut told = Vec::new();
        for (rank, worker) in ring.members.iter().enumerate() {
            let Some(seat) = ring.open(rank).filter(|seat| seat.connected) else { continue };
            for by in ring.neighbours(rank) {
                let gone = ring.seats[by].as_ref().is_some_and(|seat| !seat.open && !seat.in_peace);
                if gone && self.is_linked(*worker, ring.members[by]) {
                    told.push((*worker, seat.life, by));
                }
            }
        }
        for (worker, life, by) in told {
            self.after(1, 4, Event::Closed { worker, life, ring: key, by, refused: false });
        }
    }

    /// A process is gone, and its connections with it.
    pub(crate) fn give_up_seats(&mut self, worker: usize) {
        let keys: Vec<RingKey> = self.rings.keys().copied().collect();
        for key in keys {
            self.close_seat(worker, key, false);
        }
    }

    pub(crate) fn connected(&mut self, worker: usize, life: u64, key: RingKey) {
        let here = self.nodes[worker].life_is(life).is_some_and(|life| life.ring_key() == key);
        let open = self.rings.get(&key).is_some_and(|ring| {
            ring.rank_of(worker).is_some_and(|rank| ring.open(rank).is_some_and(|seat| seat.life == life))
        });
        if here && open && self.nodes[worker].life_is(life).is_some_and(|life| life.at == At::Connect) {
            // A ring that came and went meanwhile.
            let ring = &self.rings[&key];
            let rank = ring.rank_of(worker).unwrap_or_default();
            let gone = ring.neighbours(rank).into_iter().find(|other| ring.open(*other).is_none());
            match gone {
                Some(by) => self.neighbour_closed(worker, life, key, by, false),
                None => self.ring_stands(worker),
            }
        }
    }

    pub(crate) fn gathered(&mut self, worker: usize, life: u64, key: RingKey, number: usize) {
        let here = self.nodes[worker].life_is(life).is_some_and(|life| life.ring_key() == key);
        let open = self.rings.get(&key).is_some_and(|ring| {
            ring.rank_of(worker).is_some_and(|rank| ring.open(rank).is_some_and(|seat| seat.life == life))
        });
        if here && open {
            let rows = self.rows_of(key, number);
            self.has_gathered(worker, rows);
        }
    }

    pub(crate) fn neighbour_closed(
        &mut self,
        worker: usize,
        life: u64,
        key: RingKey,
        by: usize,
        refused: bool,
    ) {
        let kind = if refused { TroubleKind::Unreachable } else { TroubleKind::Closed };
        self.ring_fails(worker, life, key, by, kind);
    }

    /// A worker falls silent: its next ranks' leases end in time.
    pub(crate) fn falls_silent(&mut self, of: usize) {
        let mut leases = Vec::new();
        for (key, ring) in &self.rings {
            let Some(rank) = ring.rank_of(of) else { continue };
            if ring.open(rank).is_none() {
                continue;
            }
            for other in ring.neighbours(rank) {
                let worker = ring.members[other];
                let before = ring.neighbours(other)[1] == rank;
                if let Some(seat) = ring.open(other).filter(|seat| before && seat.connected) {
                    leases.push(Event::Lease { worker, life: seat.life, ring: *key, of });
                }
            }
        }
        for lease in leases {
            self.after(LEASE, LEASE + 500, lease);
        }
    }

    pub(crate) fn lease_is_over(&mut self, worker: usize, life: u64, key: RingKey, of: usize) {
        let cut = [(worker, of), (of, worker)].iter().filter_map(|pair| self.cuts.get(pair)).min().copied();
        let since = [cut, self.nodes[of].frozen].into_iter().flatten().min();
        let rank = self.rings.get(&key).and_then(|ring| ring.rank_of(of));
        if let (Some(since), Some(rank)) = (since, rank)
            && since + LEASE <= self.now
        {
            self.ring_fails(worker, life, key, rank, TroubleKind::Silent);
        }
    }

    fn ring_fails(&mut self, worker: usize, life: u64, key: RingKey, rank: usize, kind: TroubleKind) {
        let open = self.rings.get(&key).is_some_and(|ring| {
            ring.rank_of(worker).is_some_and(|rank| ring.open(rank).is_some_and(|seat| seat.life == life))
        });
        let text = format!("rank {rank}: {kind:?}");
        if let Some(life) = self.nodes[worker].life.as_mut().filter(|one| one.number == life)
            && life.ring_key() == key
            && open
        {
            life.lost.get_or_insert(Trouble { kind, rank, text });
            self.look(worker);
        }
    }

    /// Whether a rank's life can be asked for its state in this ring.
    pub(crate) fn gives_state(&self, key: RingKey, rank: usize, to: usize) -> bool {
        let Some(ring) = self.rings.get(&key) else { return false };
        let worker = ring.members[rank];
        ring.open(rank).is_some() && self.is_linked(worker, to) && self.nodes[worker].frozen.is_none()
    }
}

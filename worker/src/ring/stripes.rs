//! The number of streams to the next rank, and which of them belong together.
//!
//! One stream is enough where nothing holds a single connection back. Clouds and network cards do: they give each connection a share
//! of the link. How many are worth while is found by measuring, not by counting cards: where one fills the link, others only
//! cost.

use std::fmt;

/// Streams of a rank at most.
pub(super) const MOST_STRIPES: usize = 8;

/// A step that brings less than this to the ring takes one stream, and nothing is measured: it is through in milliseconds.
const MUCH_BYTES: u64 = 16 << 20;

/// Two streams must carry more than one by this factor, or one is enough and no more are tried.
const WORTH_WHILE: f64 = 1.3;
/// The fewest streams are taken that carry this part of what any number carried.
const NEARLY_ALL: f64 = 0.85;
/// The numbers that are measured, first two of them, in turns, and then the others.
const NUMBERS: [&[usize]; 2] = [&[1, 2], &[4, 8]];
/// Each number is measured so often, and its best counts: what else goes on takes away from a measurement, and adds nothing.
const ROUNDS: usize = 2;

/// The number of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamCount {
    /// This number, at most [`MOST_STRIPES`].
    Exactly(usize),
    /// The number that a measurement chooses.
    Measured,
}

impl StreamCount {
    /// `setting`: `ring.connections`, 0 for what is measured; `bytes`: that a step brings to the ring.
    pub(super) fn of(setting: usize, bytes: u64) -> Self {
        match setting {
            0 if bytes >= MUCH_BYTES => Self::Measured,
            setting => Self::Exactly(setting.clamp(1, MOST_STRIPES)),
        }
    }
}

/// Throughput of a number of streams together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Carried {
    pub(super) streams: usize,
    pub(super) bytes_per_second: f64,
}

impl fmt::Display for Carried {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let carry = if self.streams == 1 { "carries" } else { "carry" };
        write!(formatter, "{} {carry} {:.2} GB/s", self.streams, self.bytes_per_second / 1e9)
    }
}

/// The measurements so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Trial {
    measured: Vec<Carried>,
}

impl Trial {
    /// Adds a measurement.
    pub(super) fn add(&mut self, carried: Carried) {
        self.measured.push(carried);
    }

    /// The number to measure next, at most `most`; None when the choice is made. Numbers are measured in
    /// turns, so that what fills the link for a moment decides nothing.
    pub(super) fn next(&self, most: usize) -> Option<usize> {
        let [first, others] = NUMBERS;
        let numbers =
            if self.left(first, most).is_none() && self.are_several_better() { others } else { first };
        self.left(numbers, most)
    }

    /// The one of them that was measured least, if that is not often enough.
    fn left(&self, numbers: &[usize], most: usize) -> Option<usize> {
        // A single candidate need not be measured.
        let possible = numbers.iter().copied().filter(|streams| most > 1 && *streams <= most);
        possible.min_by_key(|streams| self.times(*streams)).filter(|streams| self.times(*streams) < ROUNDS)
    }

    fn are_several_better(&self) -> bool {
        let (one, two) = (self.best_of(1), self.best_of(2));
        let better = one.zip(two).map(|(one, two)| two.bytes_per_second > one.bytes_per_second * WORTH_WHILE);
        better.unwrap_or(false)
    }

    /// The chosen number.
    pub(super) fn choice(&self) -> usize {
        let best = self.best();
        let most = best.iter().map(|carried| carried.bytes_per_second).fold(0.0, f64::max);
        let nearly = best.iter().find(|carried| carried.bytes_per_second >= most * NEARLY_ALL);
        nearly.filter(|_| self.are_several_better()).map_or(1, |carried| carried.streams)
    }

    /// For people: through how many connections a rank is reached, and what that was found from. None: one, without a question.
    pub(super) fn text(&self, rank: usize, streams: usize) -> Option<String> {
        let measured: Vec<String> = self.best().iter().map(Carried::to_string).collect();
        let connections = if streams == 1 { "connection" } else { "connections" };
        let reached = format!("rank {rank} is reached through {streams} {connections}");
        match (measured.is_empty(), streams) {
            (true, 1) => None,
            (true, _) => Some(reached),
            (false, _) => Some(format!("{reached}: {}", measured.join(", "))),
        }
    }

    /// Best throughput of each number, fewest streams first.
    fn best(&self) -> Vec<Carried> {
        NUMBERS.concat().into_iter().filter_map(|streams| self.best_of(streams)).collect()
    }

    fn of(&self, streams: usize) -> impl Iterator<Item = &Carried> {
        self.measured.iter().filter(move |carried| carried.streams == streams)
    }

    fn times(&self, streams: usize) -> usize {
        self.of(streams).count()
    }

    fn best_of(&self, streams: usize) -> Option<Carried> {
        self.of(streams).copied().max_by(|one, two| one.bytes_per_second.total_cmp(&two.bytes_per_second))
    }
}

/// Identifies one of a rank's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stripe {
    /// From 0.
    pub(super) number: usize,
    /// Number of streams.
    pub(super) of: usize,
    /// The rank's attempt to connect, the same for all of them.
    pub(super) attempt: u64,
}

impl Stripe {
    /// As an opening says it.
    ///
    /// # Errors
    /// It cannot be one, and why.
    pub(super) fn new(number: u32, of: u32, attempt: u64) -> Result<Self, String> {
        let (number, of) = (number as usize, (of as usize).max(1));
        if of > MOST_STRIPES {
            return Err(format!("open.stripes: got {of}; allowed: 0 to {MOST_STRIPES}"));
        }
        if number >= of {
            return Err(format!("open.stripe: got {number}; allowed: 0 to {}", of - 1));
        }
        Ok(Self { number, of, attempt })
    }
}

/// Puts together what belongs together, in whatever order it comes.
#[derive(Debug)]
pub(super) struct Gathered<T> {
    /// The newest there was, and how many streams it has.
    attempt: (u64, usize),
    /// Streams by number.
    streams: Vec<Option<T>>,
}

impl<T> Default for Gathered<T> {
    fn default() -> Self {
        Self { attempt: (0, 0), streams: Vec::new() }
    }
}

impl<T> Gathered<T> {
    /// Adds a stream. Returns all of them, in order, once the last one is there. Those of an older attempt are dropped, whichever
    /// come first: the rank has dialled again.
    pub(super) fn add(&mut self, stripe: Stripe, stream: T) -> Option<Vec<T>> {
        let Stripe { number, of, attempt } = stripe;
        if (attempt, of) < self.attempt {
            return None;
        }
        if (attempt, of) > self.attempt {
            self.attempt = (attempt, of);
            self.streams = std::iter::repeat_with(|| None).take(of).collect();
        }
        if let Some(place) = self.streams.get_mut(number) {
            *place = Some(stream);
        }
        let whole = self.streams.iter().all(Option::is_some);
        whole.then(|| std::mem::take(&mut self.streams).into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures as it is told, over a link of this capacity on which a connection carries so much.
    fn measure(most: usize, link: f64, each: f64) -> (Trial, Vec<usize>) {
        let (mut trial, mut order) = (Trial::default(), Vec::new());
        while let Some(streams) = trial.next(most) {
            trial.add(Carried { streams, bytes_per_second: (streams as f64 * each).min(link) });
            order.push(streams);
            assert!(order.len() <= 16, "it never ends: {order:?}");
        }
        (trial, order)
    }

    #[test]
    fn as_many_are_chosen_as_carry_more() {
        for (link, each, most, choice) in [
            // One fills it.
            (10.0, 10.0, 8, 1),
            // Two carry hardly more than one.
            (12.9, 10.0, 8, 1),
            (20.0, 10.0, 8, 2),
            // Two carry nearly as much.
            (23.0, 10.0, 8, 2),
            (35.0, 10.0, 8, 4),
            (1000.0, 10.0, 8, 8),
            // The next rank takes no more.
            (1000.0, 10.0, 5, 4),
            (1000.0, 10.0, 1, 1),
            // Nothing comes through.
            (0.0, 0.0, 8, 1),
        ] {
            let (trial, order) = measure(most, link, each);
            assert_eq!(trial.choice(), choice, "{link} {each} {most}: {order:?}");
        }
    }

    #[test]
    fn numbers_are_measured_in_turns_and_each_ones_best_counts() {
        assert_eq!(measure(8, 10.0, 10.0).1, [1, 2, 1, 2]);
        assert_eq!(measure(8, 20.0, 10.0).1, [1, 2, 1, 2, 4, 8, 4, 8]);
        assert_eq!(measure(5, 20.0, 10.0).1, [1, 2, 1, 2, 4, 4]);
        assert_eq!(measure(1, 20.0, 10.0).1, Vec::<usize>::new());
        let mut trial = Trial::default();
        for (streams, bytes_per_second) in [(1, 2.0), (2, 10.0), (1, 9.0), (2, 4.0)] {
            trial.add(Carried { streams, bytes_per_second });
        }
        assert_eq!((trial.choice(), trial.next(8)), (1, None));
        let best: Vec<f64> = trial.best().iter().map(|carried| carried.bytes_per_second).collect();
        assert_eq!(best, [9.0, 10.0]);
        // Given up half-way, there is what is known by then.
        let mut trial = Trial::default();
        assert_eq!(trial.choice(), 1);
        trial.add(Carried { streams: 1, bytes_per_second: 1.0 });
        assert_eq!(trial.choice(), 1);
    }

    #[test]
    fn people_are_told_what_was_measured() {
        let (trial, _) = measure(8, 2.2e9, 1e9);
        let told = "rank 1 is reached through 2 connections: \
                    1 carries 1.00 GB/s, 2 carry 2.00 GB/s, 4 carry 2.20 GB/s, 8 carry 2.20 GB/s";
        assert_eq!(trial.text(1, trial.choice()).as_deref(), Some(told));
        assert_eq!(Trial::default().text(1, 1), None);
        assert_eq!(Trial::default().text(0, 3).as_deref(), Some("rank 0 is reached through 3 connections"));
    }

    #[test]
    fn little_is_not_measured_and_who_says_a_number_gets_it() {
        assert_eq!(StreamCount::of(0, 0), StreamCount::Exactly(1));
        assert_eq!(StreamCount::of(0, MUCH_BYTES - 1), StreamCount::Exactly(1));
        assert_eq!(StreamCount::of(0, MUCH_BYTES), StreamCount::Measured);
        assert_eq!(StreamCount::of(3, 0), StreamCount::Exactly(3));
        assert_eq!(StreamCount::of(99, u64::MAX), StreamCount::Exactly(MOST_STRIPES));
    }

    #[test]
    fn streams_of_one_attempt_are_put_together() {
        let stripe = |number, of, attempt| Stripe::new(number, of, attempt).unwrap();
        let mut gathered = Gathered::default();
        assert_eq!(gathered.add(stripe(2, 3, 7), 'c'), None);
        assert_eq!(gathered.add(stripe(0, 3, 7), 'a'), None);
        // It dialled again, and what is left of the first time comes after that.
        assert_eq!(gathered.add(stripe(0, 2, 8), 'x'), None);
        assert_eq!(gathered.add(stripe(1, 3, 7), 'b'), None);
        assert_eq!(gathered.add(stripe(1, 2, 8), 'y'), Some(vec!['x', 'y']));
        // Who names no number of streams has one.
        assert_eq!(Gathered::default().add(stripe(0, 0, 0), 'z'), Some(vec!['z']));
    }

    #[test]
    fn an_opening_of_impossible_streams_is_refused() {
        for (number, of, field) in
            [(0, 9, "open.stripes: got 9"), (2, 2, "open.stripe: got 2"), (1, 0, "open.stripe")]
        {
            let refused = Stripe::new(number, of, 1).unwrap_err();
            assert!(refused.starts_with(field) && refused.contains("allowed: 0 to"), "{refused}");
        }
    }
}

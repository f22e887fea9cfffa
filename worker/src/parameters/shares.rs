//! Which rank has which of the optimizer's moments, where the ranks have them together. Decisions alone; what is done is in
//! [`super::sharded_steps`].
//!
//! Each of the plan's buckets is cut into a chunk for each rank, at multiples of what squares are added up in. A rank has two chunks:
//! its own and, as a copy, its neighbour's ([`held_chunks`]). Whoever is lost, another rank has what it had, unless two neighbours are
//! lost at once.

use std::{iter, ops::Range};

use ringtune_shared::ring::{held_chunks, whole};

use crate::{
    engine::{BucketPlan, ParametersInfo, Shares},
    training::Wish,
};

/// What of the moments a rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// None that are of any use.
    Nothing,
    /// What falls to that rank of so many.
    Share { rank: usize, ranks: usize },
    /// All.
    All,
}

/// How a model's buckets are cut.
#[derive(Clone, Debug)]
pub(super) struct Cutting {
    plan: BucketPlan,
    /// Numbers whose squares are added up by themselves.
    part: usize,
}

/// A part of a bucket, and a rank that has its moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartSource {
    pub(super) bucket: usize,
    pub(super) places: Range<usize>,
    pub(super) rank: usize,
}

impl Cutting {
    pub(super) fn new(info: &ParametersInfo) -> Self {
        Self { plan: info.plan.clone(), part: info.part.max(1) }
    }

    pub(super) fn plan(&self) -> &BucketPlan {
        &self.plan
    }

    /// What chunks begin at multiples of.
    pub(super) fn granule(&self) -> usize {
        self.part
    }

    /// What falls to a rank.
    pub(super) fn shares(&self, rank: usize, ranks: usize) -> Shares {
        Shares::of(self.plan.buckets.iter().map(|bucket| held_chunks(rank, ranks, bucket.length, self.part)))
    }

    /// What falls to nobody.
    pub(super) fn nothing(&self) -> Shares {
        Shares::of(self.plan.buckets.iter().map(|_| [0..0, 0..0]))
    }

    /// What a rank has of a bucket.
    fn held(&self, held: Held, bucket: usize) -> Vec<Range<usize>> {
        let length = self.plan.buckets.get(bucket).map_or(0, |bucket| bucket.length);
        match held {
            Held::Nothing => Vec::new(),
            Held::All => iter::once(0..length).collect(),
            Held::Share { rank, ranks } => held_chunks(rank, ranks, length, self.part).to_vec(),
        }
    }

    /// Whether who has `held` has all that falls to a rank.
    pub(super) fn covers(&self, held: Held, rank: usize, ranks: usize) -> bool {
        match held {
            Held::Nothing => false,
            Held::All => true,
            own => own == Held::Share { rank, ranks },
        }
    }

    /// From which rank each part of the moments comes, where `all` says what each rank of a ring has: every number once. None: some
    /// have been lost.
    pub(super) fn sources(&self, all: &[Held]) -> Option<Vec<PartSource>> {
        let mut sources = Vec::new();
        for (bucket, about) in self.plan.buckets.iter().enumerate() {
            let mut next = 0;
            while next < about.length {
                // Of those who have the next number, the one that has most from there on.
                let reaches = all.iter().enumerate().flat_map(|(rank, held)| {
                    let ends = self.held(*held, bucket).into_iter().filter(|range| range.contains(&next));
                    ends.map(move |range| (range.end, rank)).collect::<Vec<_>>()
                });
                let (end, rank) =
                    reaches.reduce(|best, other| if other.0 > best.0 { other } else { best })?;
                sources.push(PartSource { bucket, places: next..end, rank });
                next = end;
            }
        }
        Some(sources)
    }

    /// From each rank what is its own.
    pub(super) fn own_of_each(&self, ranks: usize) -> Vec<PartSource> {
        let mut sources = Vec::new();
        for rank in 0..ranks {
            for (bucket, about) in self.plan.buckets.iter().enumerate() {
                let [places, _] = held_chunks(rank, ranks, about.length, self.part);
                if !places.is_empty() {
                    sources.push(PartSource { bucket, places, rank });
                }
            }
        }
        sources
    }

    /// How many sums of squares a rank has at most, in a ring of so many.
    pub(super) fn most_parts(&self, ranks: usize) -> usize {
        (0..ranks).map(|rank| self.parts_of(rank, ranks).sum()).max().unwrap_or(0)
    }

    /// How many sums of squares are a rank's own, bucket after bucket.
    fn parts_of(&self, rank: usize, ranks: usize) -> impl Iterator<Item = usize> + '_ {
        self.plan.buckets.iter().map(move |bucket| {
            let [own, _] = held_chunks(rank, ranks, bucket.length, self.part);
            own.len().div_ceil(self.part)
        })
    }

    /// All squares, added up as if one rank had had all: those of a bucket one after the other, and then those of the buckets. `all`: of each rank
    /// what it has of its own. None: somebody has another number of them.
    pub(super) fn squared_norm(&self, all: &[Vec<f64>]) -> Option<f64> {
        let ranks = all.len();
        let mut left: Vec<_> = all.iter().map(|parts| parts.iter()).collect();
        let mut sum = 0.0;
        for bucket in &self.plan.buckets {
            let mut of_bucket = 0.0;
            // The chunk of rank r is the one behind it.
            for chunk in 0..ranks {
                let rank = (chunk + ranks - 1) % ranks;
                let [own, _] = held_chunks(rank, ranks, bucket.length, self.part);
                for _ in 0..own.len().div_ceil(self.part) {
                    of_bucket += left.get_mut(rank)?.next()?;
                }
            }
            sum += of_bucket;
        }
        left.iter_mut().all(|left| left.next().is_none()).then_some(sum)
    }
}

/// All wishes, by what they travel as.
const WISHES: [Wish; 3] = [Wish::Nothing, Wish::State, Wish::End];

/// A rank's own sums of squares as they travel, with what it wishes: as many floats on all ranks.
pub(super) fn norm_parts_to_row(parts: &[f64], wish: Wish, most_parts: usize) -> Vec<f32> {
    let count = whole::to_floats(parts.len() as u64);
    let wish = WISHES.iter().position(|one| *one == wish).unwrap_or_default() as f32;
    let mut row: Vec<f32> = [wish].into_iter().chain(count).collect();
    // A float that is not a number may change its bits on its way, a whole number does not.
    row.extend(parts.iter().flat_map(|part| whole::to_floats(part.to_bits())));
    row.resize(1 + whole::FLOATS * (1 + most_parts), 0.0);
    row
}

/// Decodes; None if malformed.
pub(super) fn norm_parts_from_row(row: &[f32]) -> Option<(Vec<f64>, Wish)> {
    let (wish, rest) = row.split_first()?;
    let mut numbers = rest.chunks_exact(whole::FLOATS).map(whole::from_floats);
    let count = usize::try_from(numbers.next()??).ok()?;
    let parts: Vec<f64> =
        numbers.take(count).map(|bits| Some(f64::from_bits(bits?))).collect::<Option<_>>()?;
    let (_, wish) = (0..).zip(WISHES).find(|(number, _)| f64::from(*wish) == f64::from(*number))?;
    (parts.len() == count).then_some((parts, wish))
}

/// A rank that enters a ring, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Entrant {
    /// Its last step.
    pub(super) step: u64,
    /// A step of which it has all but the others' squares; 0: none.
    pub(super) pending: u64,
    /// What of the moments after `step` it has.
    pub(super) held: Held,
    /// Some of its parameters are not those of `step` yet.
    pub(super) incomplete: bool,
    /// The squares of the gradient of `step`, where it has taken that step itself.
    pub(super) squared_norm: Option<f64>,
}

impl Entrant {
    /// As it travels.
    pub(super) fn to_row(self) -> Vec<f32> {
        let (kind, rank, ranks) = match self.held {
            Held::Nothing => (0, 0, 0),
            Held::All => (1, 0, 0),
            Held::Share { rank, ranks } => (2, rank as u64, ranks as u64),
        };
        let squared_norm = self.squared_norm.map_or(0, f64::to_bits);
        let (incomplete, has_squares) = (u64::from(self.incomplete), u64::from(self.squared_norm.is_some()));
        let numbers = [self.step, self.pending, kind, rank, ranks, incomplete, has_squares, squared_norm];
        numbers.into_iter().flat_map(whole::to_floats).collect()
    }

    /// Decodes; None if malformed.
    pub(super) fn from_row(row: &[f32]) -> Option<Self> {
        let numbers: Vec<u64> = row.chunks(whole::FLOATS).map(whole::from_floats).collect::<Option<_>>()?;
        let [step, pending, kind, rank, ranks, incomplete, has_squares, squared_norm] =
            numbers.try_into().ok()?;
        let held = match kind {
            0 => Held::Nothing,
            1 => Held::All,
            2 => Held::Share { rank: usize::try_from(rank).ok()?, ranks: usize::try_from(ranks).ok()? },
            _ => return None,
        };
        let squared_norm = (has_squares == 1).then_some(f64::from_bits(squared_norm));
        Some(Self { step, pending, held, incomplete: incomplete != 0, squared_norm })
    }
}

/// What ranks that enter a ring do to have the moments of one step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// The step.
    pub(super) last: u64,
    /// The squares of its gradient, for those who have all else of it.
    pub(super) squared_norm: Option<f64>,
    /// What each rank has of its moments, once those have taken it.
    pub(super) held: Vec<Held>,
    /// Nobody needs anything of another rank.
    pub(super) is_whole: bool,
}

impl Entry {
    /// `all`: where each rank stands.
    pub(super) fn of(all: &[Entrant], cutting: &Cutting) -> Self {
        let last = all.iter().map(|one| one.step).max().unwrap_or(0);
        let squared_norm = all.iter().filter(|one| one.step == last).find_map(|one| one.squared_norm);
        let takes = |one: &Entrant| squared_norm.is_some() && one.pending == last && one.step + 1 == last;
        let held: Vec<Held> = all
            .iter()
            .map(|one| if one.step == last || takes(one) { one.held } else { Held::Nothing })
            .collect();
        let has_all = |(rank, one): (usize, &Entrant)| {
            one.step == last && !one.incomplete && cutting.covers(one.held, rank, all.len())
        };
        let is_whole = all.iter().enumerate().all(has_all);
        Self { last, squared_norm, held, is_whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Bucket, Piece};

    fn cutting(lengths: &[usize], part: usize) -> Cutting {
        let bucket = |length: &usize| Bucket {
            pieces: vec![Piece { parameter: 0, first: 0, count: *length, offset: 0 }],
            length: *length,
        };
        Cutting { plan: BucketPlan { buckets: lengths.iter().map(bucket).collect() }, part }
    }

    fn share(rank: usize, ranks: usize) -> Held {
        Held::Share { rank, ranks }
    }

    #[test]
    fn one_of_several_may_be_lost_and_two_neighbours_may_not() {
        let cutting = cutting(&[100, 3, 41], 4);
        for ranks in 3..6 {
            let all: Vec<Held> = (0..ranks).map(|rank| share(rank, ranks)).collect();
            for lost in 0..ranks {
                let without = |gone: &[usize]| {
                    let mut left = all.clone();
                    gone.iter().for_each(|gone| left[*gone] = Held::Nothing);
                    cutting.sources(&left)
                };
                let sources = without(&[lost]).unwrap();
                let mut next = (0, 0);
                for PartSource { bucket, places, rank } in sources {
                    if bucket != next.0 {
                        next = (bucket, 0);
                    }
                    assert!(places.start == next.1 && rank != lost);
                    next.1 = places.end;
                }
                assert_eq!(next, (2, 41));
                assert_eq!(without(&[lost, (lost + 1) % ranks]), None, "{ranks} without {lost} and the next");
            }
        }
        // Of different rings, and of one that has all.
        assert!(cutting.sources(&[share(0, 3), share(1, 2), Held::Nothing]).is_some());
        assert!(cutting.sources(&[Held::Nothing, share(1, 2)]).is_some());
        assert_eq!(cutting.sources(&[Held::Nothing, Held::Nothing]), None);
        let sources = cutting.sources(&[share(2, 3), Held::All]).unwrap();
        assert_eq!(sources[0], PartSource { bucket: 0, places: 0..100, rank: 1 });
        assert_eq!(sources.len(), 3);
        let own: usize = cutting.own_of_each(3).iter().map(|source| source.places.len()).sum();
        assert_eq!(own, 144);
    }

    #[test]
    fn squares_are_added_up_as_those_of_one_rank() {
        let cutting = cutting(&[10, 3, 41], 4);
        let part = |bucket: usize, place: usize| 1.0 / (1 + 7 * bucket + place) as f64;
        let parts_of = |rank: usize, ranks: usize| -> Vec<f64> {
            let chunks = [10, 3, 41].map(|length| held_chunks(rank, ranks, length, 4)[0].clone());
            let places = chunks.into_iter().enumerate();
            places.flat_map(|(bucket, own)| own.step_by(4).map(move |place| part(bucket, place))).collect()
        };
        let expected = cutting.squared_norm(&[parts_of(0, 1)]).unwrap();
        for ranks in 2..7 {
            let all: Vec<Vec<f64>> = (0..ranks).map(|rank| parts_of(rank, ranks)).collect();
            assert_eq!(cutting.squared_norm(&all).map(f64::to_bits), Some(expected.to_bits()), "{ranks}");
            assert!(all.iter().map(Vec::len).max() == Some(cutting.most_parts(ranks)));
            let mut wrong = all.clone();
            wrong[0].push(1.0);
            assert_eq!(cutting.squared_norm(&wrong), None);
            assert_eq!(cutting.squared_norm(&all[..ranks - 1]), None);
        }
    }

    #[test]
    fn rows_bring_back_what_they_were_made_of() {
        let parts = [0.1, f64::NAN, f64::INFINITY, 0.0, 1e300];
        let row = norm_parts_to_row(&parts, Wish::End, 9);
        assert_eq!(row.len(), norm_parts_to_row(&[], Wish::Nothing, 9).len());
        let (back, wish) = norm_parts_from_row(&row).unwrap();
        assert_eq!((back.len(), wish, back[0], back[1].is_nan()), (5, Wish::End, 0.1, true));
        assert_eq!(norm_parts_from_row(&norm_parts_to_row(&[], Wish::State, 0)), Some((vec![], Wish::State)));
        assert_eq!(norm_parts_from_row(&[]), None);
        assert_eq!(norm_parts_from_row(&row[..9]), None);
        assert!(Wish::Nothing < Wish::State && Wish::State < Wish::End);
        for held in [Held::Nothing, Held::All, share(2, 5)] {
            let one = Entrant { step: 7, pending: 8, held, incomplete: true, squared_norm: Some(0.3) };
            assert_eq!(Entrant::from_row(&one.to_row()), Some(one));
        }
        assert_eq!(Entrant::from_row(&[0.0; 7]), None);
    }

    #[test]
    fn whoever_has_all_but_the_squares_takes_the_step_too() {
        let cutting = cutting(&[100], 4);
        let at = |step, pending, held, squared_norm| Entrant {
            step,
            pending,
            held,
            incomplete: false,
            squared_norm,
        };
        // Rank 1 of three was lost; rank 0 has taken step 9, rank 2 has not.
        let entry =
            Entry::of(&[at(9, 0, share(0, 3), Some(2.0)), at(8, 9, share(2, 3), Some(1.0))], &cutting);
        assert_eq!((entry.last, entry.squared_norm, entry.is_whole), (9, Some(2.0), false));
        assert_eq!(entry.held, [share(0, 3), share(2, 3)]);
        // A newcomer has nothing of it.
        let entry = Entry::of(&[at(9, 0, share(0, 2), Some(2.0)), at(0, 0, Held::All, None)], &cutting);
        assert_eq!(entry.held, [share(0, 2), Held::Nothing]);
        // Nobody took it here, as after a resume.
        let entry = Entry::of(&[at(9, 0, Held::All, None), at(8, 9, share(1, 2), None)], &cutting);
        assert_eq!(entry.held, [Held::All, Held::Nothing]);
        // All begin, and a ring is formed again from the same ranks.
        assert!(Entry::of(&[at(0, 0, Held::All, None); 3], &cutting).is_whole);
        let same = [at(4, 0, share(0, 2), Some(1.0)), at(4, 0, share(1, 2), Some(1.0))];
        assert!(Entry::of(&same, &cutting).is_whole);
        let swapped = [same[1], same[0]];
        assert!(!Entry::of(&swapped, &cutting).is_whole);
        let incomplete = [same[0], Entrant { incomplete: true, ..same[1] }];
        assert!(!Entry::of(&incomplete, &cutting).is_whole);
    }
}

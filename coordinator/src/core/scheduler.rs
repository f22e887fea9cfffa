//! Which workers a job gets: a function of the job's wishes and of the free workers.

use std::sync::Arc;

use ringtune_shared::ids::WorkerId;
use ringtune_shared::job::{MixedPrecision, Topology};

use super::topology;
use super::worker::Capabilities;

/// What a job wishes for.
#[derive(Debug, Clone)]
pub struct Problem<'a> {
    /// Ranks wanted.
    pub world_size: u32,
    /// The fewest ranks it may start on; at most `world_size`.
    pub min_world_size: u32,
    /// What it wants to compute in.
    pub precision: MixedPrecision,
    /// Threads of a rank; 0: decide.
    pub threads_per_rank: u32,
    /// Which classes will do.
    pub class: ClassWish<'a>,
    /// How its workers are to be chosen among those that are free.
    pub topology: Option<Topology>,
}

/// Which numerics classes will do for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassWish<'a> {
    /// Any.
    Any,
    /// Any, but this one first: its checkpoint's steps were computed on it.
    Preferred(&'a str),
    /// Only this one: it had a ring of this class. What the ranks compute in is decided, too.
    Only(&'a str),
}

/// The workers that are connected and have nothing to do.
pub trait FreeWorkers {
    /// Every numerics class that has any, in the order of their names, and how many it has.
    fn classes(&self) -> impl Iterator<Item = (&str, usize)>;

    /// `most` workers of a class, those first that are to be taken first.
    fn of_class(&self, class: &str, most: usize) -> Vec<Candidate>;
}

/// A worker that could take a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its id.
    pub worker: WorkerId,
    /// Its node.
    pub host_name: String,
    /// What it can do.
    pub capabilities: Arc<Capabilities>,
}

/// The answer to a [`Problem`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Form this ring.
    Place(Placement),
    /// Not now; the text says what is missing.
    Wait(String),
}

/// A ring to be formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// In rank order; of one numerics class.
    pub members: Vec<WorkerId>,
    /// The class.
    pub numerics_class: String,
    /// bf16 only where it is wanted and every member has it.
    pub precision: MixedPrecision,
    /// At least 1.
    pub threads_per_rank: u32,
    /// What a user should know of this decision: fewer ranks, another precision.
    pub notes: Vec<String>,
}

/// Chooses `min(world_size, free)` workers of one numerics class, if that makes at least `min_world_size`: the preferred
/// class where it has so many, or else the class with most free workers.
///
/// The same problem always gets the same answer.
pub fn place(problem: &Problem<'_>, free: &impl FreeWorkers) -> Decision {
    let class = match choose_class(problem, free) {
        Ok(class) => class,
        Err(missing) => return Decision::Wait(missing),
    };
    let most = problem.world_size as usize;
    let chosen = match &problem.topology {
        None => {
            let mut chosen = free.of_class(class, most);
            // Neighbours are to be of one host.
            chosen.sort_by(|one, other| (&one.host_name, one.worker).cmp(&(&other.host_name, other.worker)));
            chosen
        }
        Some(topology) => {
            let value = |one: &Candidate| one.capabilities.labels.get(topology.key()).cloned();
            topology::choose(topology, free.of_class(class, usize::MAX), value, most)
        }
    };
    let mut notes = Vec::new();
    if chosen.len() < problem.world_size as usize {
        notes.push(format!(
            "starting with {} of the {} ranks that are wanted; the result is the same",
            chosen.len(),
            problem.world_size
        ));
    }
    // What all of them can do.
    let mut precision = problem.precision;
    let decided = matches!(problem.class, ClassWish::Only(_));
    if precision == MixedPrecision::Bf16
        && !decided
        && !chosen.iter().all(|candidate| candidate.capabilities.bf16)
    {
        precision = MixedPrecision::No;
        notes.push("computes in fp32: a worker's processor has no bf16".to_owned());
    }
    let smallest = chosen.iter().map(|candidate| candidate.capabilities.threads).min().unwrap_or(1);
    let threads_per_rank = if problem.threads_per_rank == 0 { smallest } else { problem.threads_per_rank };
    Decision::Place(Placement {
        members: chosen.iter().map(|candidate| candidate.worker).collect(),
        numerics_class: class.to_owned(),
        precision,
        threads_per_rank: threads_per_rank.max(1),
        notes,
    })
}

/// The class whose workers [`place`] would take: the one that the job is bound to; or else the preferred one, if it has
/// enough; or else the one with most free workers, of equal ones the first by name.
///
/// # Errors
/// What is missing, as a text for users.
pub fn choose_class<'f>(problem: &Problem<'_>, free: &'f impl FreeWorkers) -> Result<&'f str, String> {
    let needed = problem.min_world_size as usize;
    let allowed = free.classes().filter(|(name, _)| match problem.class {
        ClassWish::Only(only) => only == *name,
        ClassWish::Any | ClassWish::Preferred(_) => true,
    });
    let largest = allowed.min_by_key(|(name, size)| {
        let preferred = problem.class == ClassWish::Preferred(name) && *size >= needed;
        (!preferred, usize::MAX - size, *name)
    });
    match largest {
        Some((class, size)) if size >= needed => Ok(class),
        _ => Err(missing(problem, free)),
    }
}

fn missing(problem: &Problem<'_>, free: &impl FreeWorkers) -> String {
    let needed = problem.min_world_size;
    let (mut all, mut classes, mut largest) = (0, 0, 0);
    for (_, size) in free.classes() {
        (all, classes, largest) = (all + size, classes + 1, largest.max(size));
    }
    let bound_to = match problem.class {
        ClassWish::Only(only) => {
            Some(free.classes().find(|(name, _)| *name == only).map_or(0, |(_, size)| size))
        }
        ClassWish::Any | ClassWish::Preferred(_) => None,
    };
    if let Some(of_class) = bound_to.filter(|of_class| *of_class < all) {
        format!(
            "waiting for workers: {all} free, {of_class} of the numerics class that the job began on; \
             {needed} of that class needed"
        )
    } else if classes > 1 && all >= needed as usize {
        format!(
            "waiting for workers: {all} free in {classes} numerics classes, at most {largest} of one; \
             {needed} of one class needed"
        )
    } else {
        format!("waiting for workers: {all} free, {needed} needed")
    }
}

/// Reference implementation over a plain list. The indexes of the core must give the same.
#[cfg(test)]
pub(super) struct Listed<'a>(pub(super) &'a [Candidate]);

#[cfg(test)]
impl FreeWorkers for Listed<'_> {
    fn classes(&self) -> impl Iterator<Item = (&str, usize)> {
        let mut classes: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
        self.0.iter().for_each(|one| *classes.entry(&one.capabilities.numerics_class).or_default() += 1);
        classes.into_iter()
    }

    fn of_class(&self, class: &str, most: usize) -> Vec<Candidate> {
        let mut all: Vec<Candidate> =
            self.0.iter().filter(|one| one.capabilities.numerics_class == class).cloned().collect();
        all.sort_by(|one, other| (&one.host_name, one.worker).cmp(&(&other.host_name, other.worker)));
        all.truncate(most);
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate(class: u8, host: u8, bf16: bool, threads: u32) -> Candidate {
        Candidate {
            worker: WorkerId::new(),
            host_name: format!("host-{host}"),
            capabilities: Arc::new(Capabilities {
                numerics_class: format!("class-{class}"),
                bf16,
                threads,
                ..Capabilities::default()
            }),
        }
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (0u8..4, 0u8..3, any::<bool>(), 0u32..9);
        prop::collection::vec(one, 0..12).prop_map(|all| {
            all.into_iter()
                .map(|(class, host, bf16, threads)| candidate(class, host, bf16, threads))
                .collect()
        })
    }

    proptest! {
        #[test]
        fn a_placement_keeps_its_promises(
            free in candidates(), (world, min) in (1u32..10).prop_flat_map(|world| (Just(world), 1..=world)),
            bf16 in any::<bool>(), threads_per_rank in 0u32..5, shift in 0usize..12,
        ) {
            let precision = if bf16 { MixedPrecision::Bf16 } else { MixedPrecision::No };
            let problem = Problem {
                world_size: world, min_world_size: min, precision, threads_per_rank, class: ClassWish::Any,
                topology: None,
            };
            let decision = place(&problem, &Listed(&free));
            let largest = (0u8..4)
                .map(|class| free.iter().filter(|one| one.capabilities.numerics_class == format!("class-{class}")).count())
                .max().unwrap_or(0);
            match &decision {
                Decision::Wait(reason) => {
                    prop_assert!(largest < min as usize);
                    prop_assert!(reason.starts_with("waiting for workers: "));
                }
                Decision::Place(placement) => {
                    prop_assert_eq!(placement.members.len(), largest.min(world as usize));
                    prop_assert!(placement.members.len() >= min as usize);
                    let members: Vec<&Candidate> = placement.members.iter()
                        .map(|id| free.iter().find(|one| one.worker == *id).unwrap()).collect();
                    let distinct: std::collections::BTreeSet<_> = placement.members.iter().collect();
                    prop_assert_eq!(distinct.len(), members.len());
                    prop_assert!(members.iter().all(|one| one.capabilities.numerics_class == placement.numerics_class));
                    prop_assert!(members.is_sorted_by_key(|one| (&one.host_name, one.worker)));
                    let all_bf16 = members.iter().all(|one| one.capabilities.bf16);
                    prop_assert_eq!(placement.precision == MixedPrecision::Bf16, bf16 && all_bf16);
                    let least = members.iter().map(|one| one.capabilities.threads).min().unwrap_or(0).max(1);
                    let wanted = if threads_per_rank == 0 { least } else { threads_per_rank };
                    prop_assert_eq!(placement.threads_per_rank, wanted);
                }
            }
            let mut turned = free.clone();
            let by = shift % free.len().max(1);
            turned.rotate_left(by);
            prop_assert_eq!(place(&problem, &Listed(&turned)), decision);
        }
    }

    #[test]
    fn the_class_of_a_resumed_job_comes_first_where_it_is_enough() {
        let free = [0, 0, 0, 1, 1].map(|class| candidate(class, class, true, 1));
        let class_of = |class, min_world_size| {
            let problem = Problem {
                world_size: 3,
                min_world_size,
                precision: MixedPrecision::No,
                threads_per_rank: 0,
                class,
                topology: None,
            };
            match place(&problem, &Listed(&free)) {
                Decision::Place(placement) => placement.numerics_class,
                Decision::Wait(reason) => reason,
            }
        };
        use ClassWish::{Any, Only, Preferred};
        assert_eq!(class_of(Any, 1), "class-0");
        assert_eq!(class_of(Preferred("class-1"), 2), "class-1");
        assert_eq!(class_of(Preferred("class-1"), 3), "class-0");
        assert_eq!(class_of(Preferred("class-7"), 1), "class-0");
        // One that had a ring takes no other.
        assert_eq!(class_of(Only("class-1"), 2), "class-1");
        let missing = |of_class| {
            format!(
                "waiting for workers: 5 free, {of_class} of the numerics class that the job began on; \
                 3 of that class needed"
            )
        };
        assert_eq!(class_of(Only("class-1"), 3), missing(2));
        assert_eq!(class_of(Only("class-7"), 3), missing(0));
    }

    #[test]
    fn what_was_decided_with_the_first_ring_stays() {
        let free = [candidate(0, 0, false, 8), candidate(0, 1, true, 8)];
        let problem = Problem {
            world_size: 2,
            min_world_size: 1,
            precision: MixedPrecision::Bf16,
            threads_per_rank: 3,
            class: ClassWish::Only("class-0"),
            topology: None,
        };
        let Decision::Place(placement) = place(&problem, &Listed(&free)) else { panic!("it waits") };
        assert_eq!((placement.precision, placement.threads_per_rank), (MixedPrecision::Bf16, 3));
        assert!(placement.notes.is_empty());
    }

    #[test]
    fn a_waiting_job_is_told_what_is_missing() {
        let two_classes = [candidate(0, 0, true, 1), candidate(1, 1, true, 1)];
        let problem = |min_world_size| Problem {
            world_size: 3,
            min_world_size,
            precision: MixedPrecision::No,
            threads_per_rank: 0,
            class: ClassWish::Any,
            topology: None,
        };
        let reason = |free, min| match place(&problem(min), &Listed(free)) {
            Decision::Wait(reason) => reason,
            Decision::Place(placement) => panic!("{placement:?}"),
        };
        assert_eq!(reason(&two_classes[..1], 2), "waiting for workers: 1 free, 2 needed");
        assert!(
            reason(&two_classes, 2).contains("2 numerics classes, at most 1 of one; 2 of one class needed")
        );
    }
}

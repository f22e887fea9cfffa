//! The suite's cases, in the order in which they are run.

use std::time::Duration;

use futures::future::try_join_all;
use ringtune_shared::ids::Epoch;
use ringtune_shared::ring::tree::TreeSum;
use ringtune_shared::ring::{Element, Frame, Place, Ring, RingConfig, RingError, block_of};
use tokio::time::{Instant, sleep};

use super::harness::{Case, EPOCH, Outcome, Suite};
use super::{Failure, Fault, reference, spread};

/// Numbers in the buffers of the cases with faults: enough for several segments in every hop.
const SIZE: usize = 500;
const SEGMENT: usize = 20;

/// All collectives, one after the other on one ring, for all sizes of everything; and all ranks
/// leave in peace.
pub(super) async fn results_are_right_to_the_bit(suite: Suite<'_>) -> Result<(), Failure> {
    for &world_size in &suite.config.world_sizes {
        for &segment_floats in &suite.config.segments {
            let sizes = suite.config.sizes.iter().copied();
            for size in sizes.filter(|size| size / segment_floats <= suite.config.most_segments) {
                let mut case = Case::new(format!("right results for {size} numbers"), suite, world_size);
                case.ring.segment_floats = segment_floats;
                let expected = reference::reduced(world_size, size);
                let problems = case.run(move |ring| all_collectives(ring, size, expected.clone())).await?;
                for (rank, Outcome { result, .. }) in problems.into_iter().enumerate() {
                    match result {
                        Ok(None) => {}
                        Ok(Some(problem)) => return Err(case.failure(format!("rank {rank}: {problem}"))),
                        Err(error) => return Err(case.failure(format!("rank {rank}: {error}"))),
                    }
                }
            }
        }
    }
    Ok(())
}

async fn all_collectives(
    mut ring: Ring,
    size: usize,
    expected: Vec<f32>,
) -> Result<Option<String>, RingError> {
    let place = ring.place();
    let buffer = reference::buffer(place.rank, size);
    let buffer = ring.all_reduce(buffer).await?;
    if let Some(difference) = reference::difference(&buffer, &expected) {
        return Ok(Some(format!("all_reduce: {difference}")));
    }
    for rows in [0, 1, place.world_size, 2 * place.world_size + 1] {
        let width = size / rows.max(1);
        let own = reference::own_rows(place.rank, place.world_size, width, rows);
        let gathered = ring.gather_rows(&own, width, rows).await?;
        if let Some(difference) = reference::difference(&gathered, &reference::rows(width, rows)) {
            return Ok(Some(format!("gather_rows of {rows} rows of {width}: {difference}")));
        }
    }
    if let Some(problem) = other_collectives(&mut ring, size).await? {
        return Ok(Some(problem));
    }
    // Once more: the ring is as good as new.
    let buffer = reference::buffer(place.rank, size);
    let buffer = ring.all_reduce(buffer).await?;
    let difference = reference::difference(&buffer, &expected);
    ring.close().await?;
    Ok(difference.map(|difference| format!("the last all_reduce: {difference}")))
}

/// All other collectives.
async fn other_collectives(ring: &mut Ring, size: usize) -> Result<Option<String>, RingError> {
    let Place { rank, world_size, .. } = ring.place();
    let differs = |what: &str, difference: Option<String>| difference.map(|found| format!("{what}: {found}"));
    let in_bf16 = ring.all_reduce_as(reference::buffer(rank, size), Element::Bf16).await?;
    let difference = reference::difference(&in_bf16, &reference::reduced_in_bf16(world_size, size));
    if let Some(problem) = differs("all_reduce in bf16", difference) {
        return Ok(Some(problem));
    }
    for root in [0, world_size - 1] {
        let sent = ring.broadcast(reference::buffer(rank, size), root).await?;
        let difference = reference::difference(&sent, &reference::buffer(root, size));
        if let Some(problem) = differs(&format!("broadcast from {root}"), difference) {
            return Ok(Some(problem));
        }
    }
    for total in [1, world_size, 2 * world_size + 1] {
        // Whatever memory it is.
        let mut sum: TreeSum<Box<[f32]>> = TreeSum::new(total);
        for microbatch in block_of(rank, world_size, total) {
            sum.push(microbatch, reference::buffer(microbatch, size).into());
        }
        let nodes = sum.nodes().count();
        let summed = ring.sum_exactly(sum, size, || vec![0.0; size].into()).await?;
        if summed.spare.len() != nodes.saturating_sub(1) {
            return Ok(Some(format!(
                "sum_exactly kept memory: of {nodes} only {} are left",
                summed.spare.len()
            )));
        }
        let difference = reference::difference(&summed.sum, &reference::summed_by_the_tree(total, size));
        if let Some(problem) = differs(&format!("sum_exactly of {total} microbatches"), difference) {
            return Ok(Some(problem));
        }
    }
    if let Some(problem) = spread::sums_on_two_ranks(ring, size, 7).await? {
        return Ok(Some(problem));
    }
    ring.barrier().await?;
    Ok(None)
}

/// A rank that comes three deadlines late, but lives, is not a failure.
pub(super) async fn a_slow_rank_that_pulses_is_waited_for(suite: Suite<'_>) -> Result<(), Failure> {
    let of = |world_size| a_slow_rank_of(world_size, suite);
    try_join_all(several(suite).map(of)).await.map(drop)
}

async fn a_slow_rank_of(world_size: usize, suite: Suite<'_>) -> Result<(), Failure> {
    let mut case = faulty_case("a slow rank", suite, world_size);
    let late = (suite.config.ring.peer_timeout + suite.config.ring.pulse_interval) * 3;
    case.patience += late;
    let slow = world_size - 1;
    let expected = reference::reduced(world_size, SIZE);
    let outcomes = case
        .run(move |mut ring| {
            let expected = expected.clone();
            async move {
                let mut differences = Vec::new();
                let (mut waited, mut sent) = (Duration::ZERO, 0);
                for _ in 0..2 {
                    if ring.place().rank == slow {
                        sleep(late).await;
                    }
                    let buffer = reference::buffer(ring.place().rank, SIZE);
                    let buffer = ring.all_reduce(buffer).await?;
                    waited = waited.max(ring.last_exchange().wait);
                    sent = ring.last_exchange().sent_bytes;
                    differences.extend(reference::difference(&buffer, &expected));
                }
                ring.close().await?;
                Ok((differences, waited, sent))
            }
        })
        .await?;
    let mut all_sent = 0;
    for (rank, Outcome { result, .. }) in outcomes.into_iter().enumerate() {
        match result {
            Err(error) => return Err(case.failure(format!("rank {rank}: {error}"))),
            Ok((differences, ..)) if !differences.is_empty() => {
                return Err(case.failure(format!("rank {rank}: {}", differences.join("; "))));
            }
            // The one after the slow rank hears nothing before it comes.
            Ok((_, waited, _)) if rank == 0 && waited < late / 2 => {
                return Err(case.failure(format!("rank 0 waited {waited:?} for one that is {late:?} late")));
            }
            Ok((.., sent)) => all_sent += sent,
        }
    }
    // Each number leaves all ranks but one, once on its way to its sum and once on the sum's way around.
    let expected = (2 * (world_size - 1) * SIZE * size_of::<f32>()) as u64;
    if all_sent != expected {
        return Err(case.failure(format!("the ranks say that they sent {all_sent} bytes, not {expected}")));
    }
    Ok(())
}

/// A rank whose connections break, at any frame, fails all ranks at once.
pub(super) async fn a_rank_that_dies_is_noticed(suite: Suite<'_>) -> Result<(), Failure> {
    for world_size in several(suite) {
        for after in [0, 1, frames_of_a_rank(world_size) / 2] {
            let mut case = faulty_case("a rank dies", suite, world_size);
            case.fault = Some((world_size / 2, Fault::Die { after }));
            let outcomes = case.run(repeat_until_failure).await?;
            let lost = |error: &RingError| matches!(error, RingError::PeerLost { .. });
            all_fail(&case, &outcomes, lost)?;
        }
    }
    Ok(())
}

/// A rank that falls silent is noticed by the deadline, by the next one first; the others learn of
/// it through the ring.
pub(super) async fn a_rank_that_stalls_is_noticed(suite: Suite<'_>) -> Result<(), Failure> {
    for world_size in several(suite) {
        for after in [0, 1, frames_of_a_rank(world_size) / 2] {
            let mut case = faulty_case("a rank stalls", suite, world_size);
            let stalled = world_size / 2;
            case.fault = Some((stalled, Fault::Freeze { after }));
            let outcomes = case.run(repeat_until_failure).await?;
            let lost_or_stalled =
                |error: &RingError| matches!(error, RingError::PeerLost { .. } | RingError::Stalled { .. });
            all_fail(&case, &outcomes, lost_or_stalled)?;
            let next = (stalled + 1) % world_size;
            let noticed = &outcomes[next].result;
            if !matches!(noticed, Err(RingError::Stalled { rank, .. }) if *rank == stalled) {
                return Err(case.failure(format!("rank {next} was to see rank {stalled} stall: {noticed:?}")));
            }
            let bound =
                suite.config.ring.peer_timeout + suite.config.ring.pulse_interval + suite.config.slack;
            for (rank, outcome) in outcomes.iter().enumerate() {
                if outcome.after > bound {
                    let problem = format!("rank {rank} took {:?}, more than {bound:?}", outcome.after);
                    return Err(case.failure(problem));
                }
            }
        }
    }
    Ok(())
}

/// A rank that was frozen while the ring went on to a new epoch spoils nothing.
pub(super) async fn an_older_epoch_is_refused(suite: Suite<'_>) -> Result<(), Failure> {
    for world_size in several(suite) {
        let stale = world_size - 1;
        let older = Epoch(EPOCH.0 - 1);
        let mut case = faulty_case("an older epoch", suite, world_size);
        case.fault = Some((stale, Fault::SpeakFor(older)));
        let outcomes = case.run(repeat_until_failure).await?;
        let expected = RingError::StaleEpoch { rank: stale, got: older, current: EPOCH };
        refused_by_next(&case, &outcomes, stale, |error| *error == expected)?;
    }
    Ok(())
}

/// A newer epoch, and frames that are doubled, left out or of another length.
pub(super) async fn what_does_not_belong_is_refused(suite: Suite<'_>) -> Result<(), Failure> {
    type Change = fn(&mut Frame);
    let changes: [(&str, Change); 7] = [
        ("a collective that is over", |frame| frame.collective -= 1),
        ("a collective to come", |frame| frame.collective += 1),
        ("a hop too far", |frame| frame.hop += 1),
        ("a segment too far", |frame| frame.segment += 1),
        ("a number too few", |frame| frame.payload.truncate(frame.payload.len() - 4)),
        ("half a number", |frame| frame.payload.truncate(frame.payload.len() - 2)),
        ("no numbers", |frame| frame.payload.truncate(0)),
    ];
    let world_size = 3;
    let wrong = 1;
    let mut faults = vec![("a newer epoch", Fault::SpeakFor(Epoch(EPOCH.0 + 1)))];
    for (name, how) in changes {
        faults.push((name, Fault::Change { frame: 0, how }));
        faults.push((name, Fault::Change { frame: 17, how }));
    }
    for (name, fault) in faults {
        let mut case = faulty_case(name, suite, world_size);
        case.fault = Some((wrong, fault));
        let outcomes = case.run(repeat_until_failure).await?;
        let refused = |error: &RingError| matches!(error, RingError::Protocol { rank, .. } if *rank == wrong);
        refused_by_next(&case, &outcomes, wrong, refused)?;
    }
    Ok(())
}

/// Ranks whose buffers are not equally long, by a number a chunk or by so much that there are more segments, or whose numbers are not
/// the same on their way: no rank has a sum that it takes for whole.
pub(super) async fn buffers_of_different_lengths_are_refused(suite: Suite<'_>) -> Result<(), Failure> {
    for world_size in several(suite) {
        for (more, sums) in
            [(1, "fast"), (1, "exact"), (1, "bf16"), (SEGMENT, "fast"), (SEGMENT, "exact"), (0, "mixed")]
        {
            let case = faulty_case("buffers of different lengths", suite, world_size);
            let sum = move |mut ring: Ring| async move {
                let Place { rank, world_size, .. } = ring.place();
                // Each of its chunks is longer.
                let size = if rank + 1 == world_size { SIZE + more * world_size } else { SIZE };
                for _ in 0..10 {
                    let own = reference::buffer(rank, size);
                    if sums == "bf16" || (sums == "mixed" && rank == 0) {
                        ring.all_reduce_as(own, Element::Bf16).await?;
                    } else if sums == "exact" {
                        let mut sum = TreeSum::new(world_size);
                        sum.push(rank, own);
                        ring.sum_exactly(sum, size, Vec::new).await?;
                    } else {
                        ring.all_reduce(own).await?;
                    }
                }
                Ok(())
            };
            let outcomes = case.run(sum).await?;
            let refused = |error: &RingError| matches!(error, RingError::Protocol { .. });
            all_fail(&case, &outcomes, |error| {
                refused(error) || matches!(error, RingError::PeerLost { .. })
            })?;
            if !outcomes.iter().any(|outcome| matches!(&outcome.result, Err(error) if refused(error))) {
                return Err(case.failure("no rank said that it was sent something else than it expected"));
            }
        }
    }
    Ok(())
}

/// A frame that is not on its arrival what it was.
pub(super) async fn what_is_damaged_is_refused(suite: Suite<'_>) -> Result<(), Failure> {
    for world_size in several(suite) {
        let wrong = world_size - 1;
        for frame in [0, frames_of_a_rank(world_size) + 3] {
            let mut case = faulty_case("a damaged frame", suite, world_size);
            case.fault = Some((wrong, Fault::Damage { frame }));
            let outcomes = case.run(repeat_until_failure).await?;
            let refused =
                |error: &RingError| matches!(error, RingError::Damaged { rank, .. } if *rank == wrong);
            refused_by_next(&case, &outcomes, wrong, refused)?;
        }
    }
    Ok(())
}

/// A rank that says good-bye while the others still need it.
pub(super) async fn a_rank_that_leaves_early_is_missed(suite: Suite<'_>) -> Result<(), Failure> {
    for world_size in several(suite) {
        let case = faulty_case("a rank leaves early", suite, world_size);
        let outcomes = case
            .run(|ring| async move {
                if ring.place().rank == 0 {
                    // Whether its own leaving succeeds is of no interest: the others break the ring.
                    let _ = ring.close().await;
                    return Err(RingError::Cancelled);
                }
                repeat_until_failure(ring).await
            })
            .await?;
        all_fail(&case, &outcomes[1..], |error| matches!(error, RingError::PeerLost { .. }))?;
    }
    Ok(())
}

/// A rank that is told to stop in the middle of an exchange stops at once, and so do the others.
pub(super) async fn a_rank_that_is_cancelled_ends_the_ring(suite: Suite<'_>) -> Result<(), Failure> {
    const CANCELLED_AFTER: Duration = Duration::from_millis(50);
    for world_size in several(suite) {
        let case = faulty_case("a rank is cancelled", suite, world_size);
        let began = Instant::now();
        let outcomes = case
            .run(|ring| async move {
                let canceller = ring.canceller();
                match ring.place().rank {
                    // Rank 0 is cancelled while it waits, directly or not, for rank 1.
                    0 => {
                        let cancelling = tokio::spawn(async move {
                            sleep(CANCELLED_AFTER).await;
                            canceller.cancel();
                        });
                        let result = repeat_until_failure(ring).await;
                        let _ = cancelling.await;
                        result
                    }
                    1 => {
                        sleep(CANCELLED_AFTER * 4).await;
                        repeat_until_failure(ring).await
                    }
                    _ => repeat_until_failure(ring).await,
                }
            })
            .await?;
        all_fail(&case, &outcomes, |error| {
            matches!(error, RingError::PeerLost { .. } | RingError::Cancelled)
        })?;
        if !matches!(outcomes[0].result, Err(RingError::Cancelled)) {
            return Err(case.failure(format!("rank 0 was cancelled, but has {:?}", outcomes[0].result)));
        }
        if began.elapsed() > suite.config.ring.peer_timeout + suite.config.slack {
            return Err(case.failure(format!("it took {:?}", began.elapsed())));
        }
    }
    Ok(())
}

/// The suite's ring sizes of more than one rank.
fn several(suite: Suite<'_>) -> impl Iterator<Item = usize> {
    suite.config.world_sizes.iter().copied().filter(|world_size| *world_size > 1)
}

fn faulty_case<'suite>(name: &str, suite: Suite<'suite>, world_size: usize) -> Case<'suite> {
    let mut case = Case::new(name.to_owned(), suite, world_size);
    case.ring = RingConfig { segment_floats: SEGMENT, ..case.ring };
    case
}

/// Frames that a rank sends in one all-reduce of the cases with faults, about.
fn frames_of_a_rank(world_size: usize) -> usize {
    2 * (world_size - 1) * (SIZE / world_size).div_ceil(SEGMENT)
}

/// One exchange after the other until the ring fails, which the cases with faults make sure of long
/// before the last one. `Ok` if it does not fail, or not in the same way when it is used again.
async fn repeat_until_failure(mut ring: Ring) -> Result<(), RingError> {
    for _ in 0..1000 {
        let buffer = reference::buffer(ring.place().rank, SIZE);
        if let Err(error) = ring.all_reduce(buffer).await {
            let again = ring.gather_rows(&[], 0, 0).await;
            return if again == Err(error.clone()) { Err(error) } else { Ok(()) };
        }
    }
    Ok(())
}

fn all_fail(
    case: &Case<'_>,
    outcomes: &[Outcome<()>],
    expected: impl Fn(&RingError) -> bool,
) -> Result<(), Failure> {
    for outcome in outcomes {
        match &outcome.result {
            Ok(()) => {
                return Err(case.failure("the ring did not fail, or in another way when it was used again"));
            }
            Err(error) if expected(error) => {}
            Err(error) => return Err(case.failure(format!("unexpected error: {error:?}"))),
        }
    }
    Ok(())
}

/// The rank after the wrong one refuses; the others learn of it by their connections.
fn refused_by_next(
    case: &Case<'_>,
    outcomes: &[Outcome<()>],
    wrong: usize,
    refused: impl Fn(&RingError) -> bool,
) -> Result<(), Failure> {
    let next = (wrong + 1) % outcomes.len();
    all_fail(case, outcomes, |error| refused(error) || matches!(error, RingError::PeerLost { .. }))?;
    match &outcomes[next].result {
        Err(error) if refused(error) => Ok(()),
        other => Err(case.failure(format!("rank {next} was to refuse: {other:?}"))),
    }
}

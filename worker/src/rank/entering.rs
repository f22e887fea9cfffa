//! A rank enters a ring: all ranks check that they agree on their inputs, and start from the same state.

use ringtune_shared::{
    ids::ContentHash,
    ring::{EntryPlan, Standing, plan_entry},
};

use super::{Error, LentRing, Rank, Work, agreement, orders, summaries};
use crate::{
    ring::{self, FetchFrom, RankRing, Seat, StateRoom},
    session::{Assignment, StepSummary},
};

/// Connects the ring, brings all ranks to one step, and settles what was ordered. Dropped in the middle when the ring is not wanted any more: what
/// this rank has is as good as before.
///
/// # Errors
/// The ring's; ranks that work on other things, or did the same step with another outcome.
pub(super) async fn enter<W: Work>(
    rank: &mut Rank,
    work: &mut W,
    seat: Seat,
    lent: &mut LentRing,
) -> Result<(), Error> {
    let ring = lent.put(seat.for_steps_of(work.step_bytes()).connect().await?);
    if let Some(reached) = ring.reached() {
        rank.journal.info(reached.to_owned()).await;
    }
    let agreed = agreement::check(ring, &work.common()).await;
    if let Err(Error::Disagreement { .. }) = agreed {
        // All ranks see the error; none may take another's leaving for the reason.
        lent.leave().await;
    }
    agreed?;
    let ring = lent.get()?;
    work.assemble(rank, ring).await?;
    if ring.can_reform() {
        level(rank, work, ring).await?;
    }
    let step = work.last_step().await?;
    let Assignment { orders, spec, .. } = &mut rank.assignment;
    orders::settle(orders, step, ring).await?;
    let before = spec.common.orders.clone();
    spec.take_orders(&*orders);
    if spec.common.orders != before {
        work.amend(rank)?;
    }
    Ok(())
}

/// Brings ranks that are behind to the state of the others.
async fn level<W: Work>(rank: &Rank, work: &mut W, ring: &mut RankRing) -> Result<(), Error> {
    // 1. Offered before anybody can know that it is wanted, and for as long as it may be.
    let own = work.standing().await?;
    // Of a state whose restoration was still under way when the ring before this one broke.
    work.tell_reports(rank).await?;
    let rings = &rank.context.rings;
    let (job, epoch) = (rank.life.job, rank.assignment.ring.epoch);
    let offer = rings.offer_state(job, epoch, own.step, work.state());
    // 2. Who has what.
    let rows = ring.gather_one_each(own.to_row()).await?;
    let standings: Option<Vec<Standing>> = rows.iter().map(|row| Standing::from_row(row)).collect();
    let standings = standings.ok_or(Error::Ring(ring::Error::Rows))?;
    let plan = plan_entry(&standings).map_err(Error::Diverged)?;
    // 3. Who is behind catches up. Nobody goes on before all have.
    if !plan.takers.is_empty() {
        // The reports come before the state: a rank that has a step's state and not its report could not say it, should it
        // be rank 0 after this ring broke too.
        let told = summaries::exchange(ring, &work.unstored(), plan.first()).await?;
        if plan.takers.contains(&ring.rank()) {
            let reports = told.into_iter().filter(|report| report.step > own.step).collect();
            catch_up(rank, work, &plan, reports, ring).await?;
        }
    }
    ring.gather_one_each(vec![0.0]).await?;
    drop(offer);
    Ok(())
}

async fn catch_up<W: Work>(
    rank: &Rank,
    work: &mut W,
    plan: &EntryPlan,
    reports: Vec<StepSummary>,
    connected: &RankRing,
) -> Result<(), Error> {
    let EntryPlan { step, state: expected, .. } = *plan;
    let ring = &rank.assignment.ring;
    let missing = || ring::Error::Rows;
    let giver = plan.giver_of(connected.rank());
    let member = ring.members.get(giver).ok_or_else(missing)?;
    let (worker, address) = (member.worker, member.address.as_str());
    let own = work.state();
    let room = match own.is_lent() {
        true => StateRoom::Disk { folder: &rank.folder, most_bytes: work.most_state_bytes() },
        false => StateRoom::Memory,
    };
    let from =
        FetchFrom { worker, address, job: ring.job, epoch: ring.epoch, rank: giver, step, expected, room };
    let state = tokio::select! {
        state = rank.context.rings.fetch_state(&from) => state?,
        error = connected.failed() => return Err(Error::Ring(ring::Error::Ring(error))),
    };
    work.restore(state, step, reports).await?;
    work.tell_reports(rank).await?;
    check(work.standing().await?.state, expected)?;
    rank.journal.info(format!("took the state after step {step} from rank {giver}")).await;
    Ok(())
}

/// Checks the restored state's hash.
fn check(found: ContentHash, expected: ContentHash) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::Restored { found, expected }) }
}

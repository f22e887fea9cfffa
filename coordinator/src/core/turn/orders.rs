//! What users order of jobs that learn: see [`crate::core::orders`].

use ringtune_shared::ids::{Epoch, JobId};
use ringtune_shared::job::{LiveOrder, MOST_ORDERS, Order};

use super::Turn;
use crate::core::job::Job;
use crate::core::job_state::JobState;
use crate::core::record::{EventBody, LogLevel};
use crate::core::refusal::Refusal;

impl Turn<'_> {
    /// Takes in an order, which is carried out between two steps.
    pub(super) fn order_job(&mut self, id: JobId, order: Order, after_step: u64) -> Result<(), Refusal> {
        // 1. Can it be carried out?
        let Some(job) = self.cluster.jobs.get(&id) else { return Err(Refusal::NotActive(id)) };
        let last = job.total_steps();
        if job.verification.is_some() || last == 0 {
            return Err(Refusal::TakesNoOrders(id));
        }
        if job.stop.as_ref().is_some_and(|stop| stop.goal.state() != JobState::Queued) {
            return Err(Refusal::AboutToEnd(id));
        }
        let (done, is_running) = (job.step, job.ring.is_some());
        let first = (done + u64::from(is_running)).max(1);
        // After the last step nothing more is learned.
        let last = if order.decides() { last.saturating_sub(1) } else { last };
        if (after_step > 0 && after_step < first) || after_step.max(first) > last {
            return Err(Refusal::StepIsOver { given: after_step, done, first, last });
        }
        if job.orders.len() >= MOST_ORDERS {
            return Err(Refusal::TooManyOrders { limit: MOST_ORDERS });
        }
        let can_not = |worker| self.cluster.workers.get(&worker).is_some_and(|worker| !worker.orders);
        if job.ring.iter().any(|ring| ring.workers().any(can_not))
            || (job.state == JobState::Running && job.ring.as_ref().is_some_and(|ring| !ring.reforms()))
        {
            return Err(Refusal::CannotOrder(id));
        }
        let mut ordered = Job::clone(job);
        ordered.add_order(order.clone(), after_step);
        let enough = |job: &Job| self.cluster.open_to(job).usable(job) >= job.ranks().1 as usize;
        if !is_running && enough(job) && !enough(&ordered) {
            return Err(Refusal::CannotOrder(id));
        }
        // 2. It is the job's from now on.
        let what = order.describe();
        let when = match after_step {
            0 => "as soon as the step is done".to_owned(),
            step => format!("after step {step}"),
        };
        let mut number = 0;
        if self.job_mut(id).is_some() {
            self.cluster.change_orders(id, |job| number = job.add_order(order, after_step));
        }
        self.record(id, EventBody::note(LogLevel::Info, format!("order {number}: {what}, {when}")));
        // 3. The ring changes for it, or there is none.
        if is_running {
            self.look_at_ring(id);
        } else {
            self.settle_without_ring(id);
        }
        Ok(())
    }

    /// A new step is stored: it says after which one its ring heard of what was ordered.
    pub(super) fn settle_by_step(&mut self, id: JobId, step: u64, epoch: Epoch) {
        self.settle(id, step.saturating_sub(1), Some(epoch));
    }

    /// The job has no ring: what was ordered is carried out after its last stored step.
    pub(super) fn settle_without_ring(&mut self, id: JobId) {
        let Some(step) = self.cluster.jobs.get(&id).map(|job| job.step) else { return };
        self.settle(id, step, None);
    }

    fn settle(&mut self, id: JobId, step: u64, of: Option<Epoch>) {
        if !self
            .cluster
            .jobs
            .get(&id)
            .is_some_and(|job| job.orders.iter().any(|one| one.live.settled.is_none()))
        {
            return;
        }
        let settled = self.job_mut(id).map(|job| job.settle_orders(step, of)).unwrap_or_default();
        for LiveOrder { number, order, settled, .. } in settled {
            let after = settled.unwrap_or_default();
            let said = match order {
                Order::LearningRate(rate) => format!("learning rate {rate:e} from step {} on", after + 1),
                Order::Stop => format!("step {after} is the last"),
                Order::Snapshot | Order::Sample(_) => format!("{} after step {after}", order.describe()),
            };
            self.record(id, EventBody::note(LogLevel::Info, format!("order {number}: {said}")));
        }
    }
}

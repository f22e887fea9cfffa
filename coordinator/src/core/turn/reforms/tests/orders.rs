//! What users order of jobs that run.

use ringtune_shared::job::{LiveOrder, Order};

use super::*;
use crate::core::Refusal;

impl World {
    fn order(&mut self, order: Order, after_step: u64) -> Result<(), Refusal> {
        let input = Input::OrderJob { job: self.job, order, after_step };
        let mut tried = self.cluster.clone();
        tried.apply(input.clone(), self.now)?;
        self.apply(input);
        Ok(())
    }

    /// The members of the newest ring enter it.
    fn all_enter(&mut self, epoch: u64) {
        let ranks = self.job().ring.as_ref().unwrap().members.len();
        for phase in [Phase::Ready, Phase::Training] {
            (0..ranks).for_each(|worker| self.say(worker, epoch, Some(worker), phase));
        }
    }

    fn settled(&self) -> Vec<Option<u64>> {
        self.job().orders.iter().map(|order| order.live.settled).collect()
    }

    /// What was told with the word to enter a ring.
    fn orders_told(&mut self) -> Vec<(u64, Vec<LiveOrder>)> {
        let told = std::mem::take(&mut self.told).into_iter();
        told.filter_map(|(_, down)| match down {
            Down::EnterRing(enter) => Some((enter.epoch.0, enter.orders)),
            _ => None,
        })
        .collect()
    }
}

#[test]
fn an_order_changes_the_ring_and_is_settled_by_the_first_step_of_the_next_one() {
    let mut world = World::training(2, 1, 0);
    world.step(0, 1, 1, "a");
    world.order(Order::LearningRate(0.5), 0).unwrap();
    let told = world.orders_told();
    assert_eq!(told.iter().map(|(epoch, _)| *epoch).collect::<Vec<_>>(), [2, 2]);
    assert!(told.iter().all(|(_, orders)| orders.len() == 1 && orders[0].settled.is_none()), "{told:?}");
    // The step that was under way is of the old ring.
    world.step(0, 1, 2, "b");
    assert_eq!(world.settled(), [None]);
    world.all_enter(2);
    world.step(0, 2, 3, "c");
    assert_eq!(world.settled(), [Some(2)]);
    let rates: Vec<_> = world.job().spec.common.orders.rates().collect();
    assert_eq!(rates, [(2, 0.5)]);
    assert!(
        world.notes.iter().any(|note| note == "order 1: learning rate 5e-1 from step 3 on"),
        "{:?}",
        world.notes
    );
    // Whoever comes later is told where it is.
    world.arrive();
    world.say(2, 2, None, Phase::Ready);
    let told = world.orders_told();
    assert!(told.iter().all(|(epoch, orders)| *epoch == 3 && orders[0].settled == Some(2)), "{told:?}");
}

#[test]
fn an_order_waits_for_its_step_and_a_stop_ends_the_job_there() {
    let mut world = World::training(1, 1, 0);
    world.order(Order::Stop, 4).unwrap();
    world.all_enter(2);
    world.step(0, 2, 1, "a");
    assert_eq!((world.settled(), world.job().total_steps()), (vec![Some(4)], 4));
    (2..=4).for_each(|step| world.step(0, 2, step, "b"));
    world.say(0, 2, Some(0), Phase::Finished);
    let ended = world.ended.clone().unwrap();
    assert_eq!((ended.state, ended.reason_code()), (JobState::Succeeded, ReasonCode::StoppedByOrder));
    assert_eq!(ended.reason, "4 of 9 steps done: stopped by an order");
}

#[test]
fn a_job_that_loses_its_ring_goes_on_with_what_was_ordered() {
    let mut world = World::training(2, 2, 0);
    world.step(0, 1, 1, "a");
    world.order(Order::Stop, 0).unwrap();
    world.order(Order::Snapshot, 0).unwrap();
    world.order(Order::LearningRate(0.25), 7).unwrap();
    // The second and the third wait for the ring that the first one brings about.
    assert_eq!(
        world.job().orders.iter().map(|order| order.epoch).collect::<Vec<_>>(),
        [Some(Epoch(2)), None, None]
    );
    // Both workers are restarted: nobody has the state.
    (0..2).for_each(|worker| world.hello(worker, 2, Vec::new()));
    assert_eq!(world.settled(), [Some(2), Some(1), Some(7)]);
    let (job, now) = (world.job().clone(), world.now);
    assert!(matches!(job.state, JobState::Queued | JobState::Preparing), "{}", job.reason);
    // Another ring is told all of it.
    world.pass(700, &[]);
    let assigned = world.told.iter().rev().find_map(|(_, down)| match down {
        Down::Assignment(given) => Some(given.clone()),
        _ => None,
    });
    let assigned = assigned.unwrap_or_else(|| panic!("no ring since {now:?}: {}", world.job().reason));
    assert_eq!(
        assigned.orders.iter().map(|order| order.settled).collect::<Vec<_>>(),
        [Some(2), Some(1), Some(7)]
    );
    assert_eq!(assigned.spec.total_steps(), 2);
}

#[test]
fn an_order_for_a_job_that_waits_holds_from_its_next_step() {
    let mut world = World::training(1, 1, 0);
    (1..=3).for_each(|step| world.step(0, 1, step, "a"));
    world.apply(Input::PauseJob(world.job));
    world.say(0, 1, Some(0), Phase::Stopped);
    assert_eq!(world.job().state, JobState::Paused);
    world.order(Order::LearningRate(0.25), 0).unwrap();
    world.order(Order::Stop, 6).unwrap();
    assert_eq!(world.settled(), [Some(3), Some(6)]);
    assert_eq!(world.job().total_steps(), 6);
}

#[test]
fn what_cannot_be_ordered_is_refused_and_changes_nothing() {
    let mut world = World::training(1, 1, 0);
    (1..=3).for_each(|step| world.step(0, 1, step, "a"));
    let said = |refused: Result<(), Refusal>| refused.unwrap_err().to_string();
    let over = said(world.order(Order::Snapshot, 3));
    assert_eq!(over, "got 3, but step 3 is done; allowed: 0, for as soon as it may be, or 4 to 9");
    assert!(said(world.order(Order::LearningRate(0.5), 9)).contains("or 4 to 8"));
    assert!(world.order(Order::Snapshot, 9).is_ok());
    (4..=9).for_each(|step| world.step(0, 1, step, "a"));
    let late = said(world.order(Order::Stop, 0));
    assert!(late.ends_with("allowed: no order any more, as the job is at its last step"), "{late}");
    world.apply(Input::CancelJob { job: world.job, reason: String::new() });
    assert!(matches!(world.order(Order::Snapshot, 0), Err(Refusal::AboutToEnd(_) | Refusal::NotActive(_))));
    let mut cluster = testing::cluster();
    let drawing = "kind = \"generate\"\n[model]\nbase = \"/m\"\n[generate]\nprompts = [\"a\"]\n";
    let spec = Arc::new(ringtune_shared::job::parse_job_toml(drawing).unwrap());
    let job = JobId::new();
    cluster.apply(Input::CreateJob(new_job(job, spec)), Time(1)).unwrap();
    let refused = cluster.apply(Input::OrderJob { job, order: Order::Snapshot, after_step: 0 }, Time(2));
    assert_eq!(refused.unwrap_err(), Refusal::TakesNoOrders(job));
}

#[test]
fn a_worker_that_knows_no_orders_gets_no_rank_of_a_job_that_has_some() {
    let mut world = World::training(1, 1, 0);
    let mut old = hello(7);
    old.dialect.features.retain(|feature| feature != "orders");
    world.workers.push(Sender { worker: old.worker, session: SessionId(7) });
    // It joins a ring of a job without orders, which then takes none.
    let spec = inversion("max_train_steps = 9\n[cluster]\nworld_size = 2\nmin_world_size = 1\n");
    let mut without = World::training_job(spec, 1, 0);
    without.workers.push(Sender { worker: old.worker, session: SessionId(7) });
    without.apply(Input::Hello { session: SessionId(7), hello: old });
    assert!(matches!(without.order(Order::Snapshot, 0), Err(Refusal::CannotOrder(_))));
    // It is not asked to join one that has.
    world.order(Order::Snapshot, 0).unwrap();
    assert!(world.job().ring.as_ref().unwrap().joining.is_empty());
}

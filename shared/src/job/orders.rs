//! `[orders]`: what changes while a job learns. A job file may say it from the start; a user may order it while the job runs.
//!
//! Invariant: an order that decides bits ends up in the job itself, with the step after which it holds. Whoever runs that job
//! from its start, without a stop, comes to the same bits.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    JobSpec, SpecError, Violation,
    check::{Check, limits},
    section::section,
    text::shortened,
};
use crate::names;

/// Orders of a job.
pub const MOST_ORDERS: usize = 1000;
/// Characters of a prompt.
const LONGEST_PROMPT: usize = 1000;
/// See [`OrdersSpec::learning_rate`].
const RATES: &str = "orders.learning_rate";

section! {
    /// What changes while a job learns.
    #[derive(Default)]
    OrdersSpec from draft: OrdersDraft, orders_keys {
        /// The last step, where it is an earlier one than the job's own; the schedule stays that of the whole job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_after: Option<u64> = integer.count_if_given(1..=limits::STEPS),
        /// Learning rates, each by the step after which it takes the place of the job's own: `{ 120 = 5e-4 }` holds from step 121 on.
        /// Warm-up and decay go on as they were. At most 1000.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        learning_rate: BTreeMap<String, f64> = numbers.rates_by_step(),
    }
}

impl Check {
    fn rates_by_step(&mut self, field: &str, given: Option<BTreeMap<String, f64>>) -> BTreeMap<String, f64> {
        let mut rates = given.unwrap_or_default();
        if rates.len() > MOST_ORDERS {
            self.refuse(field, format!("got {}; allowed: at most {MOST_ORDERS}", rates.len()));
            rates.clear();
        }
        for (step, rate) in &rates {
            let field = format!("{field}.{}", shortened(step));
            if step_of(step).is_none() {
                let most = limits::STEPS;
                self.refuse(&field, format!("allowed: the number of a step, 0 to {most}, as in 120 = 5e-4"));
            }
            self.above_zero(&field, Some(*rate), 1.0, limits::LEARNING_RATE);
        }
        rates
    }

    /// Refuses orders for a job that takes no steps.
    pub(super) fn orders(&mut self, spec: &JobSpec) {
        let orders = &spec.common.orders;
        if spec.steps().is_some() || *orders == OrdersSpec::default() {
            return;
        }
        let field = if orders.stop_after.is_some() { "orders.stop_after" } else { RATES };
        self.refuse(field, format!("a job of kind {:?} takes no steps; leave it out", spec.kind().as_str()));
    }
}

/// The number of a step as a key has it.
fn step_of(key: &str) -> Option<u64> {
    let most = u64::try_from(limits::STEPS).unwrap_or_default();
    key.parse().ok().filter(|step: &u64| *step <= most && step.to_string() == key)
}

impl OrdersSpec {
    /// The learning rates by the steps after which they hold, in the order of these.
    pub fn rates(&self) -> impl Iterator<Item = (u64, f64)> {
        let rates = self.learning_rate.iter().filter_map(|(step, rate)| Some((step_of(step)?, *rate)));
        rates.collect::<BTreeMap<u64, f64>>().into_iter()
    }

    /// What of it has decided something after `step`.
    pub fn up_to(&self, step: u64) -> Self {
        let decided = self.learning_rate.iter().filter(|(after, _)| step_of(after) < Some(step));
        let learning_rate = decided.map(|(after, rate)| (after.clone(), *rate)).collect();
        Self { stop_after: self.stop_after.filter(|last| *last <= step), learning_rate }
    }
}

/// What a user orders of a job that learns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Another learning rate, in the place of the job's own: see [`OrdersSpec::learning_rate`].
    LearningRate(f64),
    /// No step more.
    Stop,
    /// The state, and what is learned, are kept as files.
    Snapshot,
    /// Pictures of this prompt, or a text that begins with it.
    Sample(String),
}

impl Order {
    /// Checks what a user gave.
    ///
    /// # Errors
    /// The field, what was given and what is allowed.
    pub fn check(&self) -> Result<(), SpecError> {
        let violation = match self {
            Self::LearningRate(rate) => {
                let mut check = Check::default();
                check.above_zero("order.learning_rate", Some(*rate), 1.0, limits::LEARNING_RATE);
                return check.end(());
            }
            Self::Sample(prompt) if prompt.trim().is_empty() => {
                Some(Violation::new("order.prompt", "missing; allowed: what to make, in words"))
            }
            Self::Sample(prompt) => names::check(prompt, LONGEST_PROMPT)
                .err()
                .map(|problem| Violation::new("order.prompt", problem)),
            Self::Stop | Self::Snapshot => None,
        };
        violation.map_or(Ok(()), |violation| Err(SpecError { violations: vec![violation] }))
    }

    /// "learning rate 0.0005", for people.
    pub fn describe(&self) -> String {
        match self {
            Self::LearningRate(rate) => format!("learning rate {rate:e}"),
            Self::Stop => "stop".to_owned(),
            Self::Snapshot => "snapshot".to_owned(),
            Self::Sample(prompt) => format!("a sample of {:?}", shortened(prompt)),
        }
    }

    /// Whether it decides bits of what is learned.
    pub fn decides(&self) -> bool {
        matches!(self, Self::LearningRate(_) | Self::Stop)
    }
}

/// An order, and when it is carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveOrder {
    /// Counts the orders of its job, from 1.
    pub number: u64,
    /// The order.
    pub order: Order,
    /// Not before this step is done; 0: as soon as it may be.
    pub after_step: u64,
    /// The step after which it is carried out, once that is known: the same on every rank, whatever becomes of the ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<u64>,
}

impl LiveOrder {
    /// All ranks have heard of it, and stand after `step`. What is settled stays as it is.
    pub fn settle(&mut self, step: u64) {
        // Whether a step is the last one is known before it is taken.
        let first = if self.order == Order::Stop { step.saturating_add(1) } else { step };
        self.settled.get_or_insert(self.after_step.max(first));
    }

    /// Takes over what a rank is told with a ring. What it has settled stays as it is.
    pub fn hear(known: &mut Vec<Self>, told: &[Self]) {
        let merged = told.iter().map(|told| {
            let own = known.iter().find(|own| own.number == told.number).and_then(|own| own.settled);
            Self { settled: told.settled.or(own), ..told.clone() }
        });
        *known = merged.collect();
    }

    /// Settles the orders of a ring that all ranks enter after `step`. `known`: after which step each rank has settled each of them
    /// in a ring before, as far as it did.
    pub fn agree(orders: &mut [Self], step: u64, known: &[Vec<Option<u64>>]) {
        for (index, order) in orders.iter_mut().enumerate() {
            let settled = known.iter().filter_map(|of_rank| of_rank.get(index).copied().flatten()).min();
            order.settled = order.settled.or(settled);
            order.settle(step);
        }
    }
}

impl JobSpec {
    /// The job with the orders that are settled and decide bits. Taking them in again changes nothing.
    pub fn take_orders<'a>(&mut self, orders: impl IntoIterator<Item = &'a LiveOrder>) {
        for LiveOrder { order, settled, .. } in orders {
            let (spec, Some(after)) = (&mut self.common.orders, *settled) else { continue };
            match order {
                Order::LearningRate(rate) => drop(spec.learning_rate.insert(after.to_string(), *rate)),
                Order::Stop => spec.stop_after = Some(after),
                Order::Snapshot | Order::Sample(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{parse_job_toml, tests::job_with};

    fn live(number: u64, order: Order, after_step: u64) -> LiveOrder {
        LiveOrder { number, order, after_step, settled: None }
    }

    #[test]
    fn an_order_is_settled_once_and_ends_up_in_the_job() {
        let mut orders = [
            live(1, Order::LearningRate(5e-4), 0),
            live(2, Order::Stop, 0),
            live(3, Order::Snapshot, 9),
            live(4, Order::Stop, 200),
        ];
        let mut spec = job_with("max_train_steps = 300", "");
        spec.take_orders(&orders);
        assert_eq!(spec.common.orders, OrdersSpec::default());
        orders.iter_mut().for_each(|order| order.settle(7));
        orders.iter_mut().for_each(|order| order.settle(8));
        assert_eq!(orders.each_ref().map(|order| order.settled), [Some(7), Some(8), Some(9), Some(200)]);
        for _ in 0..2 {
            spec.take_orders(&orders);
            let OrdersSpec { learning_rate, stop_after } = &spec.common.orders;
            assert_eq!((learning_rate.get("7"), learning_rate.len()), (Some(&5e-4), 1));
            // The newest one holds.
            assert_eq!(*stop_after, Some(200));
        }
        assert_eq!(spec.total_steps(), 200);
        // The schedule is the whole job's.
        assert_eq!(spec.textual_inversion().unwrap().train.max_train_steps, 300);
        assert!(spec.success(200).contains("200 of 300 steps done"), "{}", spec.success(200));
    }

    #[test]
    fn ranks_that_know_more_and_less_come_to_the_same() {
        let order = |number, settled| LiveOrder { settled, ..live(number, Order::Snapshot, 0) };
        let known = vec![vec![None, Some(9), None], vec![Some(7), Some(9), None]];
        for own in [[None, Some(9), None], [Some(7), Some(9), None]] {
            let mut orders = [order(1, own[0]), order(2, own[1]), order(3, own[2])];
            LiveOrder::agree(&mut orders, 12, &known);
            assert_eq!(orders.map(|order| order.settled), [Some(7), Some(9), Some(12)]);
        }
        let mut known = vec![order(1, Some(5)), order(2, None)];
        LiveOrder::hear(&mut known, &[order(1, None), order(2, Some(6)), order(3, None)]);
        assert_eq!(known, [order(1, Some(5)), order(2, Some(6)), order(3, None)]);
    }

    #[test]
    fn a_job_file_has_them_too_and_is_read_back() {
        let spec = job_with("", "").to_toml().unwrap();
        assert!(!spec.contains("orders"), "{spec}");
        let given =
            format!("{spec}\n[orders]\nlearning_rate = {{ 9 = 1e-3, 120 = 5e-4 }}\nstop_after = 200\n");
        let spec = parse_job_toml(&given).unwrap();
        assert_eq!(spec.common.orders.rates().collect::<Vec<_>>(), [(9, 1e-3), (120, 5e-4)]);
        assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).unwrap(), spec);
        assert_eq!(spec.common.orders.up_to(9), OrdersSpec::default());
        assert_eq!(spec.common.orders.up_to(10).rates().collect::<Vec<_>>(), [(9, 1e-3)]);
        assert_eq!(spec.common.orders.up_to(200), spec.common.orders);
    }

    #[test]
    fn what_cannot_be_is_named() {
        let job = job_with("", "").to_toml().unwrap();
        for (given, said) in [
            ("learning_rate = { x = 1.0 }", "orders.learning_rate.x: allowed: the number of a step"),
            ("learning_rate = { 007 = 1.0 }", "orders.learning_rate.007: allowed: the number of a step"),
            ("learning_rate = { 7 = nan }", "orders.learning_rate.7: got NaN"),
            ("learning_rate = { 7 = 0.0 }", "orders.learning_rate.7: got 0"),
            ("stop_after = 0", "orders.stop_after: got 0; allowed: 1 to 10000000"),
        ] {
            let error = parse_job_toml(&format!("{job}\n[orders]\n{given}\n")).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let drawing = "kind = \"generate\"\n[model]\nbase = \"/m\"\n[generate]\nprompts = [\"a\"]\n[orders]\nstop_after = 3\n";
        let error = parse_job_toml(drawing).unwrap_err().to_string();
        assert!(error.contains("orders.stop_after: a job of kind \"generate\" takes no steps"), "{error}");
        for (order, field) in [
            (Order::LearningRate(f64::INFINITY), "order.learning_rate"),
            (Order::LearningRate(-1.0), "order.learning_rate"),
            (Order::Sample(" ".to_owned()), "order.prompt"),
            (Order::Sample("x".repeat(1001)), "order.prompt"),
        ] {
            assert_eq!(order.check().unwrap_err().violations[0].field, field, "{order:?}");
        }
        assert!(Order::Sample("a <cat> on a mat".to_owned()).check().is_ok());
    }
}

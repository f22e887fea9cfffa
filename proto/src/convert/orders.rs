//! Orders of jobs that learn.

use ringtune_shared::job::{LiveOrder, Order};

use super::{FieldError, unsigned};
use crate::v1::{self, order::What};

/// An order and the step that it waits for, as a user sent it. Whether the order itself can be is not checked.
///
/// # Errors
/// The field that is wrong or missing.
pub fn order_from_wire(wire: Option<v1::Order>) -> Result<(Order, u64), FieldError> {
    const MISSING: &str = "missing; allowed: learning_rate, stop, snapshot or prompt";
    let missing = || FieldError::new("order", MISSING);
    let wire = wire.ok_or_else(missing)?;
    let order = match wire.what.ok_or_else(missing)? {
        What::LearningRate(rate) => Order::LearningRate(rate),
        What::Stop(true) => Order::Stop,
        What::Snapshot(true) => Order::Snapshot,
        What::Prompt(prompt) => Order::Sample(prompt),
        What::Stop(false) | What::Snapshot(false) => return Err(missing()),
    };
    Ok((order, unsigned("order.after_step", wire.after_step)?))
}

/// An order as a message.
pub fn live_order_to_wire(live: &LiveOrder) -> v1::LiveOrder {
    // Steps are at most 10,000,000.
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let what = match &live.order {
        Order::LearningRate(rate) => What::LearningRate(*rate),
        Order::Stop => What::Stop(true),
        Order::Snapshot => What::Snapshot(true),
        Order::Sample(prompt) => What::Prompt(prompt.clone()),
    };
    v1::LiveOrder {
        number: signed(live.number),
        order: Some(v1::Order { after_step: signed(live.after_step), what: Some(what) }),
        settled_step: live.settled.map(signed),
    }
}

/// An order of a message.
///
/// # Errors
/// The field that is wrong.
pub fn live_order_from_wire(wire: v1::LiveOrder) -> Result<LiveOrder, FieldError> {
    let (order, after_step) = order_from_wire(wire.order)?;
    Ok(LiveOrder {
        number: unsigned("number", wire.number)?,
        order,
        after_step,
        settled: wire.settled_step.map(|step| unsigned("settled_step", step)).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_goes_over_the_wire_unchanged() {
        let orders = [
            Order::LearningRate(5e-4),
            Order::Stop,
            Order::Snapshot,
            Order::Sample("a <cat> on a mat".to_owned()),
        ];
        for (number, order) in (1..).zip(orders) {
            let settled = (number % 2 == 0).then_some(120);
            let live = LiveOrder { number, order, after_step: 100 * number, settled };
            assert_eq!(live_order_from_wire(live_order_to_wire(&live)), Ok(live));
        }
        let field = |wire| order_from_wire(wire).unwrap_err().field;
        assert_eq!(field(None), "order");
        assert_eq!(field(Some(v1::Order::default())), "order");
        assert_eq!(field(Some(v1::Order { after_step: 0, what: Some(What::Stop(false)) })), "order");
        assert_eq!(
            field(Some(v1::Order { after_step: -1, what: Some(What::Stop(true)) })),
            "order.after_step"
        );
    }
}

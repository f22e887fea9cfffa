//! Summarises the measured steps.

use serde::Serialize;

use super::{
    account::{Account, Tally},
    class::Class,
};
use crate::engine::MachineRates;

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Step {
    /// From 1, with those of the warm-up.
    pub(super) step: usize,
    /// It is not counted.
    pub(super) warm_up: bool,
    /// Number of concepts.
    pub(super) concepts: usize,
    pub(super) forward_seconds: f64,
    pub(super) backward_seconds: f64,
    pub(super) step_seconds: f64,
    pub(super) loss: f32,
    pub(super) page_faults: u64,
    pub(super) involuntary_switches: u64,
}

/// All measurements.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) steps: Vec<Step>,
    /// One for each turn.
    pub(super) rates: Vec<MachineRates>,
    /// FLOP of a step.
    pub(super) flop: f64,
    pub(super) peak_private_bytes: u64,
    /// Of the timed steps, where they were recorded.
    pub(super) account: Option<Account>,
}

/// The summary line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    /// Steps that count, of one concept.
    pub(super) steps: usize,
    pub(super) median_seconds: f64,
    pub(super) min_seconds: f64,
    /// FLOP of a step's convolutions, linear layers and attention.
    pub(super) flop: f64,
    /// The best of all turns.
    pub(super) convolution_flops_per_second: f64,
    pub(super) product_flops_per_second: f64,
    pub(super) copy_bytes_per_second: f64,
    /// The time for the FLOP at the better rate, over the median step and over the fastest.
    pub(super) of_roofline: f64,
    pub(super) of_roofline_by_minimum: f64,
    /// Of a median step.
    pub(super) page_faults: f64,
    pub(super) involuntary_switches: f64,
    pub(super) peak_private_bytes: u64,
    /// The median step of several concepts over that of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) several_concepts_over_one: Option<f64>,
    /// Time by class, if steps were recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) classes: Vec<ClassRow>,
}

/// A class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ClassRow {
    pub(super) class: &'static str,
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// Its shapes, those that take longest first.
    pub(super) shapes: Vec<ShapeRow>,
}

/// A shape of a class; of the rest, an operator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ShapeRow {
    pub(super) shape: String,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

/// Of an average step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Figures {
    pub(super) calls: f64,
    pub(super) seconds: f64,
    /// Of the step.
    pub(super) share: f64,
    pub(super) flop: f64,
    pub(super) bytes: f64,
}

impl Figures {
    fn of(tally: Tally, account: &Account) -> Self {
        let steps = account.steps.max(1) as f64;
        Self {
            calls: tally.calls as f64 / steps,
            seconds: tally.nanoseconds as f64 / 1e9 / steps,
            share: tally.nanoseconds as f64 / account.nanoseconds.max(1) as f64,
            flop: tally.flop / steps,
            bytes: tally.bytes / steps,
        }
    }
}

/// The middle one, or the mean of the two in the middle; 0 of nothing.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    match (values.get(upper), values.len() % 2) {
        (None, _) => 0.0,
        (Some(middle), 1) => *middle,
        (Some(middle), _) => (values[upper - 1] + middle) / 2.0,
    }
}

impl Summary {
    /// Of what was measured.
    pub(super) fn of(measured: &Measured) -> Self {
        let Measured { steps, rates, flop, peak_private_bytes, account } = measured;
        let timed = |one: bool| steps.iter().filter(move |step| !step.warm_up && (step.concepts == 1) == one);
        let median_seconds = median(timed(true).map(|step| step.step_seconds));
        let min_seconds = timed(true).map(|step| step.step_seconds).fold(f64::INFINITY, f64::min);
        let best = |rate: fn(&MachineRates) -> f64| rates.iter().map(rate).fold(0.0, f64::max);
        let convolution = best(|rates| rates.convolution);
        let product = best(|rates| rates.product);
        let shortest = flop / convolution.max(product);
        let several = median(timed(false).map(|step| step.step_seconds));
        Self {
            steps: timed(true).count(),
            median_seconds,
            min_seconds,
            flop: *flop,
            convolution_flops_per_second: convolution,
            product_flops_per_second: product,
            copy_bytes_per_second: best(|rates| rates.copy),
            of_roofline: shortest / median_seconds,
            of_roofline_by_minimum: shortest / min_seconds,
            page_faults: median(timed(true).map(|step| step.page_faults as f64)),
            involuntary_switches: median(timed(true).map(|step| step.involuntary_switches as f64)),
            peak_private_bytes: *peak_private_bytes,
            several_concepts_over_one: (several > 0.0).then(|| several / median_seconds),
            classes: account.as_ref().map(rows).unwrap_or_default(),
        }
    }
}

/// The classes that there are, in their order.
fn rows(account: &Account) -> Vec<ClassRow> {
    let there = |class: &Class| account.shapes(*class).next().is_some();
    let row = |class: Class| {
        let mut shapes: Vec<ShapeRow> = account
            .shapes(class)
            .filter(|(shape, _)| !shape.is_empty())
            .map(|(shape, tally)| ShapeRow { shape: shape.to_owned(), figures: Figures::of(tally, account) })
            .collect();
        shapes.sort_by(|one, other| other.figures.seconds.total_cmp(&one.figures.seconds));
        ClassRow { class: class.name(), figures: Figures::of(account.total(class), account), shapes }
    };
    Class::ALL.into_iter().filter(there).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: usize, concepts: usize, seconds: f64) -> Step {
        Step {
            step,
            warm_up: step == 1,
            concepts,
            forward_seconds: 0.0,
            backward_seconds: 0.0,
            step_seconds: seconds,
            loss: 0.0,
            page_faults: 10 * step as u64,
            involuntary_switches: 0,
        }
    }

    #[test]
    fn the_middle_is_between_two_where_there_are_two() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([]), 0.0);
    }

    #[test]
    fn the_warm_up_counts_nowhere_and_several_concepts_only_beside_one() {
        let steps = vec![
            step(1, 1, 90.0),
            step(1, 8, 90.0),
            step(2, 1, 4.0),
            step(2, 8, 5.0),
            step(3, 1, 2.0),
            step(3, 8, 4.0),
        ];
        let rates = |convolution, product| MachineRates { convolution, product, copy: 1.0 };
        let measured = Measured {
            steps,
            rates: vec![rates(2.0, 5.0), rates(3.0, 4.0)],
            flop: 6.0,
            peak_private_bytes: 7,
            account: None,
        };
        let summary = Summary::of(&measured);
        assert_eq!((summary.steps, summary.median_seconds, summary.min_seconds), (2, 3.0, 2.0));
        assert_eq!((summary.convolution_flops_per_second, summary.product_flops_per_second), (3.0, 5.0));
        // 6 FLOP at 5 a second, over 3 and over 2 seconds.
        assert!((summary.of_roofline - 0.4).abs() < 1e-12);
        assert!((summary.of_roofline_by_minimum - 0.6).abs() < 1e-12);
        assert_eq!((summary.page_faults, summary.several_concepts_over_one), (25.0, Some(1.5)));
        assert!(summary.classes.is_empty());
    }

    #[test]
    fn rows_are_of_a_step_and_in_order() {
        let tally = |nanoseconds| Tally { calls: 4, nanoseconds, flop: 8.0, bytes: 2.0 };
        let mut account = Account { steps: 2, nanoseconds: 400, ..Account::default() };
        account.tallies.insert((Class::Rest, "aten::add".to_owned()), tally(100));
        account.tallies.insert((Class::Linear, "a".to_owned()), tally(100));
        account.tallies.insert((Class::Linear, "b".to_owned()), tally(200));
        let rows = rows(&account);
        assert_eq!(rows.iter().map(|row| row.class).collect::<Vec<_>>(), ["linears", "rest"]);
        let linears = &rows[0];
        let whole = Figures { calls: 4.0, seconds: 150e-9, share: 0.75, flop: 8.0, bytes: 2.0 };
        assert_eq!(linears.figures, whole);
        assert_eq!(linears.shapes.iter().map(|row| row.shape.as_str()).collect::<Vec<_>>(), ["b", "a"]);
    }
}

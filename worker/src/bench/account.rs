//! Accounts for the time of recorded steps: each nanosecond of a step belongs to one class.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::class::{Class, Work, classify};
use crate::engine::{Operator, OperatorScope, Recording, STEP, TEXT_ENCODER};

/// Totals of one class and shape over all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Calls.
    pub calls: u64,
    /// Time, without what belongs to others.
    pub nanoseconds: u64,
    /// Multiplications and additions.
    pub flop: f64,
    /// Bytes that are read and written at least.
    pub bytes: f64,
}

impl Tally {
    /// Adds another one.
    pub fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.nanoseconds += other.nanoseconds;
        self.flop += other.flop;
        self.bytes += other.bytes;
    }
}

/// The time of some steps by class and shape. The shape of the rest is the operator's name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    /// Steps.
    pub steps: u64,
    /// Their time together: that of all tallies.
    pub nanoseconds: u64,
    /// Class and shape.
    pub tallies: BTreeMap<(Class, String), Tally>,
}

impl Account {
    /// Of the steps in a recording.
    pub fn of(recording: &Recording) -> Self {
        let Walk { steps, parts, .. } = walk(recording);
        let mut account =
            Self { steps: steps.len() as u64, nanoseconds: steps.iter().sum(), tallies: BTreeMap::new() };
        for (class, shape, tally) in parts {
            account.tallies.entry((class, shape)).or_default().add(tally);
        }
        account
    }

    /// Puts another one's steps to these.
    pub fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.nanoseconds += other.nanoseconds;
        for (key, tally) in other.tallies {
            self.tallies.entry(key).or_default().add(tally);
        }
    }

    /// Total of a class over all shapes.
    pub fn total(&self, class: Class) -> Tally {
        let mut total = Tally::default();
        self.shapes(class).for_each(|(_, tally)| total.add(tally));
        total
    }

    /// The shapes of a class.
    pub fn shapes(&self, class: Class) -> impl Iterator<Item = (&str, Tally)> {
        self.tallies
            .iter()
            .filter(move |((of, _), _)| *of == class)
            .map(|((_, shape), tally)| (shape.as_str(), *tally))
    }

    /// FLOP of a step that are its work.
    pub fn work_of_a_step(&self) -> f64 {
        let all: f64 =
            Class::ALL.iter().filter(|class| class.is_work()).map(|class| self.total(*class).flop).sum();
        all / self.steps.max(1) as f64
    }
}

/// The class of each operator within a step, by its place in the recording: its own, or that of what it is within.
pub(super) fn classes(recording: &Recording) -> BTreeMap<usize, Class> {
    walk(recording).classes.into_iter().collect()
}

/// State of a walk through a recording.
#[derive(Default)]
struct Walk {
    /// The nanoseconds of each step.
    steps: Vec<u64>,
    parts: Vec<(Class, String, Tally)>,
    classes: Vec<(usize, Class)>,
}

/// How an operator that contains others counts.
#[derive(Clone, Copy)]
enum Kind {
    /// A step: its own time is that between operators.
    Step,
    /// Of no class: its own time is the rest's, what is within counts by itself.
    Open,
    /// Its time has been counted, the work of what is within is still to be: under this class and shape.
    Timed(Class, &'static str),
    /// It has been counted, with all that is within.
    Counted(Class),
}

/// An operator that has begun.
struct Frame<'a> {
    place: usize,
    operator: &'a Operator,
    kind: Kind,
    /// Time of the operators directly within.
    within: u64,
}

/// Through all operators within steps, on the steps' threads.
fn walk(recording: &Recording) -> Walk {
    let operators = &recording.operators;
    let mut walk = Walk::default();
    let threads: BTreeSet<u64> =
        operators.iter().filter(|one| one.name == STEP).map(|one| one.thread).collect();
    for thread in threads {
        let text = numbers_of_text(operators, thread);
        let mut places: Vec<usize> =
            (0..operators.len()).filter(|place| operators[*place].thread == thread).collect();
        // A nested operator begins later, or ends earlier.
        places.sort_by_key(|place| (operators[*place].start, Reverse(operators[*place].end)));
        let mut frames: Vec<Frame<'_>> = Vec::new();
        for place in places {
            let operator = &operators[place];
            while let Some(frame) = frames.pop_if(|frame| frame.operator.end <= operator.start) {
                walk.leave(&frame);
            }
            let above = frames.last().map(|frame| frame.kind);
            let Some(kind) = walk.enter(place, operator, above, &text) else { continue };
            if let Some(above) = frames.last_mut() {
                above.within += length(operator);
            }
            frames.push(Frame { place, operator, kind, within: 0 });
        }
        while let Some(frame) = frames.pop() {
            walk.leave(&frame);
        }
    }
    walk
}

impl Walk {
    /// An operator begins within `above`. None: it is outside of all steps.
    fn enter(
        &mut self,
        place: usize,
        operator: &Operator,
        above: Option<Kind>,
        text: &[Range<u64>],
    ) -> Option<Kind> {
        let work = classify(operator);
        let kind = match (above, work) {
            (None, _) if operator.name == STEP => {
                self.steps.push(length(operator));
                return Some(Kind::Step);
            }
            (None, _) => return None,
            (Some(Kind::Step | Kind::Open), work) => {
                let time = Tally { calls: 1, nanoseconds: length(operator), ..Tally::default() };
                if let Some(pass) = pass_of_text(operator, text) {
                    self.parts.push((Class::TextEncoder, pass.to_owned(), time));
                    Kind::Timed(Class::TextEncoder, pass)
                } else if let Some(Work { class, shape, flop, bytes }) = work {
                    self.parts.push((class, shape, Tally { flop, bytes, ..time }));
                    Kind::Counted(class)
                } else {
                    return Some(Kind::Open);
                }
            }
            (Some(Kind::Timed(class, shape)), Some(Work { flop, bytes, .. })) => {
                self.parts.push((class, shape.to_owned(), Tally { flop, bytes, ..Tally::default() }));
                Kind::Counted(class)
            }
            (Some(kind @ (Kind::Timed(..) | Kind::Counted(_))), _) => kind,
        };
        if let Kind::Timed(class, _) | Kind::Counted(class) = kind {
            self.classes.push((place, class));
        }
        Some(kind)
    }

    /// An operator has ended.
    fn leave(&mut self, frame: &Frame<'_>) {
        let (class, shape) = match frame.kind {
            Kind::Step => (Class::Between, String::new()),
            Kind::Open => (Class::Rest, frame.operator.name.clone()),
            Kind::Timed(..) | Kind::Counted(_) => return,
        };
        let own = length(frame.operator).saturating_sub(frame.within);
        self.parts.push((class, shape, Tally { calls: 1, nanoseconds: own, ..Tally::default() }));
        self.classes.push((frame.place, class));
    }
}

fn length(operator: &Operator) -> u64 {
    operator.end.saturating_sub(operator.start)
}

/// The numbers of the operators of the text encoder's forward passes.
fn numbers_of_text(operators: &[Operator], thread: u64) -> Vec<Range<u64>> {
    let stretches = operators.iter().filter(|one| one.thread == thread && one.name == TEXT_ENCODER);
    stretches.map(|stretch| stretch.sequence.0..stretch.sequence.1).collect()
}

/// The pass of the text encoder that an operator belongs to.
fn pass_of_text(operator: &Operator, text: &[Range<u64>]) -> Option<&'static str> {
    let number = operator.sequence.0;
    let is_gradient =
        || operator.scope == OperatorScope::Backward && text.iter().any(|numbers| numbers.contains(&number));
    if operator.name == TEXT_ENCODER { Some("forward") } else { is_gradient().then_some("backward") }
}

#[cfg(test)]
#[path = "account_tests.rs"]
mod tests;

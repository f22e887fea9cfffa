use super::*;
use crate::engine::TensorShape;

/// On thread 1, with a size for its input if it has one.
fn operator(name: &str, scope: OperatorScope, time: Range<u64>, numbers: (u64, u64)) -> Operator {
    Operator {
        name: name.to_owned(),
        scope,
        thread: 1,
        start: time.start,
        end: time.end,
        sequence: numbers,
        inputs: Vec::new(),
        outputs: Vec::new(),
    }
}

fn plain(name: &str, time: Range<u64>) -> Operator {
    operator(name, OperatorScope::Operator, time, (0, 0))
}

fn product(time: Range<u64>) -> Operator {
    let shape = |sizes: &[i64]| Some(TensorShape { element_bytes: 4, sizes: sizes.to_vec() });
    Operator { inputs: vec![shape(&[4, 3]), shape(&[3, 2])], ..plain("aten::mm", time) }
}

/// A step of 100 ns: text encoder forward 0-20, a linear layer 20-50 with a copy in it, an addition 50-60 with a copy of 4 ns in it,
/// a gradient of the UNet 60-75, one of the text encoder 80-95.
fn step() -> Recording {
    let mut operators = vec![
        operator(STEP, OperatorScope::Stretch, 0..100, (10, 40)),
        operator(TEXT_ENCODER, OperatorScope::Stretch, 0..20, (10, 20)),
        plain("aten::linear", 2..12),
        product(3..10),
        plain("aten::copy_", 13..14),
        product(20..50),
        plain("aten::copy_", 21..30),
        plain("aten::add", 50..60),
        plain("aten::copy_", 52..56),
        operator("MmBackward0", OperatorScope::Backward, 60..75, (25, 25)),
        product(61..74),
        operator("MmBackward0", OperatorScope::Backward, 80..95, (15, 15)),
        product(81..91),
        // Another thread's, and what comes before the step.
        Operator { thread: 2, ..product(30..40) },
    ];
    // In the order in which they end, as they are recorded.
    operators.sort_by_key(|operator| operator.end);
    Recording { operators, lost: 0 }
}

#[test]
fn each_nanosecond_is_in_one_class_and_each_product_counted_once() {
    let account = Account::of(&step());
    assert_eq!((account.steps, account.nanoseconds), (1, 100));
    let times = |class| {
        let total = account.total(class);
        (total.nanoseconds, total.calls, total.flop)
    };
    let flop = 2.0 * 4.0 * 3.0 * 2.0;
    // "aten::linear" has no tensors here, so it is of no class, and what it calls counts.
    assert_eq!(times(Class::TextEncoder), (35, 2, 2.0 * flop));
    assert_eq!(times(Class::Linear), (43, 2, 2.0 * flop));
    assert_eq!(times(Class::Layout), (4, 1, 0.0));
    // The addition without the copy, and the gradient's own two nanoseconds.
    assert_eq!(times(Class::Rest), (8, 2, 0.0));
    assert_eq!(times(Class::Between), (10, 1, 0.0));
    let all: u64 = Class::ALL.iter().map(|class| account.total(*class).nanoseconds).sum();
    assert_eq!(all, account.nanoseconds);
    let shapes: Vec<_> =
        account.shapes(Class::TextEncoder).map(|(shape, tally)| (shape, tally.flop)).collect();
    assert_eq!(shapes, [("backward", flop), ("forward", flop)]);
    assert_eq!(account.work_of_a_step(), 2.0 * flop);
}

#[test]
fn accounts_add_up_and_a_trace_knows_each_operators_class() {
    let recording = step();
    let mut two = Account::of(&recording);
    two.add(Account::of(&recording));
    assert_eq!((two.steps, two.nanoseconds, two.total(Class::Linear).calls), (2, 200, 4));
    assert_eq!(two.work_of_a_step(), Account::of(&recording).work_of_a_step());
    let classes = classes(&recording);
    let of = |start: u64, end: u64| {
        let place = recording.operators.iter().position(|one| (one.start, one.end) == (start, end));
        place.and_then(|place| classes.get(&place)).copied()
    };
    assert_eq!(of(3, 10), Some(Class::TextEncoder));
    assert_eq!(of(21, 30), Some(Class::Linear));
    assert_eq!(of(50, 60), Some(Class::Rest));
    assert_eq!(of(0, 100), Some(Class::Between));
    // Of another thread.
    assert_eq!(of(30, 40), None);
}

#[test]
fn nothing_is_counted_outside_of_a_step() {
    let mut recording = step();
    recording.operators.retain(|operator| operator.name != STEP);
    assert_eq!(Account::of(&recording), Account::default());
    assert_eq!(Account::default().work_of_a_step(), 0.0);
}

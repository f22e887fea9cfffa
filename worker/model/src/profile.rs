//! Recording what operators take (`csrc/profile.cpp`), as plain data.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;

use ringtune_engine::{Operator, OperatorScope, Recording, TensorShape};

use crate::error::{Error, Result};
use crate::native;

/// [`ringtune_engine::STEP`], as the boundary takes it.
pub(crate) const STEP: &CStr = c"ringtune::step";
/// [`ringtune_engine::TEXT_ENCODER`], as the boundary takes it.
pub(crate) const TEXT_ENCODER: &CStr = c"ringtune::text_encoder";

/// Records all operators from here on, on all threads. Fails where a recording is on already.
pub fn start() -> Result<()> {
    native::profile_start()
}

/// Ends the recording, and says what it holds. Fails where none is on.
pub fn stop() -> Result<Recording> {
    let text = native::profile_stop()?;
    parse(&text)
        .ok_or_else(|| Error::argument("the recording", "unreadable", "the lines of csrc/profile.cpp"))
}

/// A stretch in the recording, until it is dropped; nothing where none is on. It ends on the thread on which it began.
#[derive(Debug)]
pub(crate) struct Stretch {
    native: *mut c_void,
    same_thread: PhantomData<*const ()>,
}

impl Stretch {
    pub(crate) fn begin(name: &'static CStr) -> Self {
        Stretch { native: native::scope_begin(name), same_thread: PhantomData }
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        native::scope_end(self.native);
    }
}

/// None: malformed.
fn parse(text: &str) -> Option<Recording> {
    let mut recording = Recording::default();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["lost", count] => recording.lost = count.parse().ok()?,
            [scope, thread, start, end, first, last, name, inputs, outputs] => {
                recording.operators.push(Operator {
                    name: name.to_owned(),
                    scope: scope_of(scope)?,
                    thread: thread.parse().ok()?,
                    start: start.parse().ok()?,
                    end: end.parse().ok()?,
                    // A missing number is written as -1.
                    sequence: (number_of(first)?, number_of(last)?),
                    inputs: shapes(inputs)?,
                    outputs: shapes(outputs)?,
                });
            }
            _ => return None,
        }
    }
    Some(recording)
}

fn number_of(text: &str) -> Option<u64> {
    Some(u64::try_from(text.parse::<i64>().ok()?).unwrap_or(u64::MAX))
}

/// The scope with this number in ATen/record_function.h.
fn scope_of(text: &str) -> Option<OperatorScope> {
    match text {
        "0" => Some(OperatorScope::Operator),
        "1" => Some(OperatorScope::Backward),
        "7" => Some(OperatorScope::Stretch),
        _ => None,
    }
}

fn shapes(text: &str) -> Option<Vec<Option<TensorShape>>> {
    text.split_ascii_whitespace().map(shape).collect()
}

/// "2:320x64" or "-"; a number alone has no dimensions.
fn shape(text: &str) -> Option<Option<TensorShape>> {
    if text == "-" {
        return Some(None);
    }
    let (bytes, sizes) = text.split_once(':')?;
    let sizes: Option<Vec<i64>> =
        sizes.split('x').filter(|size| !size.is_empty()).map(|size| size.parse().ok()).collect();
    Some(Some(TensorShape { element_bytes: bytes.parse().ok()?, sizes: sizes? }))
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::*;

    #[test]
    fn both_names_of_a_stretch_are_the_same() {
        assert_eq!(STEP.to_str().ok(), Some(ringtune_engine::STEP));
        assert_eq!(TEXT_ENCODER.to_str().ok(), Some(ringtune_engine::TEXT_ENCODER));
    }

    #[test]
    fn lines_are_read_and_others_refused() {
        let line = "1\t3\t10\t25\t7\t7\tAddBackward0\t2:1x320x64x64 - 4: 0:3x3 \t\nlost\t2\n";
        let recording = parse(line).unwrap_or_default();
        assert_eq!(recording.lost, 2);
        let operator = &recording.operators[0];
        assert_eq!((operator.scope, operator.thread), (OperatorScope::Backward, 3));
        assert_eq!((operator.start, operator.end, operator.sequence), (10, 25, (7, 7)));
        let sizes: Vec<_> =
            operator.inputs.iter().map(|shape| shape.as_ref().map(TensorShape::bytes)).collect();
        assert_eq!(sizes, [Some(2.0 * 320.0 * 4096.0), None, Some(4.0), Some(0.0)]);
        for wrong in ["1\t3", "x\t3\t10\t25\t7\t7\ta\t\t\n", "1\t3\t10\t25\t7\t7\ta\t2:1xq\t\n", "lost\tmany"]
        {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn operators_stretches_and_gradients_are_recorded_and_nothing_once_it_is_off() -> Result<()> {
        let x = Tensor::f_ones([2, 3], (Kind::Float, tch::Device::Cpu))?.f_set_requires_grad(true)?;
        let weight = Tensor::f_ones([5, 3], (Kind::Float, tch::Device::Cpu))?;
        start()?;
        assert!(start().is_err(), "two recordings at once");
        let stretch = Stretch::begin(TEXT_ENCODER);
        let y = x.f_linear::<Tensor>(&weight, None)?;
        drop(stretch);
        Tensor::f_run_backward(&[y.f_sum(Kind::Float)?], &[&x], false, false)?;
        let Recording { operators, lost } = stop()?;
        assert!(stop().is_err(), "nothing is on");
        assert_eq!(lost, 0);
        // Other tests of this process compute at the same time.
        let stretch = operators.iter().find(|operator| operator.name == ringtune_engine::TEXT_ENCODER);
        let stretch = stretch.ok_or_else(|| Error::argument("the stretch", "missing", "recorded"))?;
        let own = |operator: &&Operator| operator.thread == stretch.thread;
        let linear = operators.iter().filter(own).find(|operator| operator.name == "aten::linear");
        let linear = linear.ok_or_else(|| Error::argument("the product", "missing", "recorded"))?;
        assert!(stretch.start <= linear.start && linear.end <= stretch.end, "{stretch:?} {linear:?}");
        let sizes = |shapes: &[Option<TensorShape>]| {
            shapes.iter().flatten().map(|shape| shape.sizes.clone()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&linear.inputs), [vec![2, 3], vec![5, 3]]);
        assert_eq!(sizes(&linear.outputs), [vec![2, 5]]);
        // The gradient of what was computed within the stretch is found by its number.
        let within =
            |operator: &&Operator| (stretch.sequence.0..stretch.sequence.1).contains(&operator.sequence.0);
        let backward =
            operators.iter().filter(own).filter(|operator| operator.scope == OperatorScope::Backward);
        assert!(backward.filter(within).count() >= 1, "{operators:#?}");
        // Without a recording a stretch is empty.
        assert!(Stretch::begin(STEP).native.is_null());
        Ok(())
    }
}

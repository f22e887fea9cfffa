//! A recording as Chrome's trace events, which chrome://tracing and Perfetto show.
//! Source of the form: "Trace Event Format", complete events (`"ph": "X"`).

use serde::Serialize;

use super::account;
use crate::engine::{Operator, Recording, TensorShape};

/// A file of events.
#[derive(Serialize)]
pub(super) struct Trace {
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

/// Something that took a while on one thread. Times are in microseconds.
#[derive(Serialize)]
struct Event {
    name: String,
    /// The class that its time is in, or `outside` of steps.
    cat: &'static str,
    ph: &'static str,
    ts: f64,
    dur: f64,
    pid: u32,
    tid: u64,
    args: Arguments,
}

#[derive(Serialize)]
struct Arguments {
    inputs: Vec<String>,
    outputs: Vec<String>,
}

impl Trace {
    /// Of all recordings, from the beginning of the first operator on.
    pub(super) fn of(recordings: &[Recording], pid: u32) -> Self {
        let operators = recordings.iter().flat_map(|recording| &recording.operators);
        let begin = operators.map(|operator| operator.start).min().unwrap_or(0);
        let events = recordings.iter().flat_map(|recording| {
            let classes = account::classes(recording);
            let event = move |(place, operator): (usize, &Operator)| {
                let class = classes.get(&place).map_or("outside", |class| class.name());
                Event::of(operator, class, begin, pid)
            };
            recording.operators.iter().enumerate().map(event)
        });
        Self { unit: "ms", events: events.collect() }
    }
}

impl Event {
    fn of(operator: &Operator, cat: &'static str, begin: u64, pid: u32) -> Self {
        let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        Self {
            name: operator.name.clone(),
            cat,
            ph: "X",
            ts: microseconds(operator.start.saturating_sub(begin)),
            dur: microseconds(operator.end.saturating_sub(operator.start)),
            pid,
            tid: operator.thread,
            args: Arguments { inputs: words(&operator.inputs), outputs: words(&operator.outputs) },
        }
    }
}

/// Such as `1x320x64x64 of 2 bytes`.
fn words(shapes: &[Option<TensorShape>]) -> Vec<String> {
    let word = |shape: &Option<TensorShape>| match shape {
        None => "-".to_owned(),
        Some(TensorShape { element_bytes, sizes }) => {
            let sizes = sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
            match element_bytes {
                0 => sizes,
                bytes => format!("{sizes} of {bytes} bytes"),
            }
        }
    };
    shapes.iter().map(word).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::{OperatorScope, STEP};

    #[test]
    fn events_have_times_in_microseconds_and_the_class_of_what_they_are_in() {
        let operator = |name: &str, start, end| Operator {
            name: name.to_owned(),
            scope: OperatorScope::Operator,
            thread: 5,
            start,
            end,
            sequence: (0, 0),
            inputs: vec![Some(TensorShape { element_bytes: 2, sizes: vec![1, 320] }), None],
            outputs: Vec::new(),
        };
        let recording = Recording {
            operators: vec![
                operator("aten::gelu", 2_500, 4_000),
                operator(STEP, 2_000, 9_000),
                operator("aten::add", 1_000, 1_500),
            ],
            lost: 0,
        };
        let trace = serde_json::to_value(Trace::of(&[recording], 7)).unwrap_or_default();
        let events = trace["traceEvents"].as_array().cloned().unwrap_or_default();
        let arguments = json!({"inputs": ["1x320 of 2 bytes", "-"], "outputs": []});
        let expected = |name: &str, cat: &str, ts: f64, dur: f64| json!({"name": name, "cat": cat, "ph": "X", "ts": ts, "dur": dur, "pid": 7, "tid": 5, "args": arguments});
        let all = [
            expected("aten::gelu", "GEGLU", 1.5, 1.5),
            expected(STEP, "between operators", 1.0, 7.0),
            expected("aten::add", "outside", 0.0, 0.5),
        ];
        assert_eq!(Value::Array(events), json!(all));
    }
}

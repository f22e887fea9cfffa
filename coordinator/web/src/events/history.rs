//! The events of the one job that a page looks at, in portions: pure.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::text;

/// Steps in a message.
const PORTION: usize = 200;

/// What a watch of a job says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// An event as JSON. Of steps there are many.
    Event { sequence: u64, is_step: bool, json: String },
    /// How things are: only the newest of each name counts.
    State { name: String, json: String },
    /// How far some ranks are: only the newest of each rank counts.
    Ranks(Vec<(i32, String)>),
}

/// What is to be told of it.
#[derive(Debug, Default)]
pub(super) struct History {
    steps: Vec<String>,
    /// The sequence number of the last one.
    last: u64,
    states: BTreeMap<String, String>,
    ranks: BTreeMap<i32, String>,
}

impl History {
    /// What is to be told at once. Order and number of events stay.
    pub(super) fn hear(&mut self, said: Said) -> Vec<Bytes> {
        match said {
            Said::State { name, json } => {
                self.states.insert(name, json);
                Vec::new()
            }
            Said::Ranks(ranks) => {
                self.ranks.extend(ranks);
                Vec::new()
            }
            Said::Event { sequence, is_step: true, json } => {
                self.steps.push(json);
                self.last = sequence;
                if self.steps.len() < PORTION { Vec::new() } else { self.portion().into_iter().collect() }
            }
            Said::Event { sequence, is_step: false, json } => {
                // How things were before it is said before it.
                let mut all = self.flush();
                all.push(text::event("event", Some(sequence), &json));
                all
            }
        }
    }

    /// Whether something waits.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.states.is_empty() && self.ranks.is_empty()
    }

    /// All that waits.
    pub(super) fn flush(&mut self) -> Vec<Bytes> {
        let states = std::mem::take(&mut self.states);
        let ranks: Vec<String> = std::mem::take(&mut self.ranks).into_values().collect();
        let mut all: Vec<Bytes> = self.portion().into_iter().collect();
        if !ranks.is_empty() {
            all.push(text::event("progress", None, &text::list("ranks", &ranks)));
        }
        all.extend(states.iter().map(|(name, json)| text::event(name, None, json)));
        all
    }

    fn portion(&mut self) -> Option<Bytes> {
        let steps = std::mem::take(&mut self.steps);
        let is_some = !steps.is_empty();
        is_some.then(|| text::event("events", Some(self.last), &text::list("events", &steps)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(sequence: u64, is_step: bool) -> Said {
        Said::Event { sequence, is_step, json: format!("{{\"sequence\":{sequence}}}") }
    }

    fn words(messages: Vec<Bytes>) -> Vec<String> {
        let first = |bytes: Bytes| {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            text.lines().take(2).collect::<Vec<_>>().join(" ")
        };
        messages.into_iter().map(first).collect()
    }

    #[test]
    fn steps_come_in_portions_and_in_order() {
        let mut history = History::default();
        let mut told = Vec::new();
        for sequence in 1..=450 {
            told.extend(history.hear(event(sequence, true)));
        }
        told.extend(history.hear(event(451, false)));
        told.extend(history.hear(event(452, true)));
        assert!(!history.is_empty());
        told.extend(history.flush());
        let ids = ["events id: 200", "events id: 400", "events id: 450", "event id: 451", "events id: 452"];
        assert_eq!(words(told), ids.map(|id| format!("event: {id}")));
        assert!(history.is_empty() && history.flush().is_empty());
    }

    #[test]
    fn of_a_state_the_newest_counts() {
        let mut history = History::default();
        for number in 0..1000 {
            let state = Said::State { name: "timings".to_owned(), json: number.to_string() };
            assert!(history.hear(state).is_empty());
        }
        assert_eq!(words(history.flush()), ["event: timings data: 999"]);
    }

    #[test]
    fn word_of_one_rank_takes_no_place_of_another_one() {
        let mut history = History::default();
        for number in 0..1000 {
            let rank = number % 2;
            assert!(history.hear(Said::Ranks(vec![(rank, format!("{rank}.{number}"))])).is_empty());
        }
        assert!(!history.is_empty());
        assert_eq!(words(history.flush()), [r#"event: progress data: {"ranks":[0.998,1.999]}"#]);
        assert!(history.is_empty() && history.flush().is_empty());
    }
}

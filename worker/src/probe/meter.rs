//! Bytes a second, from messages as they come.

use std::time::Duration;

use tokio::time::Instant;

/// Bytes within this time after the first message are not counted: connections begin slowly, and buffered bytes come at once.
const BEGINNING: Duration = Duration::from_millis(200);

/// Bytes received in a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
}

impl Rate {
    /// Bytes a second; none: too little came to say.
    pub(crate) fn per_second(self) -> Option<f64> {
        let seconds = self.time.as_secs_f64();
        (self.bytes > 0 && seconds > 0.0).then(|| self.bytes as f64 / seconds)
    }
}

/// Counts.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    first: Option<Instant>,
    /// Everything after the first message.
    all: Rate,
    /// When counting began, and what came since.
    counting: Option<(Instant, Rate)>,
}

impl Meter {
    /// A message of so many bytes is here.
    pub(crate) fn add(&mut self, now: Instant, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let Some(first) = self.first else {
            self.first = Some(now);
            return;
        };
        self.all = Rate { bytes: self.all.bytes.saturating_add(bytes), time: now - first };
        match &mut self.counting {
            Some((since, rate)) => {
                *rate = Rate { bytes: rate.bytes.saturating_add(bytes), time: now - *since };
            }
            None if now - first >= BEGINNING => self.counting = Some((now, Rate::default())),
            None => (),
        }
    }

    /// The rate after the beginning or, if next to nothing came after it, of everything.
    pub(crate) fn rate(&self) -> Rate {
        self.counting.map(|(_, rate)| rate).filter(|rate| rate.per_second().is_some()).unwrap_or(self.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_is_not_counted_unless_there_is_nothing_else() {
        let start = Instant::now();
        let of = |messages: &[(u64, usize)]| {
            let mut meter = Meter::default();
            messages.iter().for_each(|(at, bytes)| meter.add(start + Duration::from_millis(*at), *bytes));
            meter.rate()
        };
        let rate = |bytes, milliseconds| Rate { bytes, time: Duration::from_millis(milliseconds) };
        // A burst from buffers, and then ten bytes a millisecond.
        assert_eq!(of(&[(0, 900), (1, 9000), (200, 500), (300, 1000), (400, 1000)]), rate(2000, 200));
        assert_eq!(of(&[(0, 900), (50, 100), (100, 100)]), rate(200, 100));
        assert_eq!(of(&[(0, 900), (250, 100)]), rate(100, 250));
        assert_eq!(of(&[(0, 900)]).per_second(), None);
        assert_eq!(of(&[]).per_second(), None);
        assert_eq!(rate(2000, 200).per_second(), Some(10_000.0));
    }
}

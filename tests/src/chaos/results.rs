//! Measurements as text for tests/chaos/RESULTS.md.

use std::{fmt::Write as _, time::Duration};

use super::measure::Measured;

/// The rounds of one row.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    /// The row.
    pub name: &'static str,
    /// Of the rounds that went as they should.
    pub passed: Vec<Measured>,
    /// The seeds of the others.
    pub failed: Vec<u64>,
    /// Rounds for which this machine has no ground.
    pub skipped: usize,
}

/// Machine, commit and seed of a measurement.
#[derive(Clone, Debug)]
pub struct About {
    /// The seed of everything in it.
    pub seed: u64,
    /// The commit, marked when files were changed after it.
    pub commit: String,
    /// The processor's name and the number of its cores.
    pub processor: String,
    /// The day, as 2026-12-31.
    pub day: String,
}

/// Heading of a section, with a line about the measurement.
pub fn heading(about: &About, title: &str, what: &str) -> String {
    let About { seed, commit, processor, day } = about;
    format!("\n## {title}: {day}, commit {commit}\n\n{what}, seed {seed}, on {processor}.\n\n")
}

/// The section of `rounds` rounds of the matrix, `jobs` rows at a time.
pub fn section(about: &About, rounds: usize, jobs: usize, rows: &[Rounds]) -> String {
    let beside = if jobs > 1 { format!(", {jobs} rows beside each other") } else { String::new() };
    let mut text = heading(about, "The matrix", &format!("{rounds} rounds{beside}"));
    text.push_str(
        "| Row | Passed | Detected, median / most (s) | Computes again after that, median / most (s) | Steps lost, median / most |\n\
         |---|---|---|---|---|\n",
    );
    for row in rows {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{}", line(row));
    }
    for row in rows.iter().filter(|row| !row.failed.is_empty()) {
        let seeds: Vec<String> = row.failed.iter().map(u64::to_string).collect();
        let _ = write!(text, "\n`{}` failed with the seeds {}.\n", row.name, seeds.join(", "));
    }
    text
}

fn line(row: &Rounds) -> String {
    let played = row.passed.len() + row.failed.len();
    let times = |time: fn(&Measured) -> Option<Duration>| {
        let times: Vec<Duration> = row.passed.iter().filter_map(time).collect();
        spread(times)
            .map_or("–".to_owned(), |(median, most)| format!("{} / {}", seconds(median), seconds(most)))
    };
    let lost = spread(row.passed.iter().map(|measured| measured.steps_lost).collect());
    let lost = lost.map_or("–".to_owned(), |(median, most)| format!("{median} / {most}"));
    let passed = match row.skipped {
        0 => format!("{} of {played}", row.passed.len()),
        skipped => format!("{} of {played}, {skipped} skipped", row.passed.len()),
    };
    let (detect, resume) = (times(|measured| measured.detect), times(|measured| measured.resume));
    format!("| `{}` | {passed} | {detect} | {resume} | {lost} |", row.name)
}

/// A time in seconds, with two places.
pub fn seconds(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64())
}

/// The median and the greatest; none of nothing.
fn spread<T: Ord + Copy>(numbers: Vec<T>) -> Option<(T, T)> {
    Some((percentile(&numbers, 50)?, percentile(&numbers, 100)?))
}

/// The percentile of numbers (nearest rank); None of nothing.
pub fn percentile<T: Ord + Copy>(numbers: &[T], percent: usize) -> Option<T> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
pub(super) fn about() -> About {
    About {
        seed: 5,
        commit: "abc".to_owned(),
        processor: "a processor, 2 cores".to_owned(),
        day: "2026-01-02".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_medians_maxima_and_failures() {
        let measured = |detect, resume, steps_lost| Measured {
            detect: Some(Duration::from_millis(detect)),
            resume: Some(Duration::from_millis(resume)),
            steps_lost,
        };
        let passed = vec![measured(300, 2_000, 0), measured(100, 1_000, 1), measured(200, 4_000, 0)];
        let rows = [
            Rounds { name: "row", passed, failed: vec![9], skipped: 0 },
            Rounds { name: "none", skipped: 4, ..Rounds::default() },
        ];
        let text = section(&about(), 4, 3, &rows);
        assert!(text.contains("## The matrix: 2026-01-02, commit abc"), "{text}");
        assert!(
            text.contains("4 rounds, 3 rows beside each other, seed 5, on a processor, 2 cores."),
            "{text}"
        );
        assert!(text.contains("| `row` | 3 of 4 | 0.20 / 0.30 | 2.00 / 4.00 | 0 / 1 |"), "{text}");
        assert!(text.contains("| `none` | 0 of 0, 4 skipped | – | – | – |"), "{text}");
        assert!(text.contains("`row` failed with the seeds 9."), "{text}");
    }

    #[test]
    fn a_percentile_is_one_of_the_numbers() {
        let hundred: Vec<u32> = (1..=200).rev().collect();
        assert_eq!(
            [50, 99, 100].map(|percent| percentile(&hundred, percent)),
            [Some(100), Some(198), Some(200)]
        );
        assert_eq!([1, 50, 99].map(|percent| percentile(&[7], percent)), [Some(7); 3]);
        assert_eq!(percentile::<u32>(&[], 99), None);
    }
}

//! What the steps of a ring's ranks take, in words.

use ringtune_proto::v1;

use super::text::{bytes_text, seconds_text};

/// Below so many bytes a step, a bandwidth says how long the way is, and not how wide.
const LEAST_BYTES: f64 = 1e6;

/// The rank that the others wait for. None where there is none, or nothing to compare it with.
pub(super) fn straggler_text(ranks: &[v1::RankTiming]) -> Option<String> {
    let straggler = ranks.iter().find(|rank| rank.straggler)?;
    // A coordinator before 0.3.0 says no slowdown.
    let slowdown = match straggler.slowdown {
        slowdown if slowdown > 0.0 => slowdown,
        _ => straggler.compute_seconds / middle_of_others(straggler, ranks)?,
    };
    Some(format!(
        "rank {} computes {slowdown:.1} times as long as the others: they wait for it",
        straggler.rank
    ))
}

fn middle_of_others(rank: &v1::RankTiming, ranks: &[v1::RankTiming]) -> Option<f64> {
    let others = ranks.iter().filter(|other| other.rank != rank.rank && other.compute_seconds.is_finite());
    let mut others: Vec<f64> = others.map(|other| other.compute_seconds).collect();
    others.sort_by(f64::total_cmp);
    others.get(others.len() / 2).copied().filter(|seconds| *seconds > 0.0)
}

/// Of a step, the parts that the ranks exchange and wait on average: "exchange 12 %  wait 3 %". None for a rank alone, or where
/// nothing is known.
pub(super) fn shares_text(ranks: &[v1::RankTiming]) -> Option<String> {
    let sum = |number: fn(&v1::RankTiming) -> f64| ranks.iter().map(number).sum::<f64>();
    let (exchange, wait) = (sum(|rank| rank.exchange_seconds), sum(|rank| rank.wait_seconds));
    let all = sum(|rank| rank.compute_seconds) + exchange + wait;
    let percent = |part: f64| (100.0 * part / all).round();
    (ranks.len() > 1 && all > 0.0 && all.is_finite())
        .then(|| format!("exchange {} %  wait {} %", percent(exchange), percent(wait)))
}

/// What a step takes a rank: "compute 0.41 s, exchange 0.03 s (hidden 0.10 s), wait 0.02 s; sent 498 MB at 1.2 GB/s".
pub fn timing_text(rank: &v1::RankTiming) -> String {
    let traffic = rank.traffic.unwrap_or_default();
    let mut text = format!(
        "compute {}, exchange {}",
        seconds_text(rank.compute_seconds),
        seconds_text(rank.exchange_seconds)
    );
    if traffic.hidden_exchange_seconds > 0.0 {
        text.push_str(&format!(" (hidden {})", seconds_text(traffic.hidden_exchange_seconds)));
    }
    text.push_str(&format!(", wait {}", seconds_text(rank.wait_seconds)));
    let sent = traffic.sent_bytes as f64;
    if sent > 0.0 {
        text.push_str(&format!("; sent {}", bytes_text(sent)));
        if sent >= LEAST_BYTES && traffic.bus_bytes_per_second > 0.0 {
            text.push_str(&format!(" at {}/s", bytes_text(traffic.bus_bytes_per_second)));
        }
    }
    if rank.straggler {
        text.push_str(&format!(
            "; of late {:.1} times as slow as the others, which wait for it",
            rank.slowdown
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank() -> v1::RankTiming {
        let traffic = v1::RingTraffic {
            hidden_exchange_seconds: 0.1,
            sent_bytes: 498_000_000,
            collective_seconds: 0.4,
            bus_bytes_per_second: 1.245e9,
        };
        v1::RankTiming {
            compute_seconds: 0.41,
            exchange_seconds: 0.03,
            wait_seconds: 0.02,
            traffic: Some(traffic),
            ..v1::RankTiming::default()
        }
    }

    #[test]
    fn a_rank_in_words() {
        let text = "compute 410 ms, exchange 30 ms (hidden 100 ms), wait 20 ms; sent 498 MB at 1.2 GB/s";
        assert_eq!(timing_text(&rank()), text);
        let slow = v1::RankTiming { straggler: true, slowdown: 1.36, ..rank() };
        assert_eq!(
            timing_text(&slow),
            format!("{text}; of late 1.4 times as slow as the others, which wait for it")
        );
        // A few kilobytes say nothing of the bandwidth, and an older worker nothing of what it sent.
        let little = v1::RingTraffic {
            sent_bytes: 3100,
            hidden_exchange_seconds: 0.0,
            ..rank().traffic.unwrap_or_default()
        };
        let little = v1::RankTiming { traffic: Some(little), ..rank() };
        assert_eq!(timing_text(&little), "compute 410 ms, exchange 30 ms, wait 20 ms; sent 3.1 kB");
        let older = v1::RankTiming { traffic: None, ..rank() };
        assert_eq!(timing_text(&older), "compute 410 ms, exchange 30 ms, wait 20 ms");
    }

    #[test]
    fn shares_are_of_all_ranks_and_none_of_one() {
        let waiting = v1::RankTiming { compute_seconds: 0.31, wait_seconds: 0.12, ..rank() };
        assert_eq!(shares_text(&[rank(), waiting]).as_deref(), Some("exchange 7 %  wait 15 %"));
        assert_eq!(shares_text(&[rank()]), None);
        assert_eq!(shares_text(&[v1::RankTiming::default(), v1::RankTiming::default()]), None);
    }
}

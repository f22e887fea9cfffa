//! What the steps of a ring's ranks take, as JSON. Field names are part of what scripts rely on: only add.

use ringtune_proto::v1;
use serde::Serialize;

/// Present step timings of a ring's ranks, as a line of JSON. They are no part of the job's history and have no sequence
/// number. Without ranks: earlier timings are over.
#[derive(Debug, Serialize)]
pub struct TimingsObject {
    r#type: &'static str,
    job_id: String,
    event: &'static str,
    ranks: Vec<RankTimingObject>,
}

impl TimingsObject {
    /// The ranks of `job_id`.
    pub fn new(job_id: &str, ranks: &[v1::RankTiming]) -> Self {
        let ranks = ranks.iter().map(RankTimingObject::from).collect();
        Self { r#type: "event", job_id: job_id.to_owned(), event: "timings", ranks }
    }
}

/// One rank.
#[derive(Debug, Serialize)]
pub struct RankTimingObject {
    rank: i32,
    epoch: u64,
    step: i64,
    compute_seconds: f64,
    exchange_seconds: f64,
    wait_seconds: f64,
    straggler: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    slowdown: Option<f64>,
    #[serde(flatten)]
    traffic: Option<TrafficObject>,
}

impl From<&v1::RankTiming> for RankTimingObject {
    fn from(timing: &v1::RankTiming) -> Self {
        Self {
            rank: timing.rank,
            epoch: timing.epoch,
            step: timing.step,
            compute_seconds: timing.compute_seconds,
            exchange_seconds: timing.exchange_seconds,
            wait_seconds: timing.wait_seconds,
            straggler: timing.straggler,
            slowdown: Some(timing.slowdown).filter(|slowdown| *slowdown > 0.0),
            traffic: timing.traffic.as_ref().map(TrafficObject::from),
        }
    }
}

/// What travelled in a step; left out where the worker does not say it.
#[derive(Debug, Serialize)]
pub struct TrafficObject {
    hidden_exchange_seconds: f64,
    sent_bytes: i64,
    collective_seconds: f64,
    bus_bytes_per_second: f64,
}

impl From<&v1::RingTraffic> for TrafficObject {
    fn from(traffic: &v1::RingTraffic) -> Self {
        Self {
            hidden_exchange_seconds: traffic.hidden_exchange_seconds,
            sent_bytes: traffic.sent_bytes,
            collective_seconds: traffic.collective_seconds,
            bus_bytes_per_second: traffic.bus_bytes_per_second,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_left_out() {
        let older = v1::RankTiming { rank: 1, step: 7, compute_seconds: 0.5, ..v1::RankTiming::default() };
        let traffic = v1::RingTraffic { sent_bytes: 12, ..v1::RingTraffic::default() };
        let newer = v1::RankTiming { straggler: true, slowdown: 1.5, traffic: Some(traffic), ..older };
        let line = serde_json::to_value(TimingsObject::new("x", &[older, newer])).expect("serializes");
        assert_eq!((&line["event"], &line["job_id"]), (&"timings".into(), &"x".into()));
        let [older, newer] = [&line["ranks"][0], &line["ranks"][1]];
        assert!(older.get("sent_bytes").is_none() && older.get("slowdown").is_none(), "{older}");
        assert_eq!((&newer["sent_bytes"], &newer["slowdown"]), (&12.into(), &1.5.into()));
    }
}

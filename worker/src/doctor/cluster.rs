//! What only the rest of the cluster can tell: how far apart the clocks are, and which workers compute otherwise.

use std::time::{Duration, SystemTime};

use ringtune_proto::v1::{
    self, access_service_client::AccessServiceClient, cluster_service_client::ClusterServiceClient,
};
use tokio::time::{Instant, timeout};
use tonic::{Code, transport::Channel};

use super::{
    checks::{Check, Verdict},
    machine::difference,
};
use crate::node::Node;

/// For an answer.
const LIMIT: Duration = Duration::from_secs(5);
/// The first call opens the connection: the quickest of some tells the time best.
const CALLS: usize = 5;
/// Certificates are forgiving to this extent, and logs of two machines can be read side by side.
const APART: Duration = Duration::from_secs(1);
/// The most that are compared, of as many as one call may list.
const WORKERS: i32 = 500;

/// One answer of the coordinator: how long it took, and how much later its clock is than ours, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) round_trip: Duration,
    pub(super) ahead: f64,
}

/// How far the coordinator's clock is from this machine's.
pub(super) async fn of_clocks(channel: Channel) -> Check {
    const NAME: &str = "coordinator's clock";
    let mut client = AccessServiceClient::new(channel);
    let mut best: Option<Sample> = None;
    for _ in 0..CALLS {
        let (sent, began) = (SystemTime::now(), Instant::now());
        let answer = match timeout(LIMIT, client.who_am_i(v1::WhoAmIRequest {})).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => return Check::unknown(NAME, status.message()),
            Err(_) => return Check::unknown(NAME, "no answer"),
        };
        let Some(there) = answer.time.and_then(|time| SystemTime::try_from(time).ok()) else {
            return Check::unknown(NAME, "this coordinator is older and does not say");
        };
        let sample = sample(sent, began.elapsed(), there);
        best = Some(best.filter(|best| best.round_trip <= sample.round_trip).unwrap_or(sample));
    }
    best.map_or_else(|| Check::unknown(NAME, "no answer"), |best| apart(NAME, best))
}

/// The other side's clock was read half-way, give or take half the round trip.
pub(super) fn sample(sent: SystemTime, round_trip: Duration, there: SystemTime) -> Sample {
    let middle = sent + round_trip / 2;
    let ahead = match there.duration_since(middle) {
        Ok(ahead) => ahead.as_secs_f64(),
        Err(behind) => -behind.duration().as_secs_f64(),
    };
    Sample { round_trip, ahead }
}

/// Whether two machines have the same time, as far as it can be told.
pub(super) fn apart(name: &'static str, Sample { round_trip, ahead }: Sample) -> Check {
    let error = round_trip.as_secs_f64() / 2.0;
    let found = format!(
        "{:.3} s {} ours, give or take {error:.3} s; {:.1} ms there and back",
        ahead.abs(),
        if ahead < 0.0 { "behind" } else { "ahead of" },
        round_trip.as_secs_f64() * 1e3
    );
    Check::new(name, found).unless(
        ahead.abs() - error < APART.as_secs_f64(),
        Verdict::Warn,
        "certificates may look too new or too old: run chrony on both machines (`chronyc tracking` shows which is wrong)",
    )
}

/// What the other workers of the cluster have and this machine has not, or the other way round.
pub(super) async fn of_workers(channel: Channel, node: &Node) -> Check {
    const NAME: &str = "other workers";
    let request = v1::ListWorkersRequest { page_size: WORKERS, ..Default::default() };
    let mut client = ClusterServiceClient::new(channel).max_decoding_message_size(16 << 20);
    match timeout(LIMIT, client.list_workers(request)).await {
        Ok(Ok(answer)) => differing(node, &answer.into_inner().workers),
        Ok(Err(status)) if status.code() == Code::PermissionDenied => {
            Check::unknown(NAME, "a worker's certificate may not list them; `ringtune workers` does")
        }
        Ok(Err(status)) => Check::unknown(NAME, status.message()),
        Err(_) => Check::unknown(NAME, "no answer"),
    }
}

fn differing(node: &Node, workers: &[v1::Worker]) -> Check {
    let (mut others, mut found) = (0, Vec::new());
    for worker in workers.iter().filter(|worker| worker.host_name != node.host_name) {
        let Some(there) = &worker.capabilities else { continue };
        others += 1;
        let model =
            (there.cpu_model != node.cpu.model).then(|| format!("its processor is {}", there.cpu_model));
        let flags = difference(&node.cpu.flags, &there.cpu_flags);
        let differs = flags.into_iter().chain(model).collect::<Vec<_>>().join("; ");
        if !differs.is_empty() {
            found.push(format!("differs from {}: {differs}", worker.host_name));
        }
    }
    let more = found.len().saturating_sub(SHOWN);
    let mut text = match found.is_empty() {
        true => format!("{others} on other machines, none with another processor"),
        false => found[..found.len() - more].join("\n"),
    };
    if more > 0 {
        text.push_str(&format!("\nand from {more} more"));
    }
    Check::new("other workers", text).unless(
        found.is_empty(),
        Verdict::Warn,
        "one job's ring has workers of one numerics class only: such machines never share a job (`ringtune workers`)",
    )
}

/// More lines say nothing new.
const SHOWN: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Cores, Cpu};

    #[test]
    fn clocks_that_are_apart_are_warned_of_beyond_the_error() {
        let now = SystemTime::now();
        let of = |there, milliseconds| sample(now, Duration::from_millis(milliseconds), there);
        let second = Duration::from_secs(1);
        assert!((of(now + 3 * second, 2000).ahead - 2.0).abs() < 1e-6);
        assert!((of(now - second, 0).ahead + 1.0).abs() < 1e-6);
        let verdict = |there, milliseconds| apart("clock", of(there, milliseconds)).verdict;
        assert_eq!(verdict(now + 3 * second, 10), Verdict::Warn);
        assert_eq!(verdict(now - 3 * second, 10), Verdict::Warn);
        assert_eq!(verdict(now + 3 * second / 2, 3000), Verdict::Good, "within the error");
        assert!(
            apart("clock", of(now - 3 * second, 20))
                .found
                .starts_with("3.010 s behind ours, give or take 0.010 s")
        );
    }

    #[test]
    fn workers_with_another_processor_are_named() {
        let node = Node {
            host_name: "node-a".to_owned(),
            cpu: Cpu { model: "m".to_owned(), flags: vec!["avx2".to_owned()], allowed: 2, physical_cores: 2 },
            cores: Cores::default(),
            quota: None,
            memory_bytes: 0,
            numa_nodes: 1,
        };
        let worker = |host: &str, model: &str, flags: &[&str]| v1::Worker {
            host_name: host.to_owned(),
            capabilities: Some(v1::Capabilities {
                cpu_model: model.to_owned(),
                cpu_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let alike = [worker("node-a", "other", &[]), worker("node-b", "m", &["avx2"])];
        let check = differing(&node, &alike);
        assert_eq!(
            (check.verdict, check.found.as_str()),
            (Verdict::Good, "1 on other machines, none with another processor")
        );
        let check = differing(&node, &[worker("node-c", "m", &["avx2", "amx_bf16"])]);
        assert_eq!(
            (check.verdict, check.found.as_str()),
            (Verdict::Warn, "differs from node-c: amx_bf16 only there")
        );
        let many: Vec<_> = (0..9).map(|number| worker(&format!("n{number}"), "x", &["avx2"])).collect();
        assert!(differing(&node, &many).found.ends_with("and from 4 more"));
    }
}

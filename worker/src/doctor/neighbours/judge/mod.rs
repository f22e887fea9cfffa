//! What the measurements mean, and what would help.

use std::{net::IpAddr, time::Duration};

use super::{
    Here,
    measure::{Back, Link, Measured, Reached, Silent},
};
use crate::{
    doctor::{
        checks::{Check, Verdict},
        cluster::apart,
        machine::difference,
    },
    node::{Interface, Node},
    probe::Rate,
};

/// Machines of one data centre are nearer to each other.
const FAR: Duration = Duration::from_millis(5);
/// What a gigabit link carries, less what TCP, TLS and gRPC need.
const GIGABIT: f64 = 100e6;
/// One direction is this much slower than the other.
const LOPSIDED: f64 = 3.0;
/// What one step of a textual inversion exchanges, and a round figure for the gradients of larger trainings.
const SMALL_BYTES: f64 = 4096.0;
const LARGE_BYTES: f64 = 100e6;

/// There was nothing to measure.
pub(super) fn of_silence(silent: &Silent) -> Check {
    let (found, advice) = match silent {
        Silent::NoAddress(reason) => {
            (reason.clone(), "add the name to DNS, or to /etc/hosts of every machine")
        }
        Silent::NoConnection(reason) => (
            reason.clone(),
            "does the worker run there, does it listen on that address (grpc.listen), does a firewall let it through? \
             Measure as the worker of this machine: with its --config or --state-dir",
        ),
        Silent::Older => (
            "its version cannot be measured".to_owned(),
            "install this version of Ringtune there, or name a worker's gRPC port (usually 7080)",
        ),
        Silent::Refused(reason) => (reason.clone(), "name a worker's gRPC port (usually 7080)"),
    };
    Check::new("neighbour", found).unless(false, Verdict::Bad, advice)
}

/// One way, each thing by itself.
pub(super) fn of_neighbour(here: &Here<'_>, measured: &Measured) -> Vec<Check> {
    let there = &measured.there;
    let version = there.capabilities.as_ref().map_or("", |capabilities| capabilities.version.as_str());
    let who = format!("{}, worker {}, version {version}", there.host_name, there.worker_id);
    let mut checks = vec![
        Check::new("neighbour", format!("{} is {who}", measured.address)),
        latency(measured),
        bandwidth("bandwidth to it", &measured.rates[0], &measured.rates[1]),
        bandwidth("bandwidth from it", &measured.rates[1], &measured.rates[0]),
        way_back(&measured.back, &there.caller_ip),
        packets(measured.interface.as_ref(), there.mtu),
        class(here.class.as_deref(), measured),
    ];
    checks.extend(zone(&here.zone, &there.zone));
    if let Some(clock) = measured.clock {
        checks.push(apart("its clock", clock));
    }
    checks
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn latency(measured: &Measured) -> Check {
    let median = measured.median();
    let [least, most] = [measured.round_trips.first(), measured.round_trips.last()]
        .map(|time| time.copied().unwrap_or_default());
    let found = format!(
        "{:.2} ms there and back (least {:.2}, most {:.2} of {})",
        milliseconds(median),
        milliseconds(least),
        milliseconds(most),
        measured.round_trips.len()
    );
    Check::new("latency", found).unless(
        median < FAR,
        Verdict::Warn,
        "each step waits for 2 x (ranks - 1) messages: take workers of one data centre for one job",
    )
}

fn bandwidth(name: &'static str, rate: &Result<Rate, String>, other: &Result<Rate, String>) -> Check {
    let per_second = |rate: &Result<Rate, String>| rate.as_ref().ok().and_then(|rate| rate.per_second());
    let (ours, theirs) = (per_second(rate), per_second(other));
    let Some(ours) = ours else {
        let reason = rate.as_ref().err().map_or("too little came to say", String::as_str);
        let stalled = reason.starts_with("no end");
        let check = Check::new(name, reason);
        return check.unless(
            !stalled,
            Verdict::Bad,
            "small messages pass and large ones do not: somewhere on the way the MTU is smaller than at both ends, and \
             the messages that say so are dropped; lower the interfaces' MTU, or let ICMP pass",
        );
    };
    let found = format!("{:.0} MB/s ({:.2} Gbit/s)", ours / 1e6, ours * 8.0 / 1e9);
    let check = Check::new(name, found);
    if theirs.is_some_and(|theirs| theirs > LOPSIDED * ours) {
        return check.unless(
            false,
            Verdict::Warn,
            "the other direction is several times as fast: look for errors and half duplex on both interfaces \
             (`ethtool INTERFACE`, `ip -s link`), and for other traffic",
        );
    }
    check.unless(
        ours >= GIGABIT,
        Verdict::Warn,
        "less than a gigabit: textual inversion exchanges kilobytes and does not mind; larger gradients wait for it",
    )
}

fn way_back(Back { advertised, outcome }: &Back, caller: &str) -> Check {
    const NAME: &str = "way back";
    let (told, address) = match advertised {
        Ok((told, address)) => (told.as_str(), *address),
        Err(reason) => {
            return Check::new(NAME, reason.as_str()).unless(
                false,
                Verdict::Bad,
                "a worker with these settings has no address to tell its neighbours: set ring.advertise_address",
            );
        }
    };
    let seen: Option<IpAddr> = caller.parse().ok();
    match outcome {
        Reached::LoopbackOnly => Check::new(NAME, "this machine's worker listens on loopback alone").unless(
            false,
            Verdict::Bad,
            "no neighbour reaches it: set grpc.listen (--listen 0.0.0.0:7080); if it has other settings, name them: --config FILE",
        ),
        Reached::Unknown(reason) => Check::new(NAME, format!("not tried: {reason}")).unless(
            false,
            Verdict::Warn,
            "measure again when nobody else measures that worker",
        ),
        Reached::No { dialled, error } => {
            Check::new(NAME, format!("{dialled} is not reached from there: {error}")).unless(
                false,
                Verdict::Bad,
                "a ring needs it: let the port through this machine's firewall and those between",
            )
        }
        Reached::Yes(dialled) => {
            let check = Check::new(NAME, format!("{dialled} is reached from there"));
            match (seen, address) {
                (Some(seen), Some(address)) if seen != address => Check::new(
                    NAME,
                    format!("{dialled} is reached from there, but neighbours are told {told}"),
                )
                .unless(
                    false,
                    Verdict::Warn,
                    "they see this machine at another address than the one that they are told: right with several networks, \
                     wrong behind address translation; set ring.interface or ring.advertise_address",
                ),
                _ => check,
            }
        }
    }
}

fn packets(here: Option<&Interface>, there: Option<u32>) -> Check {
    const NAME: &str = "MTU";
    let mtu = here.and_then(|interface| interface.mtu);
    let (Some(ours), Some(theirs)) = (mtu, there) else {
        return Check::unknown(NAME, "the system does not say");
    };
    let by = here.map_or(String::new(), |interface| format!(" by {}", interface.name));
    Check::new(NAME, format!("{ours} here{by}, {theirs} there")).unless(
        ours == theirs,
        Verdict::Warn,
        "give all interfaces of one network the same MTU: packets of the larger one are dropped or cut up",
    )
}

/// Nothing, where one of both is in no cloud, or does not know.
fn zone(here: &str, there: &str) -> Option<Check> {
    let known = !here.is_empty() && !there.is_empty();
    known.then(|| {
        Check::new("zone", format!("{here} here, {there} there")).unless(
            here == there,
            Verdict::Warn,
            "what ranks exchange crosses zones in every step, which takes longer and is billed by the byte: take machines of one \
             zone for one job",
        )
    })
}

fn class(here: Option<&str>, measured: &Measured) -> Check {
    const NAME: &str = "numerics class";
    let (Some(ours), Some(there)) = (here, &measured.there.capabilities) else {
        return Check::unknown(NAME, "libtorch does not start on this side");
    };
    if ours == there.numerics_class {
        return Check::new(NAME, "the same: both may be in one ring");
    }
    let parts = ours.split('/').zip(there.numerics_class.split('/'));
    let parts = parts
        .filter(|(ours, theirs)| ours != theirs)
        .map(|(ours, theirs)| format!("{ours} here, {theirs} there"));
    let flags = difference(&Node::detect().cpu.flags, &there.cpu_flags);
    let found = parts.chain(flags).collect::<Vec<_>>().join("; ");
    Check::new(NAME, found).unless(
        false,
        Verdict::Warn,
        "they compute other bits, and are never in one job's ring: install one version everywhere, and take machines of one model",
    )
}

/// What a ring of all of them would take at least, by the worst of the ways from here. None: there is nothing to say.
pub(super) fn of_all(links: &[Link], silent: usize) -> Option<Check> {
    let round_trip = links.iter().map(|link| link.round_trip).max()?;
    let slowest = links.iter().map(|link| link.bytes_per_second).collect::<Option<Vec<_>>>();
    let ranks = links.len() + 1;
    let time = |bytes: f64| {
        let rate = slowest.as_ref()?.iter().copied().reduce(f64::min)?;
        Some(all_reduce(ranks, bytes, round_trip.as_secs_f64() / 2.0, rate))
    };
    let found = match (time(SMALL_BYTES), time(LARGE_BYTES)) {
        (Some(small), Some(large)) => format!(
            "{ranks} ranks, by the worst way from here: at least {:.1} ms a step for a textual inversion, {large:.1} s for \
             100 MB of gradients",
            small * 1e3
        ),
        _ => format!("{ranks} ranks: not all ways were measured"),
    };
    let found =
        if silent == 0 { found } else { format!("without the {silent} that did not answer: {found}") };
    Some(Check::new("ring", found))
}

/// Seconds of a ring all-reduce: 2 (n - 1) messages one after the other, each with a part of 1/n.
/// Source: Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
fn all_reduce(ranks: usize, bytes: f64, latency: f64, bytes_per_second: f64) -> f64 {
    let (ranks, hops) = (ranks as f64, 2.0 * (ranks as f64 - 1.0));
    hops * (latency + bytes / ranks / bytes_per_second)
}

#[cfg(test)]
mod tests;

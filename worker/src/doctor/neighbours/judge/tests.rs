use std::{net::Ipv4Addr, time::SystemTime};

use ringtune_proto::v1;

use super::*;
use crate::{doctor::cluster::sample, settings::Settings};

fn rate(megabytes: u64) -> Result<Rate, String> {
    Ok(Rate { bytes: megabytes * 1_000_000, time: Duration::from_secs(1) })
}

fn fine() -> Measured {
    let now = SystemTime::now();
    let address = Some(Ipv4Addr::new(10, 0, 0, 1).into());
    Measured {
        address: Ipv4Addr::new(10, 0, 0, 2).into(),
        there: v1::IdentifyResponse {
            worker_id: "w".to_owned(),
            host_name: "node-b".to_owned(),
            caller_ip: "10.0.0.1".to_owned(),
            mtu: Some(1500),
            capabilities: Some(v1::Capabilities {
                version: "1".to_owned(),
                numerics_class: "libtorch-2/m/AVX2/kernels-1/p".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        },
        round_trips: [100, 200, 900].map(Duration::from_micros).to_vec(),
        clock: Some(sample(now, Duration::from_millis(2), now)),
        interface: Some(Interface { name: "eth0".to_owned(), mtu: Some(1500), speed: None }),
        rates: [rate(1100), rate(1000)],
        back: Back {
            advertised: Ok(("10.0.0.1:7080".to_owned(), address)),
            outcome: Reached::Yes("10.0.0.1:7080".to_owned()),
        },
    }
}

/// What is not good, and the first words of the advice.
fn found(class: &str, measured: &Measured) -> Vec<(&'static str, Verdict, String)> {
    let settings = Settings::default();
    let here = Here { settings: &settings, trust: None, class: Some(class.to_owned()), zone: "a".to_owned() };
    let checks = of_neighbour(&here, measured).into_iter().filter(|check| check.verdict != Verdict::Good);
    checks.map(|check| (check.name, check.verdict, check.found)).collect()
}

const CLASS: &str = "libtorch-2/m/AVX2/kernels-1/p";

#[test]
fn a_good_way_has_nothing_to_say_against_it() {
    assert_eq!(found(CLASS, &fine()), []);
    let settings = Settings::default();
    let here = Here { settings: &settings, trust: None, class: Some(CLASS.to_owned()), zone: String::new() };
    let checks = of_neighbour(&here, &fine());
    let text: Vec<String> = checks.iter().map(|check| format!("{}: {}", check.name, check.found)).collect();
    assert_eq!(text[0], "neighbour: 10.0.0.2 is node-b, worker w, version 1");
    assert_eq!(text[1], "latency: 0.20 ms there and back (least 0.10, most 0.90 of 3)");
    assert_eq!(text[2], "bandwidth to it: 1100 MB/s (8.80 Gbit/s)");
    assert_eq!(text[4], "way back: 10.0.0.1:7080 is reached from there");
    assert_eq!(text[5], "MTU: 1500 here by eth0, 1500 there");
}

#[test]
fn each_fault_of_a_way_is_named_and_nothing_else() {
    use Verdict::{Bad, Warn};
    let broken = |change: fn(&mut Measured)| {
        let mut measured = fine();
        change(&mut measured);
        let all = found(CLASS, &measured);
        assert_eq!(all.len(), 1, "{all:?}");
        (all[0].0, all[0].1)
    };
    let back = |outcome: Reached| {
        let mut measured = fine();
        measured.back.outcome = outcome;
        let all = found(CLASS, &measured);
        (all[0].0, all[0].1)
    };
    assert_eq!(broken(|it| it.round_trips = vec![Duration::from_millis(20)]), ("latency", Warn));
    assert_eq!(broken(|it| it.rates = [rate(110), rate(500)]), ("bandwidth to it", Warn));
    assert_eq!(broken(|it| it.rates = [rate(110), rate(50)]), ("bandwidth from it", Warn));
    assert_eq!(broken(|it| it.rates[0] = Err("no end within 6 s".to_owned())), ("bandwidth to it", Bad));
    assert_eq!(broken(|it| it.there.mtu = Some(9000)), ("MTU", Warn));
    assert_eq!(broken(|it| it.there.zone = "b".to_owned()), ("zone", Warn));
    assert_eq!(broken(|it| it.there.caller_ip = "192.0.2.7".to_owned()), ("way back", Warn));
    assert_eq!(broken(|it| it.back.advertised = Err("no such interface".to_owned())), ("way back", Bad));
    let ahead = |it: &mut Measured| {
        let now = SystemTime::now();
        it.clock = Some(sample(now, Duration::from_millis(2), now + Duration::from_secs(5)));
    };
    assert_eq!(broken(ahead), ("its clock", Warn));
    assert_eq!(back(Reached::LoopbackOnly), ("way back", Bad));
    let refused = Reached::No { dialled: "10.0.0.1:7080".to_owned(), error: "refused".to_owned() };
    assert_eq!(back(refused), ("way back", Bad));
    assert_eq!(back(Reached::Unknown("busy".to_owned())), ("way back", Warn));
    // A worker in a ring is not measured, which is no fault.
    let mut busy = fine();
    busy.rates = [Err("not measured".to_owned()), Err("not measured".to_owned())];
    assert_eq!(found(CLASS, &busy), []);
}

#[test]
fn other_arithmetic_is_named_by_its_parts() {
    let all = found("libtorch-2/m/AVX2/kernels-2/q", &fine());
    assert_eq!((all.len(), all[0].0, all[0].1), (1, "numerics class", Verdict::Warn));
    assert!(all[0].2.starts_with("kernels-2 here, kernels-1 there; q here, p there"), "{all:?}");
}

#[test]
fn who_does_not_answer_is_bad_with_what_to_do() {
    for silent in [
        Silent::NoAddress("unknown".to_owned()),
        Silent::NoConnection("refused".to_owned()),
        Silent::Older,
        Silent::Refused("no".to_owned()),
    ] {
        let check = of_silence(&silent);
        assert!(check.verdict == Verdict::Bad && !check.advice.is_empty(), "{check:?}");
    }
}

#[test]
fn a_ring_is_as_quick_as_its_worst_way() {
    let link = |milliseconds, megabytes: Option<f64>| Link {
        round_trip: Duration::from_millis(milliseconds),
        bytes_per_second: megabytes.map(|rate| rate * 1e6),
    };
    assert_eq!(of_all(&[], 1), None);
    // Three ranks: four messages of a third each, 5 ms and 100 MB/s.
    let found = of_all(&[link(10, Some(1000.0)), link(2, Some(100.0))], 0).unwrap().found;
    assert!(found.starts_with("3 ranks, by the worst way from here: at least 20.1 ms a step"), "{found}");
    assert!(found.ends_with("1.4 s for 100 MB of gradients"), "{found}");
    let found = of_all(&[link(10, Some(1000.0)), link(2, None)], 2).unwrap().found;
    assert_eq!(found, "without the 2 that did not answer: 3 ranks: not all ways were measured");
}

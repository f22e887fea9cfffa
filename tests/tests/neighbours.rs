//! `ringtune-worker doctor --ring` on nodes of their own: what it measures, and what it finds wrong.

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Cluster, Launch, Sandbox,
    chaos::network::Network,
    daemon::WORKER,
    job::text,
    places,
    process::{Finished, finish},
};
use serde_json::Value;
use tokio::process::Command;

/// A check of doctor at a neighbour: its verdict, finding and advice.
fn said(report: &Value, neighbour: &str, name: &str) -> Result<(String, String, String)> {
    let checks = report["checks"].as_array().context("checks")?;
    let check = checks.iter().find(|check| check["neighbour"] == neighbour && check["name"] == name);
    let check = check.with_context(|| format!("{name} of {neighbour} in {report:#}"))?;
    let word = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
    Ok((word("verdict"), word("found"), word("advice")))
}

/// Runs it as the worker of a node would.
async fn doctor(network: &Network, node: usize, sandbox: &Sandbox, arguments: &[String]) -> Result<Finished> {
    let wrapper = network.wrapper(node);
    let (first, rest) = wrapper.split_first().context("a wrapper")?;
    let mut command = Command::new(first);
    command.args(rest).arg(places::program(WORKER)?).args(["doctor", "--output", "json"]).args(arguments);
    finish(command.current_dir(sandbox.folder()).kill_on_drop(true)).await
}

#[tokio::test]
async fn the_ways_between_nodes_are_measured_over_tls_and_what_is_wrong_is_named() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(network) = Network::start(4)? else { return Ok(()) };
    let mut cluster = Cluster::start_coordinator(&sandbox, network.host(1, Launch::coordinator())).await?;
    let url = cluster.coordinator.door().url();
    for node in [2, 3] {
        let made = cluster.finish(&["token", "create", "--role", "worker", "--ttl", "1h"]).await?;
        let token = made.expect_code(0)?.stdout.trim().to_owned();
        let launch = network.host(node, Launch::new(&format!("worker-{node}"), WORKER));
        cluster.add_worker(launch.flags(["--coordinator", &url, "--join", &token])).await?;
    }
    cluster.wait_for_idle(2).await?;
    let (two, three) = (cluster.workers[0].grpc.clone(), cluster.workers[1].grpc.clone());
    let state = text(&sandbox.path("worker-2"));
    let as_two = |ring: &str| {
        let listen = two.clone();
        ["--coordinator", &url, "--state-dir", &state, "--listen", &listen, "--ring", ring]
            .map(str::to_owned)
            .to_vec()
    };

    // 1. A way that is fine, to a worker that runs, as one that runs.
    let done = doctor(&network, 2, &sandbox, &as_two(&three)).await?;
    ensure!(done.stderr.contains(&format!("measures the way to {three} (1 of 1)")), "{done:?}");
    let report: Value = serde_json::from_str(&done.stdout).with_context(|| format!("{done:?}"))?;
    let all = "neighbour|latency|bandwidth to it|bandwidth from it|way back|MTU|numerics class|its clock";
    for name in all.split('|') {
        let (verdict, found, _) = said(&report, &three, name)?;
        ensure!(verdict == "good", "{name}: {found}");
    }
    ensure!(said(&report, &three, "neighbour")?.1.contains(&cluster.workers[1].id));
    let way_back = said(&report, &three, "way back")?.1;
    ensure!(way_back == format!("{two} is reached from there"), "{way_back}");
    let mbit = said(&report, &three, "bandwidth to it")?.1;
    ensure!(mbit.contains("MB/s"), "{mbit}");

    // 2. Packets of another size, a neighbour that is no worker, one that is not there, one that does not answer.
    network.set_mtu(2, 1400)?;
    let nobody = format!("{}:9", network.address(3));
    network.cut(4)?;
    let cut = format!("{}:7080", network.address(4));
    let coordinator = cluster.coordinator.grpc.clone();
    let ring = [three.as_str(), &coordinator, &nobody, &cut].join(",");
    let done = doctor(&network, 2, &sandbox, &as_two(&ring)).await?;
    ensure!(done.code == Some(1), "{done:?}");
    let report: Value = serde_json::from_str(&done.stdout)?;
    let (verdict, found, _) = said(&report, &three, "MTU")?;
    ensure!(verdict == "warn" && found.starts_with("1400 here") && found.ends_with("1500 there"), "{found}");
    for (name, words) in [(&coordinator, "is not a worker of the cluster"), (&nobody, "refused"), (&cut, "")]
    {
        let (verdict, found, advice) = said(&report, name, "neighbour")?;
        ensure!(verdict == "bad" && found.contains(words) && !advice.is_empty(), "{name}: {found}");
    }

    // 3. Where no worker runs yet, doctor itself listens for the moment; and a port that a firewall keeps from neighbours.
    let mut arguments = as_two(&three);
    let listen = arguments.iter().position(|it| *it == two).context("the flag")?;
    network.refuse(3, 2, 7999)?;
    for (port, expected) in [(7998, "good"), (7999, "bad")] {
        arguments[listen] = format!("{}:{port}", network.address(2));
        let done = doctor(&network, 2, &sandbox, &arguments).await?;
        let report: Value = serde_json::from_str(&done.stdout)?;
        let (verdict, found, _) = said(&report, &three, "way back")?;
        ensure!(verdict == expected && found.contains(&arguments[listen]), "{verdict}: {found}");
    }

    network.mend(4)?;
    // 4. Somebody without a certificate learns nothing.
    let stranger = text(&sandbox.path("stranger"));
    let arguments = ["--coordinator", &url, "--state-dir", &stranger, "--ring", &three].map(str::to_owned);
    let done = doctor(&network, 4, &sandbox, &arguments).await?;
    let report: Value = serde_json::from_str(&done.stdout)?;
    let (verdict, found, _) = said(&report, &three, "neighbour")?;
    ensure!(verdict == "bad" && found.contains("needs credentials"), "{found}");

    // 5. What cannot be meant is refused before anything is looked at.
    let wrong = [three.as_str(), &three].join(",");
    let done = doctor(&network, 2, &sandbox, &as_two(&wrong)).await?;
    ensure!(done.code == Some(2) && done.stderr.contains("is named twice"), "{done:?}");
    Ok(())
}

//! A cluster on a network: three nodes of their own, daemons that tokens let in, and somebody who listens on the way.

use std::{fs, net::Ipv4Addr, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Cluster, Launch, Sandbox,
    capture::Capture,
    chaos::{network::Network, say},
    daemon::WORKER,
    job::text,
    places,
    process::{Finished, finish, finish_child},
};
use tokio::io::AsyncWriteExt as _;

/// The demo has 300.
const FEWER_STEPS: [&str; 2] = ["--set", "train.max_train_steps=60"];
/// Plain text on the network: it shows that packets are captured.
const IN_THE_CLEAR: &str = "these words are for everybody";

/// The commands of one person, who has a folder of settings of their own.
struct Person<'a> {
    sandbox: &'a Sandbox,
    name: &'static str,
    url: String,
}

impl Person<'_> {
    async fn ringtune(&self, arguments: &[&str]) -> Result<Finished> {
        let mut command = self.sandbox.ringtune(arguments)?;
        command.env("XDG_CONFIG_HOME", self.sandbox.path(self.name));
        finish(&mut command).await
    }

    async fn login(&self, token: &str) -> Result<Finished> {
        let mut command = self.sandbox.ringtune(&["login", &self.url])?;
        command.env("XDG_CONFIG_HOME", self.sandbox.path(self.name));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        child.stdin.take().context("stdin")?.write_all(token.as_bytes()).await?;
        finish_child(child).await
    }
}

/// Runs a command that prints a single line.
async fn token(cluster: &Cluster<'_>, arguments: &[&str]) -> Result<String> {
    let made = cluster.finish(&[&["token", "create"], arguments].concat()).await?.expect_code(0)?;
    let token = made.stdout.trim().to_owned();
    ensure!(token.starts_with("rtj1.") && !token.contains('\n'), "{made:?}");
    Ok(token)
}

/// A program's command line, as everybody on its machine can read it.
fn command_line(process: u32) -> Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(format!("/proc/{process}/cmdline"))?).into_owned())
}

#[tokio::test]
async fn three_nodes_joined_by_tokens_learn_what_one_machine_learns_and_say_nothing_in_the_clear()
-> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(network) = Network::start(3)? else { return Ok(()) };
    let [a, b, c, _] = network.address(0).parse::<Ipv4Addr>()?.octets();
    let Some(capture) = Capture::start([a, b, c])? else {
        say("SKIPPED: seeing packets needs root");
        return Ok(());
    };
    let fixtures = places::repository().join("tests/fixtures");
    let job_file = text(&fixtures.join("demo/green-star.toml"));

    // 1. A coordinator that nobody set up, and two workers with a token each.
    let mut cluster = Cluster::start_coordinator(&sandbox, network.host(1, Launch::coordinator())).await?;
    let url = cluster.coordinator.door().url();
    let mut secrets = Vec::new();
    for node in [2, 3] {
        let token = token(&cluster, &["--role", "worker", "--ttl", "1h"]).await?;
        let label = format!("worker-{node}");
        let launch = network
            .host(node, Launch::new(&label, WORKER))
            // As many as `run` gives to each of two: the bits depend on it.
            .flags(["--coordinator", &url, "--join", &token, "--threads", "1"])
            .variable("RINGTUNE__ACCESS__MODEL_ROOTS", &text(&fixtures));
        cluster.add_worker(launch).await?;
        secrets.push(token);
    }
    cluster.wait_for_idle(2).await?;
    for (worker, token) in cluster.workers.iter().zip(&secrets) {
        let line = command_line(worker.process_id().context("it runs")?)?;
        ensure!(line.contains("--coordinator") && !line.contains(token.as_str()), "{line}");
    }

    // 2. A person logs in, and submits the demo's job.
    let ada = Person { sandbox: &sandbox, name: "ada", url };
    let refused = ada.ringtune(&["submit", &job_file, "--coordinator", &ada.url]).await?;
    ensure!(refused.code != Some(0) && refused.stderr.contains("ringtune login"), "{refused:?}");
    let hers = token(&cluster, &["--role", "submitter", "--name", "ada"]).await?;
    ada.login(&hers).await?.expect_code(0)?;
    let twice = ada.login(&hers).await?;
    ensure!(twice.code != Some(0) && twice.stderr.contains("token"), "{twice:?}");
    secrets.push(hers);
    let submit = [&["submit", &job_file, "--watch"][..], &FEWER_STEPS].concat();
    let job = ada.ringtune(&submit).await?.expect_code(0)?;
    let job_id = job.stdout.lines().next().context("the job's id")?.trim().to_owned();
    ada.ringtune(&["fetch", &job_id, "-o", "out"]).await?.expect_code(0)?;
    ensure!(cluster.job(&job_id).await?.queue.context("queue")?.owner == "ada");

    // 3. The same on one machine, as `make demo` does it.
    let run = [&["run", &job_file, "--workers", "2", "-o", "here"][..], &FEWER_STEPS].concat();
    sandbox.finish(&run).await?.expect_code(0)?;
    let embedding = |folder: &str| fs::read(sandbox.path(folder).join("learned_embeds.safetensors"));
    ensure!(embedding("out")? == embedding("here")?, "the network changed what was learned");

    // 4. What passed, to the last packet.
    let mut open = tokio::net::TcpStream::connect(&cluster.coordinator.grpc).await?;
    open.write_all(format!("GET /{IN_THE_CLEAR} HTTP/1.1\r\n\r\n").as_bytes()).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let seen = capture.end()?;
    ensure!(seen.has(IN_THE_CLEAR.as_bytes()), "no packet was seen");
    let workers = cluster.workers.iter().map(|worker| worker.id.clone());
    let words = ["green-star", "a photo of a", "WorkerService", "safetensors"].map(str::to_owned);
    for word in secrets.into_iter().chain(workers).chain(words).chain([job_id]) {
        ensure!(!seen.has(word.as_bytes()), "{word} passed in the clear, in {} bytes", seen.len());
    }
    Ok(())
}

/// As in a cluster whose pods start together: the coordinator's name leads nowhere yet.
#[tokio::test]
async fn a_worker_that_is_there_before_the_coordinators_name_is_dialled_at_its_own_address() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(network) = Network::start(2)? else { return Ok(()) };
    let launch =
        network.host(1, Launch::coordinator()).variable("RINGTUNE__AUTHORITY__NAMES", "later.example");
    let mut cluster = Cluster::start_coordinator(&sandbox, launch).await?;
    let secret = token(&cluster, &["--role", "worker"]).await?;
    let port = cluster.coordinator.grpc.rsplit(':').next().context("a port")?.to_owned();
    let hosts = network.hosts(2)?;
    let url = format!("https://later.example:{port}");
    let launch = Launch {
        listen: "0.0.0.0:0".to_owned(),
        ..network.host(2, Launch::new("worker-2", WORKER)).flags([
            "--coordinator",
            &url,
            "--join",
            &secret,
            "--threads",
            "1",
        ])
    };
    let name = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let known = format!("127.0.0.1 localhost\n{} later.example\n", network.address(1));
        fs::write(&hosts, known).map_err(anyhow::Error::from)
    };
    tokio::try_join!(cluster.add_worker(launch), name)?;
    cluster.wait_for_idle(1).await?;
    let listed = cluster.finish(&["workers", "--output", "json"]).await?.expect_code(0)?.stdout;
    ensure!(listed.contains(&format!("\"address\":\"{}:", network.address(2))), "{listed}");
    Ok(())
}

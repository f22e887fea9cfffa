//! Clouds that take machines away: the worker on one leaves in peace, and its job loses no step.

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Cluster, Job, Launch, Sandbox,
    daemon::{FAKE_WORKER, WORKER},
    metadata::{Metadata, Says},
    places,
    process::finish,
    wait::{SOON, until},
};
use tokio::process::Command;

/// They take longer than a cloud is not asked.
const STEPS: i64 = 110;

/// Three machines of a cloud, and a job of two ranks that one of them can do alone.
struct Machines<'a> {
    cluster: Cluster<'a>,
    services: Vec<Metadata>,
    job: Job,
    sandbox: &'a Sandbox,
}

impl<'a> Machines<'a> {
    async fn start(sandbox: &'a Sandbox, provider: &str, flags: &[&str]) -> Result<Self> {
        let cluster = Cluster::start_coordinator(sandbox, Launch::coordinator()).await?;
        let job =
            Job::toy()?.set("train.max_train_steps", STEPS).shared_by(2).set("cluster.min_world_size", 1);
        let mut machines = Self { cluster, services: Vec::new(), job, sandbox };
        for number in 1..=3 {
            machines.add(&format!("worker-{number}"), provider, flags).await?;
        }
        machines.cluster.wait_for_idle(3).await?;
        Ok(machines)
    }

    async fn add(&mut self, label: &str, provider: &str, flags: &[&str]) -> Result<()> {
        let service = Metadata::start().await?;
        let launch = Launch::worker(label, FAKE_WORKER, &self.cluster.coordinator.grpc)
            .flags(flags.iter().copied())
            .variable("RINGTUNE__CLOUD__PROVIDER", provider)
            .variable("RINGTUNE__CLOUD__ENDPOINT", &service.endpoint);
        self.services.push(service);
        self.cluster.add_worker(launch).await
    }

    async fn submit(&self) -> Result<String> {
        self.cluster.submit(&self.sandbox.write_job("job.toml", &self.job)?).await
    }

    /// A job in mid-training, with the two machines that have its ranks.
    async fn begun(&self) -> Result<(String, usize, usize)> {
        let job = self.submit().await?;
        self.cluster.wait_for_step(&job, 5).await?;
        let with_ranks = self.with_ranks().await?;
        let [first, second] = with_ranks[..] else { anyhow::bail!("ranks are on {with_ranks:?}") };
        Ok((job, first, second))
    }

    /// The worker on that machine ends, in peace.
    async fn expect_left(&mut self, machine: usize) -> Result<()> {
        let ended = self.cluster.workers[machine].ended().await?;
        ensure!(ended.success(), "the worker ended with {ended}");
        Ok(())
    }

    /// Which machines have ranks of the job.
    async fn with_ranks(&self) -> Result<Vec<usize>> {
        let workers = self.cluster.list_workers().await?;
        let busy: Vec<&str> = workers
            .iter()
            .filter(|worker| !worker.job_id.is_empty())
            .map(|worker| worker.worker_id.as_str())
            .collect();
        let all = self.cluster.workers.iter().enumerate();
        Ok(all.filter(|(_, worker)| busy.contains(&worker.id.as_str())).map(|(at, _)| at).collect())
    }
}

/// What the job learns where nothing happens to it.
async fn learned_in_peace(machines: &Machines<'_>) -> Result<Vec<u8>> {
    let job = machines.submit().await?;
    machines.cluster.wait_for_success(&job).await?;
    machines.cluster.learned(&job, "peace").await
}

#[tokio::test]
async fn a_machine_that_ec2_takes_away_costs_no_step() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut machines = Machines::start(&sandbox, "aws", &["--gradient-takes=60"]).await?;
    let expected = learned_in_peace(&machines).await?;
    // 1. One in mid-job, the third takes its place; services that hang, lie and fail are no notice.
    let (job, first, second) = machines.begun().await?;
    machines.services[first].says(Says::Taken);
    for other in (0..3).filter(|other| *other != first) {
        machines.services[other].says(if other == second { Says::Hangs } else { Says::Lies });
    }
    machines.expect_left(first).await?;
    ensure!(machines.cluster.job(&job).await?.step < STEPS, "the job was done before");
    machines.cluster.expect_learned(&job, &expected, STEPS).await?;
    // 2. Both at once: another machine goes on from what they left.
    let (job, first, second) = machines.begun().await?;
    machines.services[first].says(Says::Rebalance);
    machines.services[second].says(Says::Event);
    machines.expect_left(first).await?;
    machines.expect_left(second).await?;
    ensure!(machines.cluster.job(&job).await?.step < STEPS, "the job was done before");
    machines.add("worker-4", "aws", &["--gradient-takes=60"]).await?;
    machines.cluster.expect_learned(&job, &expected, STEPS).await?;
    Ok(())
}

#[tokio::test]
async fn azure_is_told_that_the_worker_has_left() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut machines = Machines::start(&sandbox, "azure", &["--gradient-takes=60"]).await?;
    let expected = learned_in_peace(&machines).await?;
    let (job, first, second) = machines.begun().await?;
    machines.services[first].says(Says::Taken);
    machines.services[second].says(Says::Others);
    machines.expect_left(first).await?;
    ensure!(machines.cluster.job(&job).await?.step < STEPS, "the job was done before");
    machines.cluster.expect_learned(&job, &expected, STEPS).await?;
    let acknowledged =
        |machine: usize| machines.services[machine].heard().contains(&"acknowledged e-1".to_owned());
    ensure!(
        acknowledged(first) && !acknowledged(second),
        "{first} {second} {:?}",
        machines.services.iter().map(Metadata::heard).collect::<Vec<_>>()
    );
    Ok(())
}

#[tokio::test]
async fn a_machine_that_goes_while_its_job_prepares_is_replaced() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut machines = Machines::start(&sandbox, "aws", &["--load-takes=12000"]).await?;
    let expected = learned_in_peace(&machines).await?;
    let job = machines.submit().await?;
    let ranks = || async { Ok(Some(machines.with_ranks().await?).filter(|ranks| ranks.len() == 2)) };
    let with_ranks = until("the job has its ranks", SOON, ranks).await?;
    machines.services[with_ranks[0]].says(Says::Taken);
    machines.expect_left(with_ranks[0]).await?;
    ensure!(machines.cluster.job(&job).await?.step == 0, "it trained already");
    machines.cluster.expect_learned(&job, &expected, STEPS).await
}

#[tokio::test]
async fn doctor_names_the_machine_and_says_when_the_cloud_is_silent() -> Result<()> {
    let service = Metadata::start().await?;
    let doctor = async |provider: &str| {
        let mut doctor = Command::new(places::program(WORKER)?);
        doctor
            .args(["doctor", "--output", "json"])
            .env("RINGTUNE__CLOUD__PROVIDER", provider)
            .env("RINGTUNE__CLOUD__ENDPOINT", &service.endpoint);
        let report: serde_json::Value = serde_json::from_str(finish(&mut doctor).await?.stdout.trim())?;
        let checks = report["checks"].as_array().context("checks")?;
        let check = checks.iter().find(|check| check["name"] == "cloud").context("a check of the cloud")?;
        anyhow::Ok((check["verdict"].to_string(), check["found"].to_string()))
    };
    let good = |found: &str| ("\"good\"".to_owned(), format!("\"{found}\""));
    ensure!(doctor("aws").await? == good("Aws: m7i.4xlarge in zone eu-west-1a"));
    ensure!(doctor("azure").await? == good("Azure: Standard_D4s_v6 in zone 1"));
    service.says(Says::Fails);
    let (verdict, found) = doctor("aws").await?;
    ensure!(verdict == "\"warn\"" && found.contains("500"), "{found}");
    Ok(())
}

#[tokio::test]
async fn doctor_warns_of_a_neighbour_in_another_zone() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let machines = Machines::start(&sandbox, "azure", &[]).await?;
    let mut doctor = Command::new(places::program(WORKER)?);
    doctor
        .args(["doctor", "--insecure", "--output", "json", "--ring", &machines.cluster.workers[0].grpc])
        .env("RINGTUNE__CLOUD__PROVIDER", "aws")
        .env("RINGTUNE__CLOUD__ENDPOINT", &machines.services[0].endpoint);
    let report: serde_json::Value = serde_json::from_str(finish(&mut doctor).await?.stdout.trim())?;
    let checks = report["checks"].as_array().context("checks")?;
    let check = checks.iter().find(|check| check["name"] == "zone").with_context(|| report.to_string())?;
    ensure!(check["verdict"] == "warn" && check["found"] == "eu-west-1a here, 1 there", "{check}");
    Ok(())
}

//! `ringtune debug bundle`: what is in it, and above all what is not.

use std::{collections::BTreeMap, fs, io::Read as _, os::unix::fs::PermissionsExt as _, path::Path};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{Cluster, Job, Sandbox, daemon::Launch, job::text, process::finish};

/// A private key as its file has it.
const KEY: &str =
    "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIPlantedKey0\nPlantedKey1\n-----END PRIVATE KEY-----";
/// What is planted everywhere, one line each.
const SECRETS: [&str; 7] = [
    "rtj1.PlantedJoin-0_123",
    "rta1.PlantedAccess-0_123",
    "at https://ada:PlantedWord@mirror.example/x",
    "Authorization: Bearer PlantedBearer0123",
    "AWS_SECRET_ACCESS_KEY=PlantedCloud/0123",
    "AKIAPLANTEDKEY012345 is its id",
    "HF_TOKEN=hf_PlantedHubPlantedHub0123",
];

/// All kinds of secrets, each on lines of its own.
fn planted() -> String {
    format!("{}\n{KEY}\n", SECRETS.join("\n"))
}

fn unpacked(file: &Path) -> Result<BTreeMap<String, String>> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(file)?));
    let mut files = BTreeMap::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.to_string_lossy().into_owned();
        let name = name.split_once('/').context("all is in one folder")?.1.to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text)?;
        files.insert(name, text);
    }
    Ok(files)
}

fn no_secrets(files: &BTreeMap<String, String>) -> Result<()> {
    for (name, text) in files {
        let found = text.lines().find(|line| line.to_lowercase().contains("planted"));
        ensure!(found.is_none(), "{name} has {found:?}");
        ensure!(!name.to_lowercase().contains("planted"), "{name}");
    }
    Ok(())
}

/// A machine whose settings, journal and environment hold secrets.
fn machine(sandbox: &Sandbox) -> Result<()> {
    let settings = sandbox.path("etc");
    fs::create_dir(&settings)?;
    let toml = format!("# {}\n[log]\nfilter = \"info\"\n", planted().replace('\n', "\n# "));
    fs::write(settings.join("coordinator.toml"), toml)?;
    fs::write(settings.join("worker-0.env"), format!("{}\nRINGTUNE_CPUS=0-3\n", planted()))?;
    fs::write(settings.join("key.pem"), "planted: this file is never read")?;
    fs::create_dir(sandbox.path("bin"))?;
    fs::write(sandbox.path("journal"), format!("started\n{}ended\n", planted()))?;
    let journal = format!("#!/bin/sh\necho \"asked: $*\"\ncat '{}'\n", text(&sandbox.path("journal")));
    let program = sandbox.path("bin").join("journalctl");
    fs::write(&program, journal)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let logs = sandbox.path("state/ringtune/up");
    fs::create_dir_all(&logs)?;
    fs::write(logs.join("coordinator.log"), format!("here\n{}", planted()))?;
    Ok(())
}

#[tokio::test]
async fn a_bundle_of_a_secured_cluster_has_its_metrics() -> Result<()> {
    let sandbox = Sandbox::new()?;
    machine(&sandbox)?;
    let cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator().over_tls()).await?;
    let door = cluster.coordinator.door();
    let http = format!("https://{}", cluster.coordinator.http);
    let credentials = door.variables().into_iter().find(|(name, _)| *name == "RINGTUNE_CREDENTIALS");
    let (_, credentials) = credentials.context("an administrator's credentials")?;
    let more = ["--coordinator", &door.url(), "--credentials", &credentials, "--http", &http, "--no-logs"];
    let files = bundle(&sandbox, "secured.tar.gz", &more).await?;
    let missing = files.get("missing.txt");
    let metrics = files.get("metrics/coordinator.txt").with_context(|| format!("{missing:?}"))?;
    ensure!(metrics.contains("ringtune_jobs"), "{metrics}");
    ensure!(files["cluster/whoami.json"].contains("admin") || files["cluster/whoami.json"].contains("ADMIN"));
    ensure!(!files.values().any(|text| text.contains("PRIVATE KEY")), "a key is in it");
    Ok(())
}

async fn bundle(sandbox: &Sandbox, name: &str, more: &[&str]) -> Result<BTreeMap<String, String>> {
    let (file, settings) = (sandbox.path(name), text(&sandbox.path("etc")));
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command =
        sandbox.ringtune(&["debug", "bundle", "-o", &text(&file), "--settings-dir", &settings])?;
    command.args(more).env("PATH", format!("{}:{path}", text(&sandbox.path("bin"))));
    command.env("RINGTUNE__LOG__FILTER", "planted").env("HF_TOKEN", "hf_PlantedHubPlantedHub0123");
    finish(&mut command).await?.expect_code(0)?;
    ensure!(fs::metadata(&file)?.permissions().mode() & 0o077 == 0, "others may read it");
    let files = unpacked(&file)?;
    no_secrets(&files)?;
    Ok(files)
}

#[tokio::test]
async fn a_bundle_has_what_a_report_needs_and_no_secret() -> Result<()> {
    let sandbox = Sandbox::new()?;
    machine(&sandbox)?;
    let cluster = Cluster::start_fake(&sandbox, 1).await?;
    let job = Job::toy()?
        .set("name", "rta1.PlantedAccess-0_123")
        .set("train.max_train_steps", 3)
        .set("train.templates", vec!["a photo of a {}", "rtj1.PlantedJoin-0_123 {}"])
        .set("cluster.world_size", 1);
    let id = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    cluster.wait_for_success(&id).await?;
    let url = cluster.coordinator.door().url();
    let http = format!("http://{}", cluster.coordinator.http);
    let files =
        bundle(&sandbox, "full.tar.gz", &["--coordinator", &url, "--http", &http, "--job", &id]).await?;
    let has = |name: &str, word: &str| {
        let found = files.get(name).with_context(|| format!("{name} is not among {:?}", files.keys()))?;
        ensure!(found.contains(word), "{name} has no {word:?}: {found}");
        Ok(())
    };
    has("README.txt", "settings/")?;
    has("versions.txt", "ringtune-coordinator")?;
    has("environment.txt", "RINGTUNE__LOG__FILTER")?;
    has("doctor.txt", "memory")?;
    has("logs/ringtune-coordinator.log", "--since=-86400s")?;
    has("logs/ringtune-coordinator.log", "[removed]")?;
    has("logs/up/coordinator.log", "here")?;
    has("cluster/cluster.json", "workers_idle")?;
    has("cluster/workers.jsonl", "numerics_class")?;
    has("cluster/whoami.json", "time")?;
    has("jobs.jsonl", &id)?;
    has(&format!("jobs/{id}/job.json"), "[removed]")?;
    has(&format!("jobs/{id}/events.jsonl"), "state_change")?;
    has(&format!("jobs/{id}/steps.jsonl"), "loss")?;
    has(&format!("jobs/{id}/artifacts.jsonl"), "sha256")?;
    has("metrics/coordinator.txt", "ringtune_jobs")?;
    has("system/proc-meminfo", "MemTotal")?;
    ensure!(files.keys().any(|name| name.ends_with("worker-0.env")), "no settings of the unit");
    ensure!(!files.keys().any(|name| name.contains("key.pem")), "a key file was read");
    Ok(())
}

#[tokio::test]
async fn a_bundle_is_made_without_a_coordinator_and_never_over_a_file() -> Result<()> {
    let sandbox = Sandbox::new()?;
    machine(&sandbox)?;
    let away = ["--coordinator", "http://127.0.0.1:1", "--no-logs"];
    let files = bundle(&sandbox, "local.tar.gz", &away).await?;
    ensure!(files["missing.txt"].contains("what the coordinator knows"), "{}", files["missing.txt"]);
    ensure!(files["README.txt"].contains("Logs were left out"), "{}", files["README.txt"]);
    ensure!(
        !files.keys().any(|name| name.starts_with("logs/") || name.starts_with("jobs/")),
        "{:?}",
        files.keys()
    );
    let before = fs::read(sandbox.path("local.tar.gz"))?;
    let again = sandbox.finish(&["debug", "bundle", "-o", &text(&sandbox.path("local.tar.gz"))]).await?;
    ensure!(again.expect_code(1)?.stderr.contains("it is there already"), "it does not say why");
    ensure!(fs::read(sandbox.path("local.tar.gz"))? == before, "the file was changed");
    let unwritable = sandbox.finish(&["debug", "bundle", "-o", "/proc/x.tar.gz"]).await?;
    unwritable.expect_code(1)?;
    Ok(())
}

//! The images, run as a platform runs them: `make images-test`.
//!
//! Needs root, podman, skopeo, oci-image-tool, and what `make images` made.

use std::{fs, process::Command as Blocking};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Sandbox,
    job::text,
    places,
    process::{Finished, finish},
    tools,
    wait::{SOON, until},
};
use tokio::process::Command;

/// crun, the other runtime, wants more than containers within containers may have.
const RUNTIME: [&str; 4] = ["--runtime", "runc", "--cgroup-manager", "cgroupfs"];
/// As strict as platforms are: nothing can be written but one volume, and no capability is left.
const STRICT: [&str; 7] = [
    "--read-only",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--ulimit=nofile=16384:16384",
    "--ulimit=nproc=4096:4096",
    "--memory=4g",
    "--detach",
];
/// Where the models and the job are inside.
const MODELS: &str = "/srv/ringtune/models";
const SETTINGS: [&str; 4] = ["--set", "cluster.min_world_size=1", "--set", "cluster.threads_per_rank=1"];

/// Containers, their volumes and their network, which go with it.
struct Pod {
    version: String,
    network: String,
    names: Vec<String>,
}

impl Pod {
    async fn start() -> Result<Self> {
        let said = finish(Command::new(places::program("ringtune")?).arg("--version")).await?.stdout;
        let version = said.trim().strip_prefix("ringtune ").context("a version")?.to_owned();
        let network = format!("ringtune-test-{}", std::process::id());
        let pod = Self { version, network, names: Vec::new() };
        pod.podman(&["network", "create", &pod.network]).await?;
        Ok(pod)
    }

    async fn podman(&self, arguments: &[&str]) -> Result<Finished> {
        finish(Command::new("podman").args(RUNTIME).args(arguments)).await?.expect_code(0)
    }

    /// Starts a container of that name, which others find by it.
    async fn run(&mut self, name: &str, image: &str, more: &[&str], arguments: &[&str]) -> Result<()> {
        self.names.push(name.to_owned());
        let image = format!("localhost/ringtune-{image}:{}", self.version);
        let volume = format!("{}-{name}:/var/lib/ringtune", self.network);
        let models = format!("{}:{MODELS}:ro", text(&places::repository().join("tests/fixtures")));
        let place = ["--name", name, "--hostname", name, "--network", &self.network];
        let folders = ["--volume", &volume, "--volume", &models];
        let line = [&["run"][..], &STRICT, &place, &folders, more, &[&image], arguments].concat();
        self.podman(&line).await?;
        Ok(())
    }

    /// The command in the coordinator's container.
    async fn ringtune(&self, arguments: &[&str]) -> Result<Finished> {
        self.podman(&[&["exec", "coordinator", "ringtune"][..], arguments].concat()).await
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let podman = |arguments: &[&str]| {
            // What is not there need not go.
            let _ = Blocking::new("podman").args(RUNTIME).args(arguments).output();
        };
        for name in &self.names {
            podman(&["rm", "--force", "--time", "0", name]);
            podman(&["volume", "rm", "--force", &format!("{}-{name}", self.network)]);
        }
        podman(&["network", "rm", "--force", &self.network]);
    }
}

#[tokio::test]
#[ignore = "needs the images: make images-test"]
async fn a_cluster_of_images_trains_the_demos_job_though_a_worker_dies() -> Result<()> {
    if !tools::has(&["podman"], "podman runc netavark aardvark-dns iptables")? {
        return Ok(());
    }
    let sandbox = Sandbox::new()?;
    let job = text(&places::repository().join("tests/fixtures/demo/green-star.toml"));
    let line = [&["run", &job, "--workers", "2", "-o", "here"][..], &SETTINGS].concat();
    sandbox.finish(&line).await?.expect_code(0)?;
    let expected = fs::read(sandbox.path("here/learned_embeds.safetensors"))?;
    // 1. The coordinator, healthy, lets two workers in.
    let mut pod = Pod::start().await?;
    let listen = ["--listen", "0.0.0.0:7070", "--http-listen", "0.0.0.0:7071"];
    pod.run("coordinator", "coordinator", &[], &listen).await?;
    let healthy = || async {
        let asked = pod.podman(&["healthcheck", "run", "coordinator"]).await;
        Ok(asked.ok().map(|_| ()))
    };
    until("the coordinator is healthy", SOON, healthy).await?;
    let token = pod.ringtune(&["token", "create", "--role", "worker", "--uses", "2"]).await?.stdout;
    fs::write(sandbox.path("token"), token)?;
    let secret = format!("{}:/run/join-token:ro", text(&sandbox.path("token")));
    for name in ["worker-1", "worker-2"] {
        let join =
            ["--coordinator", "https://coordinator:7070", "--join-file", "/run/join-token", "--threads", "1"];
        let listen = ["--listen", "0.0.0.0:7080", "--http-listen", "127.0.0.1:7081"];
        pod.run(name, "worker", &["--volume", &secret], &[listen.as_slice(), &join].concat()).await?;
    }
    let joined = || async {
        let listed = pod.ringtune(&["workers", "--output", "json"]).await?.stdout;
        Ok((listed.matches("\"IDLE\"").count() == 2).then_some(()))
    };
    until("two workers join", SOON, joined).await?;
    // 2. The demo's job, of which one worker does not see the end.
    let job = format!("{MODELS}/demo/green-star.toml");
    pod.ringtune(&[&["submit", &job][..], &SETTINGS].concat()).await?;
    let begun = || async {
        let shown = pod.ringtune(&["status", "last", "--output", "json"]).await?.stdout;
        let job: serde_json::Value = serde_json::from_str(shown.lines().next().unwrap_or_default())?;
        Ok(job["step"].as_i64().filter(|step| *step >= 50))
    };
    until("it trains", SOON, begun).await?;
    pod.podman(&["kill", "worker-2"]).await?;
    pod.ringtune(&["watch", "last"]).await?.expect_said(&["re-formed", "succeeded: 300 steps done"])?;
    // 3. The same bytes, and an end in peace.
    pod.ringtune(&["fetch", "last", "-o", "/var/lib/ringtune/out"]).await?;
    let copy = sandbox.path("learned");
    pod.podman(&["cp", "coordinator:/var/lib/ringtune/out/learned_embeds.safetensors", &text(&copy)]).await?;
    ensure!(fs::read(copy)? == expected, "other bytes");
    pod.podman(&["stop", "--time", "60", "worker-1"]).await?;
    let code = pod.podman(&["inspect", "--format", "{{.State.ExitCode}}", "worker-1"]).await?.stdout;
    ensure!(code.trim() == "0", "the worker ended with {code}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs the images: make images-test"]
async fn images_are_whole_and_small() -> Result<()> {
    if !tools::has(&["oci-image-tool"], "oci-image-tool")? {
        return Ok(());
    }
    let version = env!("CARGO_PKG_VERSION");
    for (name, most) in [("coordinator", 120_000_000), ("worker", 300_000_000), ("cli", 120_000_000)] {
        let layout = places::repository().join("target/images").join(name);
        let reference = format!("name={version}");
        let validate = ["validate", "--type", "image", "--ref", &reference];
        finish(Command::new("oci-image-tool").args(validate).arg(&layout)).await?.expect_code(0)?;
        let blobs = fs::read_dir(layout.join("blobs/sha256"))?.map(|blob| Ok(blob?.metadata()?.len()));
        let bytes = blobs.sum::<Result<u64>>()?;
        ensure!(bytes <= most, "{name} has {bytes} bytes");
    }
    Ok(())
}

//! The packages, installed on clean Debian systems as an administrator would: `make packages-test`; and as the machines of a
//! cloud do: `make clouds-test`.
//!
//! Needs root, debootstrap, network namespaces and Debian's mirror; takes a quarter of an hour.

mod clouds;
mod root;
mod service;
mod upgrade;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{Sandbox, chaos::network::Network, places, wait::until};

use root::{FIXTURES, Root};
use service::Service;

const COORDINATOR: &str = "ringtune-coordinator.service";
const WORKER: &str = "ringtune-worker.service";
/// Path of the demo's job inside.
const JOB: &str = "/srv/ringtune/models/demo/green-star.toml";
/// Until a job of the demo has ended on a busy machine.
const LONG: Duration = Duration::from_secs(600);

/// The packages that `make packages` made; `names` without their versions.
fn packages(folder: &Path, names: &[&str]) -> Result<Vec<PathBuf>> {
    let find = |name: &&str| -> Result<PathBuf> {
        let files = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        let mut found = files.filter_map(|file| Some(file.ok()?.path())).filter(|path| {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            file.starts_with(&format!("{name}_")) && file.ends_with(".deb")
        });
        found.next().with_context(|| format!("{} has no package {name}: make packages", folder.display()))
    };
    names.iter().map(find).collect()
}

fn made() -> PathBuf {
    places::repository().join("target/packages")
}

/// The archive with a clean Debian.
fn debian() -> Result<PathBuf> {
    let script = places::repository().join("deploy/packages/root.sh");
    let done = Command::new(script).stderr(std::process::Stdio::inherit()).output()?;
    ensure!(done.status.success(), "no clean Debian");
    Ok(PathBuf::from(String::from_utf8(done.stdout)?.trim()))
}

/// Sets keys in a daemon's settings file, "section.key" and value, where the package's file has them as comments.
fn set(root: &Root, file: &str, settings: &[(&str, &str)]) -> Result<()> {
    let mut text = fs::read_to_string(root.path(file))?;
    for (name, value) in settings {
        let (section, key) = name.split_once('.').context("section.key")?;
        let start = text.find(&format!("\n[{section}]\n")).with_context(|| format!("no [{section}]"))?;
        let comment = format!("\n#{key} = ");
        let line = text[start..].find(&comment).with_context(|| format!("no {name}"))? + start + 1;
        let end = text[line..].find('\n').context("a line's end")? + line;
        text.replace_range(line..end, &format!("{key} = {value}"));
    }
    root.write(file, &text)
}

fn quoted(value: &str) -> String {
    format!("\"{value}\"")
}

/// The result of `make demo` on this machine.
async fn learned_here(sandbox: &Sandbox) -> Result<Vec<u8>> {
    let job = places::repository().join("tests/fixtures/demo/green-star.toml");
    sandbox.finish(&["run", &job.to_string_lossy(), "--workers", "2", "-o", "here"]).await?.expect_code(0)?;
    Ok(fs::read(sandbox.path("here/learned_embeds.safetensors"))?)
}

/// A coordinator and two workers on nodes of their own, installed, let in by tokens and running.
struct Nodes {
    roots: Vec<Root>,
    services: Vec<Service>,
    url: String,
    _network: Network,
}

impl Nodes {
    async fn start() -> Result<Self> {
        let debian = debian()?;
        let network = Network::start(3)?.context("networks of their own need root and iproute2")?;
        let mut roots = Vec::new();
        for node in 1..=3 {
            roots.push(Root::new(&debian, network.wrapper(node)).await?);
        }
        let [a, b, c] = [0, 1, 2].map(|index| &roots[index]);
        // 1. The coordinator, reached from the network.
        a.install(&packages(&made(), &["ringtune", "ringtune-coordinator"])?).await?;
        let (grpc, http) = (format!("{}:7070", network.address(1)), format!("{}:7071", network.address(1)));
        let listen = [("grpc.listen", quoted(&grpc)), ("http.listen", quoted(&http))];
        set(
            a,
            "/etc/ringtune/coordinator.toml",
            &listen.each_ref().map(|(key, value)| (*key, value.as_str())),
        )?;
        let mut services = vec![Service::start(a, COORDINATOR).await?];
        let url = format!("https://{grpc}");
        // 2. The workers, with a token each.
        for (root, node) in [(b, 2), (c, 3)] {
            root.install(&packages(&made(), &["ringtune-worker", "ringtune-libtorch"])?).await?;
            let token =
                a.run(&["ringtune", "token", "create", "--role", "worker", "--coordinator", &url]).await?;
            root.write("/etc/ringtune/join-token", &token.expect_code(0)?.stdout)?;
            // One thread, as `run` gives to each of two on two processors: the bits depend on it.
            let address = network.address(node);
            let settings = [
                ("grpc.listen", quoted(&format!("{address}:7080"))),
                ("http.listen", quoted(&format!("{address}:7081"))),
                ("coordinator.url", quoted(&url)),
                ("compute.threads", "1".to_owned()),
            ];
            set(
                root,
                "/etc/ringtune/worker.toml",
                &settings.each_ref().map(|(key, value)| (*key, value.as_str())),
            )?;
            services.push(Service::start(root, WORKER).await?);
        }
        let nodes = Self { roots, services, url, _network: network };
        nodes.all_idle().await?;
        Ok(nodes)
    }

    /// A command of the coordinator's administrator, and its output.
    async fn ringtune(&self, arguments: &[&str]) -> Result<String> {
        let words = [&["ringtune"], arguments, &["--coordinator", &self.url]].concat();
        Ok(self.roots[0].run(&words).await?.expect_code(0)?.stdout)
    }

    async fn all_idle(&self) -> Result<()> {
        let idle = || async {
            let listed = self.ringtune(&["workers", "--output", "json"]).await?;
            Ok((listed.matches("IDLE").count() == 2).then_some(()))
        };
        until("both workers join", LONG, idle)
            .await
            .with_context(|| self.services.iter().map(Service::log).collect::<Vec<_>>().join("\n--\n"))
    }

    /// Submits the demo's job.
    async fn submit(&self) -> Result<String> {
        let said = self.ringtune(&["submit", JOB]).await?;
        Ok(said.lines().next().context("the job's id")?.trim().to_owned())
    }

    /// Waits for a job's end and returns what it learned.
    async fn learned(&self, job: &str) -> Result<Vec<u8>> {
        self.ringtune(&["watch", job]).await?;
        self.ringtune(&["fetch", job, "-o", "/root/out"]).await?;
        let file = self.roots[0].path("/root/out/learned_embeds.safetensors");
        let learned = fs::read(&file)?;
        fs::remove_dir_all(self.roots[0].path("/root/out"))?;
        Ok(learned)
    }

    /// Waits until a job has come to a step.
    async fn step(&self, job: &str, step: i64) -> Result<()> {
        let there = || async {
            let status = self.ringtune(&["status", job, "--output", "json"]).await?;
            let status: serde_json::Value = serde_json::from_str(&status)?;
            Ok(status["step"].as_i64().is_some_and(|done| done >= step).then_some(()))
        };
        until("the job comes to its step", LONG, there).await
    }
}

#[tokio::test]
#[ignore = "make packages-test"]
async fn three_nodes_are_installed_joined_and_learn_what_the_demo_learns() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let nodes = Nodes::start().await?;
    for (root, pages) in [(&nodes.roots[0], "ringtune"), (&nodes.roots[1], "ringtune-worker")] {
        let listed = root.run(&["dpkg", "-L", pages]).await?.expect_code(0)?.stdout;
        ensure!(listed.contains("/usr/share/man/") && listed.contains("third-party"), "{listed}");
    }
    let licences = nodes.roots[1].run(&["cat", "/usr/share/doc/ringtune-libtorch/copyright"]).await?;
    for owner in ["PyTorch", "NVIDIA", "Facebook", "Intel Corporation"] {
        ensure!(licences.stdout.contains(owner), "no word of {owner}");
    }
    let job = nodes.submit().await?;
    let learned = nodes.learned(&job).await?;
    ensure!(learned == learned_here(&sandbox).await?, "installed workers learn something else");
    // Tokens are used up, and nobody else reads what is kept.
    let state = fs::metadata(nodes.roots[0].path("/var/lib/ringtune"))?;
    ensure!(std::os::unix::fs::MetadataExt::uid(&state) != 0);
    for service in nodes.services {
        service.stop().await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "make packages-test"]
async fn packages_installed_over_a_running_job_change_nothing_of_it() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut nodes = Nodes::start().await?;
    let job = nodes.submit().await?;
    nodes.step(&job, 20).await?;
    // 1. The same packages again: the files are replaced, the daemons go on with those that they have.
    nodes.roots[0].install(&packages(&made(), &["ringtune", "ringtune-coordinator"])?).await?;
    nodes.roots[1].install(&packages(&made(), &["ringtune-worker", "ringtune-libtorch"])?).await?;
    ensure!(!nodes.services[0].runs_what_is_installed()? && !nodes.services[1].runs_what_is_installed()?);
    // 2. What the packages then ask systemd for: a restart of each.
    for (index, name) in [(0, COORDINATOR), (1, WORKER)] {
        nodes.services.remove(index).stop().await?;
        nodes.services.insert(index, Service::start(&nodes.roots[index], name).await?);
        ensure!(nodes.services[index].runs_what_is_installed()?);
    }
    ensure!(nodes.learned(&job).await? == learned_here(&sandbox).await?, "the job noticed");
    Ok(())
}

#[tokio::test]
#[ignore = "make packages-test"]
async fn a_package_that_goes_leaves_what_is_not_its_own() -> Result<()> {
    let root = Root::new(&debian()?, Vec::new()).await?;
    let all = ["ringtune", "ringtune-coordinator", "ringtune-worker", "ringtune-libtorch"];
    let first = root.install(&packages(&made(), &all)?).await?;
    ensure!(first.stdout.contains("/etc/ringtune/worker.toml"), "what to do next: {}", first.stdout);
    set(&root, "/etc/ringtune/coordinator.toml", &[("limits.uploads", "65")])?;
    let coordinator = Service::start(&root, COORDINATOR).await?;
    coordinator.stop().await?;
    root.apt(&["remove", "--yes", "ringtune-coordinator"]).await?.expect_code(0)?;
    ensure!(fs::read_to_string(root.path("/etc/ringtune/coordinator.toml"))?.contains("\nuploads = 65\n"));
    // Installed again, it goes on from where it was.
    root.install(&packages(&made(), &["ringtune-coordinator"])?).await?;
    Service::start(&root, COORDINATOR).await?.stop().await?;
    root.apt(&[&["purge", "--yes"], &all[..]].concat()).await?.expect_code(0)?;
    ensure!(
        !root.path("/etc/ringtune/coordinator.toml").exists() && !root.path("/usr/lib/ringtune").exists()
    );
    // Jobs and keys are nobody's to throw away but their owner's.
    ensure!(root.path("/var/lib/ringtune/ringtune.sqlite").is_file());
    Ok(())
}

#[tokio::test]
#[ignore = "make packages-test"]
async fn the_tarball_runs_from_any_folder() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let root = Root::new(&debian()?, Vec::new()).await?;
    let tarball = fs::read_dir(made())?
        .filter_map(|file| Some(file.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "xz"))
        .context("no tarball: make packages")?;
    // xz is in no clean Debian.
    let folder = "/opt/any folder/ü";
    fs::create_dir_all(root.path(folder))?;
    let done = Command::new("tar").arg("-xf").arg(tarball).arg("-C").arg(root.path(folder)).status()?;
    ensure!(done.success());
    let unpacked = fs::read_dir(root.path(folder))?.next().context("a folder")??;
    let ringtune = format!("{folder}/{}/bin/ringtune", unpacked.file_name().to_string_lossy());
    root.run(&[&ringtune, "run", JOB, "--workers", "2", "-o", "/root/out"]).await?.expect_code(0)?;
    let learned = fs::read(root.path("/root/out/learned_embeds.safetensors"))?;
    ensure!(learned == learned_here(&sandbox).await?, "the tarball's programs learn something else");
    ensure!(root.path(FIXTURES).is_dir());
    Ok(())
}

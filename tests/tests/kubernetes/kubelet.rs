//! Pods of a JobSet, played on this machine: each container's command line and environment as they are rendered, with folders
//! of a sandbox in the place of volumes, and free ports.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Sandbox,
    job::text,
    places,
    process::send_signal,
    wait::{SOON, until},
};
use rustix::process::Signal;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// The exit code of what was asked to end and is needed again.
const ASKED: i32 = 4;

/// Its first line of output.
async fn first_line(child: &mut Child) -> Result<String> {
    let mut lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
    let line = timeout(SOON, lines.next_line()).await??.context("it ended")?;
    // Whatever else it says is read, so that it never waits.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(line)
}

/// The port of a daemon's gRPC server and of its pages, once it listens.
async fn ports(daemon: &mut Child) -> Result<(u16, u16)> {
    let said: Value = serde_json::from_str(&first_line(daemon).await?)?;
    let port = |name: &str| {
        let port = said[name].as_str().and_then(|address| address.rsplit(':').next()?.parse().ok());
        port.with_context(|| format!("{name} in {said}"))
    };
    Ok((port("grpc")?, port("http")?))
}

/// A coordinator on the network, with its URL.
pub(crate) async fn coordinator(sandbox: &Sandbox) -> Result<(Child, String)> {
    let mut command = Command::new(places::program("ringtune-coordinator")?);
    let state = text(&sandbox.path("coordinator"));
    command.args([
        "--state-dir",
        &state,
        "--listen",
        "0.0.0.0:0",
        "--http-listen",
        "127.0.0.1:0",
        "--announce",
    ]);
    let mut daemon = piped(&mut command, Stdio::null())?;
    let (port, _) = ports(&mut daemon).await?;
    Ok((daemon, format!("https://localhost:{port}")))
}

fn piped(command: &mut Command, stderr: Stdio) -> Result<Child> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).kill_on_drop(true).spawn();
    child.with_context(|| format!("start {command:?}"))
}

/// What pods call to change Secrets, and the kubelet, which mounts them.
pub(crate) struct ApiServer {
    _process: Child,
    folder: PathBuf,
    port: String,
    python: Command,
}

impl ApiServer {
    /// With one empty Secret.
    pub(crate) async fn start(sandbox: &Sandbox, python: Command, secret: &str) -> Result<Self> {
        let folder = sandbox.path("api");
        fs::create_dir_all(folder.join("secrets").join(secret))?;
        let mut command = Command::new(python.as_std().get_program());
        command.arg(places::repository().join("tests/platforms/api_server.py")).arg(&folder);
        let mut process = piped(&mut command, Stdio::inherit())?;
        let port = first_line(&mut process).await?;
        Ok(Self { _process: process, folder, port, python })
    }

    /// What the kubelet tells all containers.
    pub(crate) fn environment(&self) -> [(&'static str, &str); 2] {
        [("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", &self.port)]
    }

    /// The folder of the pods' service account.
    pub(crate) fn account(&self) -> PathBuf {
        self.folder.join("account")
    }

    /// Where the entries of a Secret are mounted.
    pub(crate) fn secret(&self, name: &str) -> PathBuf {
        self.folder.join("secrets").join(name)
    }

    /// Asks a probe of a container, as the kubelet does: it checks no certificate, and has none.
    async fn expect_ready(&self, container: &Value, http: u16) -> Result<()> {
        let get = &container["readinessProbe"]["httpGet"];
        ensure!(get["port"] == "http" && get["scheme"] == "HTTPS", "{get}");
        let url = format!("https://127.0.0.1:{http}{}", get["path"].as_str().context("a path")?);
        let ask = "import ssl, sys, urllib.request as r; r.urlopen(sys.argv[1], context=ssl._create_unverified_context())";
        let asked = async || {
            let mut probe = Command::new(self.python.as_std().get_program());
            let probe = probe.args(["-c", ask, &url]).stderr(Stdio::null()).status().await?;
            Ok(probe.success().then_some(()))
        };
        until(&url, SOON, asked).await
    }
}

/// The pods of a JobSet.
pub(crate) struct JobSet<'a> {
    sandbox: &'a Sandbox,
    server: &'a ApiServer,
    coordinator: Value,
    node: Value,
    count: u64,
}

/// The processes of a JobSet that was started.
pub(crate) struct Pods {
    coordinator: Child,
    join: Child,
    job: Child,
    nodes: Vec<Child>,
    log: PathBuf,
    /// What the pod of the job is given before it is asked to end.
    sleep: Duration,
}

impl<'a> JobSet<'a> {
    pub(crate) fn of(manifests: &[Value], sandbox: &'a Sandbox, server: &'a ApiServer) -> Result<Self> {
        let set = manifests.iter().find(|manifest| manifest["kind"] == "JobSet").context("a JobSet")?;
        let jobs = set["spec"]["replicatedJobs"].as_array().context("jobs")?;
        let job = |name: &str| {
            let job = jobs.iter().find(|job| job["name"] == name);
            job.map(|job| job["template"]["spec"].clone()).with_context(|| format!("{name} in {set}"))
        };
        let (coordinator, node) = (job("coordinator")?, job("node")?);
        let config =
            manifests.iter().find(|manifest| manifest["kind"] == "ConfigMap").context("a ConfigMap")?;
        let file = config["data"]["job.toml"].as_str().context("a job")?;
        fs::create_dir_all(sandbox.path("config-map"))?;
        fs::write(sandbox.path("config-map/job.toml"), file)?;
        let count = node["parallelism"].as_u64().context("a number of workers")?;
        Ok(Self { sandbox, server, coordinator, node, count })
    }

    /// Starts all pods, for the first or a later time, in the order in which they can do something.
    pub(crate) async fn start(&self, time: u32) -> Result<Pods> {
        let pod = &self.coordinator["template"]["spec"];
        let container = |kind: &str, name: &str| {
            let found = pod[kind].as_array().and_then(|all| all.iter().find(|found| found["name"] == name));
            found.with_context(|| format!("{name} in {pod}"))
        };
        let claim = self.sandbox.path("claim");
        let log = self.sandbox.path(&format!("job-{time}.log"));
        // 1. The sidecars, in their order.
        let daemon = container("initContainers", "coordinator")?;
        let mut coordinator = self.run(pod, daemon, &claim, &[(":7070", ":0"), (":7071", ":0")], None)?;
        let (grpc, http) = ports(&mut coordinator).await?;
        let at = format!("https://localhost:{grpc}");
        self.server.expect_ready(daemon, http).await?;
        let join = self.run(pod, container("initContainers", "join")?, &claim, &[], Some((&at, None)))?;
        // 2. The workers, once the kubelet has what it has to mount.
        let token = self.server.secret("dicoo-join").join("token");
        until("the Secret has a token", SOON, async || Ok(token.exists().then_some(()))).await?;
        let pod_of_node = &self.node["template"]["spec"];
        let node = &pod_of_node["containers"][0];
        let dial = ("https://dicoo-coordinator-0-0.dicoo:7070", at.as_str());
        let mut nodes = Vec::new();
        for number in 0..self.count {
            let disk = self.sandbox.path(&format!("node-{time}-{number}"));
            let mut worker =
                self.run(pod_of_node, node, &disk, &[dial, (":7080", ":0"), (":7081", ":0")], None)?;
            let (_, http) = ports(&mut worker).await?;
            self.server.expect_ready(node, http).await?;
            nodes.push(worker);
        }
        // 3. The main container.
        let command = container("containers", "job")?;
        let job = self.run(pod, command, &claim, &[], Some((&at, Some(&log))))?;
        let seconds =
            command["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().context("a preStop hook")?;
        Ok(Pods { coordinator, join, job, nodes, log, sleep: Duration::from_secs(seconds) })
    }

    /// Starts a container; `client`: the coordinator's address, which is the default's in the pod, and where its log goes.
    fn run(
        &self,
        pod: &Value,
        container: &Value,
        state: &Path,
        replaced: &[(&str, &str)],
        client: Option<(&str, Option<&Path>)>,
    ) -> Result<Child> {
        let texts = |name: &str| -> Vec<&str> {
            container[name].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
        };
        // 1. Volumes are folders here.
        let mut folders = BTreeMap::new();
        for mount in container["volumeMounts"].as_array().context("mounts")? {
            let name = mount["name"].as_str().context("a volume")?;
            let secret = || {
                let volume = pod["volumes"].as_array()?.iter().find(|volume| volume["name"] == name)?;
                Some(self.server.secret(volume["secret"]["secretName"].as_str()?))
            };
            let folder = match name {
                "state" => state.to_owned(),
                "tmp" => self.sandbox.path("tmp"),
                "account" => self.server.account(),
                "job" => self.sandbox.path("config-map"),
                // Where it is on this machine.
                "models" => continue,
                _ => secret().with_context(|| format!("the volume {name}"))?,
            };
            folders.insert(mount["mountPath"].as_str().context("a path")?, text(&folder));
        }
        let here = |given: &str| {
            let mount = folders.iter().find(|(path, _)| given.starts_with(**path));
            let given = mount.map_or(given.to_owned(), |(path, folder)| given.replacen(path, folder, 1));
            replaced.iter().fold(given, |text, (from, to)| text.replace(from, to))
        };
        // 2. The image's entry point, or the container's own.
        let image = container["image"].as_str().and_then(|image| image.rsplit('/').next());
        let program = image.and_then(|image| image.split(':').next()).context("an image")?;
        let program = texts("command").first().copied().unwrap_or(program).to_owned();
        let mut command = Command::new(self.sandbox.path("bin").join(&program));
        command.args(texts("args").into_iter().map(here)).current_dir("/").env_clear();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", text(&self.sandbox.path("bin"))));
        command.env("HOME", self.sandbox.path("home"));
        for variable in container["env"].as_array().into_iter().flatten() {
            let (name, value) = (variable["name"].as_str(), variable["value"].as_str());
            command.env(name.context("a name")?, here(value.context("a value")?));
        }
        command.envs(self.server.environment());
        if program != "ringtune" {
            command.arg("--announce");
        }
        let mut output = Stdio::inherit();
        if let Some((at, log)) = client {
            command.env("RINGTUNE_COORDINATOR", at);
            if let Some(log) = log {
                output = fs::File::create(log)?.into();
            }
        }
        piped(&mut command, output)
    }
}

impl Pods {
    /// Waits until the job has come so far.
    pub(crate) async fn until_step(&self, least: i64) -> Result<()> {
        let begun = || async {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            let step = |line: &str| line.strip_prefix("step ")?.split('/').next()?.parse::<i64>().ok();
            Ok(text.lines().filter_map(step).any(|step| step >= least).then_some(()))
        };
        until("it trains", SOON, begun)
            .await
            .with_context(|| fs::read_to_string(&self.log).unwrap_or_default())
    }

    /// Ends all pods, as the kubelets do: the workers at once, the command once its preStop hook is over, then the sidecars.
    pub(crate) async fn end_in_peace(&mut self) -> Result<()> {
        let begin = Instant::now();
        for node in &self.nodes {
            send_signal(node, Signal::TERM)?;
        }
        for node in &mut self.nodes {
            let code =
                timeout(self.sleep, node.wait()).await.context("a worker outlives the preStop hook")??.code();
            ensure!(code == Some(ASKED), "a worker ended with {code:?}");
        }
        ensure!(begin.elapsed() < self.sleep, "the coordinator would be gone before the workers");
        for (child, code) in [(&mut self.job, ASKED), (&mut self.join, 1), (&mut self.coordinator, 0)] {
            send_signal(child, Signal::TERM)?;
            let ended = timeout(SOON, child.wait()).await??.code();
            ensure!(ended == Some(code), "it ended with {ended:?} instead of {code}");
        }
        Ok(())
    }

    /// Waits for the job's success; the result is its log.
    pub(crate) async fn finish(mut self) -> Result<String> {
        let code = timeout(SOON, self.job.wait()).await??.code();
        let log = fs::read_to_string(&self.log)?;
        ensure!(code == Some(0), "the job's pod ended with {code:?}:\n{log}");
        Ok(log)
    }
}

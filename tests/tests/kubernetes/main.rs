//! The Helm chart: what it renders, checked against the schemas of Kubernetes, and what its pods run.

mod kubelet;

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use kubelet::{ApiServer, JobSet};
use ringtune_tests::{
    Job, Sandbox,
    job::text,
    places, platforms,
    process::{Finished, finish},
};
use serde_json::Value;
use tokio::process::Command;

const LEARNED: &str = "learned_embeds.safetensors";
const STEPS: i64 = 80;
const REGISTRY: &str = "image.registry=registry.example/ringtune";
/// Sets of values, with `job.toml` where a job is given.
const SETS: [&[&str]; 11] = [
    &[],
    &["--set", "monitoring.enabled=true,coordinator.names={ringtune.example},coordinator.storage.class=fast"],
    &["--set", "workers.kind=DaemonSet,workers.perNode=2,workers.numaNodes=2,workers.nodeSelector.amx=yes"],
    &["--set", "workers.nodes=4,workers.perNode=2,workers.spread=DoNotSchedule,workers.graceSeconds=300"],
    &["--set", "name=rt,networkPolicy.enabled=false,podDisruptionBudget.maxUnavailable=50%"],
    &["--set", "priorityClass.create=true,priorityClass.value=-10", "--set", "networkPolicy.clients=null"],
    &["--set", "priorityClassName=batch,image.pullSecrets[0].name=registry,listenAddress=[::]"],
    &[
        "--set-json",
        r#"coordinator.settings={"limits.upload_bytes":68719476736,"log.filter":"info"}"#,
        "--set-json",
        r#"workers.settings={"access.hubs":["https://huggingface.co","https://hub.example"],"ring.local_sockets":false}"#,
        "--set-json",
        r#"workers.tolerations=[{"key":"cpu","operator":"Exists"}]"#,
    ],
    &[
        "--set-file",
        "job.toml=job.toml",
        "--set",
        "job.queue=cpu,job.suspend=true,job.options={--set,train.seed=7}",
    ],
    &[
        "--set-file",
        "job.toml=job.toml",
        "--set",
        "job.kind=TrainJob,models.volume.persistentVolumeClaim.claimName=models",
    ],
    &[
        "--set-file",
        "job.toml=job.toml",
        "--set",
        "job.output.volume.nfs.server=nas,job.output.volume.nfs.path=/out",
    ],
];

/// `helm template` of the chart, or another of its commands, at home in the sandbox.
async fn helm(sandbox: &Sandbox, arguments: &[&str], values: &[&str]) -> Result<Finished> {
    let chart = places::repository().join("deploy/helm/ringtune");
    let mut helm = platforms::tool("helm").await?;
    helm.args(arguments).arg(chart).args(["--set", REGISTRY]).args(values);
    finish(helm.current_dir(sandbox.folder())).await
}

/// The manifests in these files, once they have been checked.
async fn checked(files: &[String]) -> Result<Vec<Value>> {
    let mut check = platforms::tool("python").await?;
    check.arg(places::repository().join("tests/platforms/manifests.py")).args(files);
    finish(&mut check).await?.expect_code(0)?.json_lines()
}

/// The environment of the first container of that name, anywhere in the manifests.
fn environment<'a>(manifests: &'a [Value], kind: &str, container: &str) -> Result<&'a Vec<Value>> {
    let manifest = manifests.iter().find(|manifest| manifest["kind"] == kind).context("a manifest")?;
    let containers = manifest["spec"]["template"]["spec"]["containers"].as_array().context("containers")?;
    let found = containers.iter().find(|found| found["name"] == container).context("a container")?;
    found["env"].as_array().context("an environment")
}

#[tokio::test]
async fn what_the_chart_renders_is_what_kubernetes_takes() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.write_job("job.toml", &Job::toy()?.shared_by(2))?;
    helm(&sandbox, &["lint", "--strict"], &[]).await?.expect_code(0)?;
    let mut files = Vec::new();
    for (number, values) in SETS.iter().enumerate() {
        let rendered = helm(&sandbox, &["template", "dicoo"], values).await?.expect_code(0)?;
        let file = sandbox.path(&format!("{number}.yaml"));
        fs::write(&file, rendered.stdout)?;
        files.push(text(&file));
    }
    let manifests = checked(&files).await?;
    for kind in [
        "StatefulSet",
        "DaemonSet",
        "JobSet",
        "TrainJob",
        "TrainingRuntime",
        "ServiceMonitor",
        "PriorityClass",
    ] {
        ensure!(manifests.iter().any(|manifest| manifest["kind"] == kind), "no {kind} was rendered");
    }
    // Numbers stay whole, lists get commas.
    let settings = checked(&files[7..8]).await?;
    for (kind, container, name, value) in [
        ("StatefulSet", "coordinator", "RINGTUNE__LIMITS__UPLOAD_BYTES", "68719476736"),
        ("StatefulSet", "coordinator", "RINGTUNE__LOG__FILTER", "info"),
    ] {
        let found = environment(&settings, kind, container)?;
        let wanted = serde_json::json!({ "name": name, "value": value });
        ensure!(found.contains(&wanted), "{name}: {found:?}");
    }
    let rendered = fs::read_to_string(&files[7])?;
    ensure!(rendered.contains(r#"value: "https://huggingface.co,https://hub.example""#), "{rendered}");
    Ok(())
}

#[tokio::test]
async fn values_that_contradict_each_other_are_refused_in_a_sentence() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.write_job("job.toml", &Job::toy()?.shared_by(3).without("cluster.min_world_size"))?;
    for (values, says) in [
        (&["--set", "workers.perNode=3,workers.numaNodes=2"][..], "at most one worker a NUMA node"),
        (&["--set", "workers.resources.requests=null"], "limits has cpu = 8, and requests has none"),
        (&["--set-string", "workers.resources.limits.cpu=9"], "requests.cpu = 8 and limits.cpu = 9 differ"),
        (
            &["--set", "workers.resources.limits.cpu=7500m,workers.resources.requests.cpu=7500m"],
            "requests.cpu = 7500m is no whole number",
        ),
        (&["--set", "coordinator.resources.requests=null"], "coordinator.resources.limits has cpu = 2"),
        (&["--set", "workers.kind=DaemonSet,workers.nodes=2"], "workers.nodes is of a StatefulSet"),
        (&["--set-file", "job.toml=job.toml", "--set", "workers.kind=DaemonSet"], "is of a standing cluster"),
        (
            &["--set-file", "job.toml=job.toml"],
            "the job's cluster.world_size = 3, and workers.nodes x workers.perNode = 2",
        ),
        (&["--set", "job.queue=cpu"], "job.queue is given, and no job"),
        (&["--set", "image.registry="], "image.registry is missing"),
        (
            &["--set", "priorityClass.create=true,priorityClassName=batch"],
            "use the class that is there, or make one",
        ),
        (&["--set", "workers.number=2"], "additional properties 'number' not allowed"),
        (&["--set", "workers.graceSeconds=5"], "minimum: got 5, want 15"),
    ] {
        let refused = helm(&sandbox, &["template", "dicoo"], values).await?;
        ensure!(refused.code != Some(0) && refused.stdout.is_empty(), "{values:?}: {}", refused.stdout);
        refused.expect_said(&[says])?;
    }
    Ok(())
}

#[tokio::test]
async fn the_plain_manifests_are_the_charts() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let folder = places::repository().join("deploy/kubernetes");
    let helm = platforms::tool("helm").await?;
    let bin = Path::new(helm.as_std().get_program()).parent().context("a folder")?.to_owned();
    let mut build = Command::new(folder.join("build.sh"));
    let path = std::env::var("PATH").unwrap_or_default();
    finish(build.arg(sandbox.folder()).env("PATH", format!("{}:{path}", text(&bin))))
        .await?
        .expect_code(0)?;
    let mut files = Vec::new();
    for name in ["cluster.yaml", "jobset.yaml", "trainjob.yaml"] {
        let made = fs::read_to_string(sandbox.path(name))?;
        ensure!(made == fs::read_to_string(folder.join(name))?, "{name} is not the chart's: make manifests");
        files.push(text(&sandbox.path(name)));
    }
    ensure!(checked(&files).await?.len() > 20);
    // Its job can be read; what it names is in the pods.
    let job = text(&folder.join("dicoo.toml"));
    let read = sandbox.finish(&["run", "--print-job", &job]).await?;
    ensure!(read.stdout.contains("max_train_steps = 200"), "{}", read.stderr);
    Ok(())
}

/// What a JobSet's pods run is played here; suspending it, as Kueue does, ends all pods.
#[tokio::test]
async fn a_jobset_that_is_suspended_goes_on_when_it_is_resumed() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let bin = sandbox.path("bin");
    places::install_programs(&bin)?;
    // 1. What the job learns where nothing happens to it.
    let job = Job::toy()?.set("train.max_train_steps", STEPS).shared_by(2);
    sandbox.write_job("job.toml", &job)?;
    let mut run = Command::new(bin.join("ringtune"));
    run.args(["run", "job.toml", "-o", "here"]).current_dir(sandbox.folder());
    let path = format!("{}:{}", text(&bin), std::env::var("PATH").unwrap_or_default());
    run.env("PATH", path).env("XDG_STATE_HOME", sandbox.path("state"));
    finish(&mut run).await?.expect_code(0)?;
    let expected = fs::read(sandbox.path("here").join(LEARNED))?;
    // 2. The chart's pods.
    let models = format!("models.path={}", text(&places::repository().join("tests/fixtures")));
    let values = [
        "--set-file",
        "job.toml=job.toml",
        "--set",
        "workers.graceSeconds=15,models.volume.persistentVolumeClaim.claimName=models",
        "--set",
        &models,
    ];
    let rendered = helm(&sandbox, &["template", "dicoo"], &values).await?.expect_code(0)?;
    fs::write(sandbox.path("jobset.yaml"), rendered.stdout)?;
    let manifests = checked(&[text(&sandbox.path("jobset.yaml"))]).await?;
    let server = ApiServer::start(&sandbox, platforms::tool("python").await?, "dicoo-join").await?;
    let set = JobSet::of(&manifests, &sandbox, &server)?;
    // 3. It begins, is suspended, and is resumed: the workers are others, the coordinator has its volume.
    let mut pods = set.start(1).await?;
    pods.until_step(20).await?;
    pods.end_in_peace().await?;
    let pods = set.start(2).await?;
    let log = pods.finish().await?;
    ensure!(log.contains("resumed after step"), "{log}");
    let output = sandbox.path("claim/output");
    ensure!(fs::read(output.join(LEARNED))? == expected, "other bytes:\n{log}");
    let metrics = fs::read_to_string(output.join("metrics.csv"))?;
    let steps = metrics.lines().skip(1).map(|line| line.split(',').next().unwrap_or_default().to_owned());
    ensure!(steps.eq((1..=STEPS).map(|step| step.to_string())), "{metrics}");
    Ok(())
}

#[tokio::test]
async fn a_token_that_cannot_be_put_into_a_secret_says_why() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let server = ApiServer::start(&sandbox, platforms::tool("python").await?, "join").await?;
    let (daemon, url) = kubelet::coordinator(&sandbox).await?;
    let credentials = text(&sandbox.path("coordinator/admin"));
    let create = async |secret: &str, account: &str, is_pod: bool| {
        let ask = ["--coordinator", &url, "--credentials", &credentials, "--service-account", account];
        let line =
            [&["token", "create", "--role", "worker", "--kubernetes-secret", secret][..], &ask].concat();
        let mut command = sandbox.ringtune(&line)?;
        if is_pod {
            command.envs(server.environment());
        }
        finish(&mut command).await
    };
    let account = text(&server.account());
    // The server's first answer.
    create("join", &account, true).await?.expect_code(1)?.expect_said(&["503", "starting"])?;
    for (secret, folder, is_pod, code, says) in [
        ("Join", account.as_str(), true, 2, "allowed: lower-case letters"),
        ("join", account.as_str(), false, 2, "KUBERNETES_SERVICE_HOST is not set"),
        ("join", "/nowhere", true, 1, "cannot read /nowhere/token"),
        ("nothing", account.as_str(), true, 2, "kubectl create secret generic nothing"),
        ("others", account.as_str(), true, 1, "cannot patch resource"),
    ] {
        create(secret, folder, is_pod).await?.expect_code(code)?.expect_said(&[says])?;
    }
    let done = create("join", &account, true).await?.expect_code(0)?;
    ensure!(done.stdout.is_empty(), "the token was printed: {}", done.stdout);
    done.expect_said(&["is in Secret join, good until"])?;
    let token = fs::read_to_string(server.secret("join").join("token"))?;
    let roots = fs::read_to_string(server.secret("join").join("ca.pem"))?;
    ensure!(token.starts_with("rtj1.") && roots.contains("BEGIN CERTIFICATE"), "{token}\n{roots}");
    // A server of other roots is not given the account's token.
    fs::copy(server.secret("join").join("ca.pem"), server.account().join("ca.crt"))?;
    create("join", &account, true)
        .await?
        .expect_code(1)?
        .expect_said(&["cannot be reached", "certificate"])?;
    drop(daemon);
    Ok(())
}

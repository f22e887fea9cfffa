//! `ringtune cloud` against clouds that start no machines: the life of a cluster, and what is refused before anything is made.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Cluster, Job, Launch, Sandbox,
    aws::Aws,
    daemon::FAKE_WORKER,
    places, platforms,
    process::{Finished, finish, send_signal},
    wait::{SOON, until},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

/// A coordinator that is not there.
const NOBODY: &str = "--coordinator http://127.0.0.1:1";

/// Somebody with an account.
struct Person<'a> {
    sandbox: &'a Sandbox,
    variables: BTreeMap<&'static str, String>,
}

impl Person<'_> {
    async fn cloud(&self, line: &str) -> Result<Finished> {
        self.cloud_with(line, &[]).await
    }

    /// `ringtune cloud`, with other variables.
    async fn cloud_with(&self, line: &str, variables: &[(&str, &str)]) -> Result<Finished> {
        finish(self.command(line)?.envs(variables.iter().copied())).await
    }

    fn command(&self, line: &str) -> Result<Command> {
        let words: Vec<&str> = ["cloud"].into_iter().chain(line.split_whitespace()).collect();
        let mut command = self.sandbox.ringtune(&words)?;
        command.env("HOME", self.sandbox.folder()).envs(&self.variables);
        Ok(command)
    }
}

#[tokio::test]
async fn a_cluster_on_aws_goes_up_grows_and_leaves_nothing() -> Result<()> {
    let (sandbox, mut aws) = (Sandbox::new()?, Aws::start().await?);
    let person = Person { sandbox: &sandbox, variables: aws.variables.clone() };
    let up = format!("aws up toy --bucket acme-ringtune/ringtune --image {}", aws.image);
    // 1. What is missing is said before anything is made.
    person.cloud("aws up toy").await?.expect_code(2)?.expect_said(&["--bucket"])?;
    person.cloud(&up).await?.expect_code(2)?.expect_said(&["lacks ringtune_*.deb", "make packages"])?;
    let keyless = [("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "")];
    person.cloud_with(&up, &keyless).await?.expect_code(2)?.expect_said(&["credentials"])?;
    aws.ask("stack ringtune-other").await?;
    let taken = person.cloud("aws up other --bucket acme").await?.expect_code(2)?;
    taken.expect_said(&["not this cluster's"])?;
    let dry = person.cloud(&format!("{up} --dry-run")).await?.expect_code(0)?;
    for resource in ["AWS::EC2::VPC", "AWS::AutoScaling::AutoScalingGroup"] {
        ensure!(dry.stdout.contains(resource), "{}", dry.stdout);
    }
    dry.expect_said(&["2 workers (m7i.4xlarge), a coordinator (m7i.large): $1.7"])?;
    ensure!(aws.ask("machines").await? == json!([]), "something was made");
    // 2. Up.
    aws.ask("packages").await?;
    let made = person.cloud(&up).await?.expect_code(0)?;
    made.expect_said(&[
        "ringtune-toy-network: ringtune-toy-network create complete",
        "ringtune-toy: ringtune-toy create complete",
    ])?;
    let machines = aws.ask("machines").await?;
    ensure!(machines.as_array().is_some_and(|machines| machines.len() == 3), "{machines}");
    // 3. Least privilege: nobody from outside, and these rights alone.
    let facts = aws.ask("facts").await?;
    ensure!(facts["reached"] == json!(["tcp 7070-7071 each other", "tcp 7080-7080 each other"]), "{facts}");
    let parameter = "arn:aws:ssm:eu-west-1:123456789012:parameter/ringtune/toy";
    let bucket = "arn:aws:s3:::acme-ringtune";
    let allowed = json!({
        "CoordinatorRole": [
            format!("s3:GetObject {bucket}/ringtune/packages/*"),
            format!("s3:ListBucket {bucket} ringtune/packages/*"),
            format!("ssm:PutParameter {parameter}/join"),
            format!("ssm:PutParameter {parameter}/login"),
        ],
        "WorkerRole": [
            format!("s3:AbortMultipartUpload {bucket}/ringtune/results/*"),
            format!("s3:DeleteObject {bucket}/ringtune/results/*"),
            format!("s3:GetObject {bucket}/ringtune/*"),
            format!("s3:ListBucket {bucket} ringtune/*"),
            format!("s3:PutObject {bucket}/ringtune/results/*"),
            format!("ssm:GetParameter {parameter}/join"),
        ],
    });
    ensure!(facts["allowed"] == allowed, "{facts}");
    for name in ["CoordinatorTemplate", "WorkerTemplate"] {
        let template = &facts["templates"][name];
        ensure!(template["tokens"] == "required" && template["encrypted"] == true, "{template}");
        let data = template["user_data"].as_str().context("user data")?;
        ensure!(data.starts_with("#!/bin/bash\n") && !data.contains("${"), "{data}");
    }
    // 4. A second time changes nothing; other numbers do, and what is not given stays.
    person.cloud("aws up toy").await?.expect_code(0)?;
    ensure!(aws.ask("machines").await? == machines, "other machines");
    let grown = person.cloud("aws up toy --workers 4 --clients 203.0.113.7/32 --output json").await?;
    let grown = grown.expect_code(0)?.json_lines()?;
    ensure!(grown[0]["workers_running"] == 4, "{grown:?}");
    let status = person.cloud("aws status toy --output json").await?.expect_code(0)?.json_lines()?;
    ensure!(status[0]["workers_wanted"] == 4 && status[0]["worker_type"] == "m7i.4xlarge", "{status:?}");
    let reached = aws.ask("facts").await?["reached"].to_string();
    ensure!(reached.contains("tcp 7070-7071 203.0.113.7/32"), "{reached}");
    let cost = person.cloud("aws cost toy").await?.expect_code(0)?;
    ensure!(cost.stdout.starts_with("$3.4"), "{}", cost.stdout);
    // 5. Down.
    aws.ask("free").await?;
    let gone = person.cloud(&format!("aws down toy --yes --force {NOBODY}")).await?.expect_code(0)?;
    gone.expect_said(&["nothing has its tag any more"])?;
    ensure!(aws.ask("machines").await? == json!([]), "machines are left");
    person.cloud("aws down toy --yes").await?.expect_code(2)?.expect_said(&["there is no cluster toy"])?;
    Ok(())
}

#[tokio::test]
async fn the_templates_for_aws_are_without_a_finding() -> Result<()> {
    let mut lint = platforms::tool("cfn-lint").await?;
    for name in ["network.yaml", "cluster.yaml"] {
        lint.arg(places::repository().join("deploy/aws").join(name));
    }
    finish(&mut lint).await?.expect_code(0)?;
    Ok(())
}

/// Somebody with the command az: tests/platforms/az.py.
fn azure(sandbox: &Sandbox) -> Result<Person<'_>> {
    let programs = sandbox.path("programs");
    fs::create_dir_all(&programs)?;
    let script = places::repository().join("tests/platforms/az.py");
    let az = programs.join("az");
    fs::write(&az, format!("#!/bin/sh\nexec python3 {} \"$@\"\n", script.display()))?;
    fs::set_permissions(&az, fs::Permissions::from_mode(0o755))?;
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let state = sandbox.path("azure.json").display().to_string();
    Ok(Person { sandbox, variables: BTreeMap::from([("PATH", path), ("AZ_STATE", state)]) })
}

#[tokio::test]
async fn a_cluster_on_azure_goes_up_grows_and_leaves_nothing() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let person = azure(&sandbox)?;
    let state = || -> Result<Value> { Ok(serde_json::from_slice(&fs::read(sandbox.path("azure.json"))?)?) };
    let packages = sandbox.path("packages");
    fs::create_dir(&packages)?;
    let up = format!("azure up toy --region westeurope --packages {}", packages.display());
    // 1. What is missing is said before anything is made.
    let outside = person.cloud_with(&up, &[("AZ_LOGGED_OUT", "1")]).await?.expect_code(2)?;
    outside.expect_said(&["az login"])?;
    person.cloud("azure status toy").await?.expect_code(2)?.expect_said(&["there is no cluster toy"])?;
    person.cloud("azure up toy").await?.expect_code(2)?.expect_said(&["--region is missing"])?;
    let bare = person.cloud("azure up toy --region westeurope").await?.expect_code(2)?;
    bare.expect_said(&["--packages DIR is missing"])?;
    person.cloud(&up).await?.expect_code(2)?.expect_said(&["lacks ringtune_*.deb", "SHA256SUMS"])?;
    for name in ["ringtune_1", "ringtune-coordinator_1", "ringtune-libtorch_1", "ringtune-worker_1"] {
        fs::write(packages.join(format!("{name}.deb")), name)?;
    }
    fs::write(packages.join("SHA256SUMS"), "")?;
    let many = person.cloud(&format!("{up} --workers 7")).await?.expect_code(2)?;
    many.expect_said(&["takes 114 processors", "0 of 100 are in use"])?;
    let odd = person.cloud(&format!("{up} --worker-type Standard_D3")).await?.expect_code(2)?;
    odd.expect_said(&["westeurope has no Standard_D3"])?;
    ensure!(state()?["group"].is_null(), "something was made");
    let dry = person.cloud(&format!("{up} --dry-run")).await?.expect_code(0)?;
    ensure!(dry.stdout.contains("Microsoft.Compute/virtualMachineScaleSets"), "{}", dry.stdout);
    dry.expect_said(&["2 workers (Standard_D16s_v6)", "whose price is not in the table"])?;
    // 2. Up, by somebody who stops watching, and then by the same command again. The right to upload the packages does not count
    //    at once.
    let mut begun = person.command(&up)?.stderr(Stdio::null()).spawn()?;
    let deployed = || async { Ok(state().is_ok_and(|state| state["deployment"].is_object()).then_some(())) };
    until("the deployment begins", SOON, deployed).await?;
    send_signal(&begun, Signal::INT)?;
    let ended = timeout(SOON, begun.wait()).await??;
    ensure!(ended.code() == Some(4), "{ended}");
    let made = person.cloud(&up).await?.expect_code(0)?;
    let made = made.expect_said(&["a deployment is under way, which is waited for"])?;
    made.expect_said(&[
        "virtualMachineScaleSets workers succeeded",
        "not yet: ",
        "https://203.0.113.9:7070",
    ])?;
    ensure!(state()?["packages"] == json!(["*.deb", "SHA256SUMS"]), "{}", state()?);
    // 3. Other numbers; what is not given stays.
    let grown = person.cloud("azure up toy --workers 4").await?.expect_code(0)?;
    ensure!(grown.stdout.contains("4 of 4 run, Standard_D16s_v6"), "{}", grown.stdout);
    person
        .cloud("azure up toy --spot")
        .await?
        .expect_code(2)?
        .expect_said(&["cannot change between spot"])?;
    let away = person.cloud("azure up toy --region eastus").await?.expect_code(2)?;
    away.expect_said(&["is in westeurope, not in eastus"])?;
    person.cloud("azure cost toy").await?.expect_code(0)?;
    // 4. Down: the vaults' names are free again, too.
    let unknown = person.cloud(&format!("azure down toy --yes {NOBODY}")).await?.expect_code(2)?;
    unknown.expect_said(&["nobody knows which jobs run", "--force"])?;
    let gone = person.cloud(&format!("azure down toy --yes --force {NOBODY}")).await?.expect_code(0)?;
    gone.expect_said(&["nothing has its tag any more"])?;
    ensure!(state()?["vaults"] == json!([]), "{}", state()?);
    person.cloud("azure down toy --yes").await?.expect_code(2)?.expect_said(&["there is no cluster toy"])?;
    // 5. A deployment that fails says why, and is removed.
    let mut left = state()?;
    left["vaults"] = json!(["rt-join"]);
    fs::write(sandbox.path("azure.json"), left.to_string())?;
    let failed = person.cloud(&up).await?.expect_code(1)?;
    failed.expect_said(&[
        "workers: ConflictError: A vault with the same name",
        "`down` removes what is there",
    ])?;
    person.cloud("azure down toy --yes").await?.expect_code(0)?;
    Ok(())
}

#[tokio::test]
async fn the_template_for_azure_lets_nobody_in_and_its_machines_may_do_little() -> Result<()> {
    let mut read = platforms::tool("python").await?;
    read.arg(places::repository().join("tests/platforms/bicep.py"));
    read.arg(places::repository().join("deploy/azure/cluster.bicep"));
    let said = finish(&mut read).await?.expect_code(0)?.json_lines()?;
    let said = said.first().context("what it says")?;
    let rights = json!([
        "coordinatorIdentity readBlobs storage",
        "coordinatorIdentity writeSecrets joinVault",
        "coordinatorIdentity writeSecrets loginVault",
        "owner readSecrets loginVault",
        "owner writeBlobs storage",
        "workerIdentity readBlobs storage",
        "workerIdentity readSecrets joinVault",
    ]);
    ensure!(said["rights"] == rights, "{}", said["rights"]);
    let rules = json!([
        "Allow 10.77.0.0/20 10.77.0.0/20 7070-7071 7080",
        "Allow clients ${address}/32 7070-7071",
        "Deny * * *",
    ]);
    ensure!(said["rules"] == rules, "{}", said["rules"]);
    ensure!(said["names"] == json!([]), "{}", said["names"]);
    Ok(())
}

/// `down` asks the coordinator: jobs are not lost, and go on from what was saved.
#[tokio::test]
async fn a_cluster_with_jobs_stays_unless_they_may_be_cancelled_and_then_saves_them() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let person = azure(&sandbox)?;
    let group = json!({ "location": "westeurope", "tags": { "ringtune": "toy" } });
    let state = json!({ "group": group, "deployment": null, "packages": [], "vaults": [], "tries": 0 });
    fs::write(sandbox.path("azure.json"), state.to_string())?;
    let mut cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator()).await?;
    cluster.add_worker(Launch::worker("worker-1", FAKE_WORKER, &cluster.coordinator.grpc)).await?;
    let job = Job::toy()?.set("train.max_train_steps", 100_000);
    let job = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    cluster.wait_for_step(&job, 3).await?;
    let down = format!("azure down toy --yes --coordinator http://{}", cluster.coordinator.grpc);
    let refused = person.cloud(&down).await?.expect_code(2)?;
    refused.expect_said(&["1 job has not ended", "(RUNNING, step", "--force"])?;
    let saved = sandbox.path("saved");
    let gone = person.cloud(&format!("{down} --force -o {}", saved.display())).await?.expect_code(0)?;
    gone.expect_said(&["is cancelled; saved", "resume_from_checkpoint"])?;
    let names: Vec<String> = fs::read_dir(saved.join(&job))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    ensure!(names.iter().any(|name| name.starts_with("checkpoint-")), "{names:?}");
    Ok(())
}

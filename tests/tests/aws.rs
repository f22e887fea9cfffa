//! The templates for AWS, against a cloud that starts no machines.

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{places, platforms, process::finish};
use serde_json::json;

/// The stacks go up, stay as they are, grow, and leave nothing: tests/platforms/aws.py. What the machines may do is this alone.
#[tokio::test]
async fn the_stacks_of_a_cluster_live_and_their_machines_may_do_little() -> Result<()> {
    let mut life = platforms::tool("python").await?;
    life.arg(places::repository().join("tests/platforms/aws.py"))
        .arg(places::repository().join("deploy/aws"));
    let said = finish(&mut life).await?.expect_code(0)?.json_lines()?;
    let said = said.first().context("what it says")?;
    let parameter = "arn:aws:ssm:eu-west-1:123456789012:parameter/ringtune/toy";
    let (bucket, below) = ("arn:aws:s3:::acme-models", "ringtune");
    let allowed = json!({
        "CoordinatorRole": [
            ["s3:GetObject", format!("{bucket}/{below}/packages/*")],
            ["s3:ListBucket", bucket, format!("{below}/packages/*")],
            ["ssm:PutParameter", format!("{parameter}/join")],
            ["ssm:PutParameter", format!("{parameter}/login")],
        ],
        "WorkerRole": [
            ["s3:GetObject", format!("{bucket}/{below}/*")],
            ["s3:ListBucket", bucket, format!("{below}/*")],
            ["ssm:GetParameter", format!("{parameter}/join")],
        ],
    });
    ensure!(said["policies"] == allowed, "{}", said["policies"]);
    for name in ["CoordinatorTemplate", "WorkerTemplate"] {
        let data = said["user_data"][name].as_str().context("user data")?;
        ensure!(data.starts_with("#!/bin/bash\n") && !data.contains("${"), "{data}");
    }
    Ok(())
}

#[tokio::test]
async fn the_templates_are_without_a_finding() -> Result<()> {
    let mut lint = platforms::tool("cfn-lint").await?;
    for name in ["network.yaml", "cluster.yaml"] {
        lint.arg(places::repository().join("deploy/aws").join(name));
    }
    finish(&mut lint).await?.expect_code(0)?;
    Ok(())
}

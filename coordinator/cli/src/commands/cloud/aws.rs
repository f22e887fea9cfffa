//! The verbs of `ringtune cloud aws`.

use serde_json::Value;

use super::{
    cluster::{Found, Shape, TAG, given, missing_packages, show, show_cost, show_dry},
    give_up,
    stack::Stack,
};
use crate::{
    cloud_arguments::{AwsUpArguments, ClusterArguments, DownArguments},
    cloud_tool::{CloudError, CloudTool, strings},
    error::Error,
    output::remark,
};

const NETWORK: &str = include_str!("../../../../../deploy/aws/network.yaml");
const CLUSTER: &str = include_str!("../../../../../deploy/aws/cluster.yaml");
const PRICES: &str = include_str!("../../../../../deploy/aws/prices.toml");
/// The cluster's parameters as its template has them.
const DEFAULTS: [(&str, &str); 8] = [
    ("Workers", "2"),
    ("WorkerType", "m7i.4xlarge"),
    ("WorkerDisk", "100"),
    ("Spot", "false"),
    ("CoordinatorType", "m7i.large"),
    ("CoordinatorDisk", "100"),
    ("Clients", ""),
    ("Prefix", "ringtune"),
];
/// Where Debian says what its newest image is. Source: wiki.debian.org/Cloud/AmazonEC2Image
const IMAGE: &str = "/aws/service/debian/release/12/latest/amd64";
/// Quotas of processors: on demand, and spot. Source: docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
const QUOTAS: [&str; 2] = ["L-1216C47A", "L-34B43A08"];

/// The two stacks of a cluster.
struct Stacks<'a> {
    network: Stack<'a>,
    cluster: Stack<'a>,
}

impl<'a> Stacks<'a> {
    fn of(aws: &'a CloudTool, name: &'a str) -> Self {
        let stack = |suffix: &str| Stack { aws, name: format!("ringtune-{name}{suffix}"), cluster: name };
        Self { network: stack("-network"), cluster: stack("") }
    }

    fn none(&self) -> Error {
        let Stack { name, cluster, .. } = &self.cluster;
        Error::Usage(format!(
            "there is no cluster {cluster} in this region (no stack {name}); `ringtune cloud aws up` makes one"
        ))
    }
}

/// Makes a cluster, or changes it.
pub(super) async fn up(arguments: AwsUpArguments) -> Result<(), Error> {
    let ClusterArguments { name, region, .. } = &arguments.up.cluster;
    let aws = CloudTool::aws(region.as_deref());
    let stacks = Stacks::of(&aws, name);
    // 1. What is there, and what is to be.
    let (there, network) = tokio::try_join!(stacks.cluster.find(), stacks.network.find())?;
    let is_new = there.as_ref().is_none_or(|found| !found.outputs.contains_key("Group"));
    let (bucket, prefix) = arguments.bucket.clone().unzip();
    if is_new && bucket.is_none() {
        return Err(Error::Usage(
            "--bucket BUCKET/PREFIX is missing: where the packages are (see --help)".to_owned(),
        ));
    }
    let own = [
        ("Name", Some(name.clone())),
        ("Bucket", bucket),
        ("Prefix", prefix),
        ("Vpc", arguments.vpc.clone()),
        ("Subnet", arguments.subnet.clone()),
        ("Image", arguments.image.clone()),
    ];
    let given: Vec<_> = given(&arguments.up).into_iter().chain(own).collect();
    let mut shape = Shape::of(&DEFAULTS, there.as_ref(), &given);
    if arguments.up.dry_run {
        return show_dry(&arguments.up.cluster, &shape, PRICES, &format!("{NETWORK}---\n{CLUSTER}"));
    }
    // 2. What would fail in a quarter of an hour.
    let placed = network.as_ref().and_then(|found| found.parameters.get("Zone").cloned());
    let mut zone = placed.clone().unwrap_or_default();
    if there.as_ref().is_none_or(|found| found.parameters != shape.0) {
        (zone, (), ()) = tokio::try_join!(
            pick(&aws, &shape, arguments.zone.clone().or(placed)),
            check_types(&aws, &shape),
            check_packages(&aws, &shape)
        )?;
    }
    remark(&shape.text(&shape.cost(PRICES)?));
    // 3. The network, unless one is there.
    if shape.get("Subnet").is_empty() {
        let wanted = Shape::of(&[("Name", name), ("Zone", &zone)], None, &[]);
        let made = stacks.network.apply(NETWORK, &wanted, network).await?;
        for key in ["Vpc", "Subnet"] {
            let missing = || Error::JobEnded(format!("the stack of the network has no output {key}"));
            let value = made.outputs.get(key).cloned().ok_or_else(missing)?;
            shape.0.insert(key.to_owned(), value);
        }
    }
    if shape.get("Image").is_empty() {
        shape.0.insert("Image".to_owned(), newest_image(&aws).await?);
    }
    // 4. The machines.
    let done = stacks.cluster.apply(CLUSTER, &shape, there).await?;
    show(&arguments.up.cluster, &done, running(&aws, &done).await?)?;
    remark(&format!(
        "the workers join once they have installed their packages. From a network of --clients:\n  \
         aws ssm get-parameter --with-decryption --name /ringtune/{name}/login --query Parameter.Value --output text |\n    \
         ringtune login {} --token-file -\n  ringtune workers",
        done.url().unwrap_or_else(|| "https://COORDINATOR:7070".to_owned())
    ));
    Ok(())
}

/// The zone for the machines, `wanted` or the first: one that has their types.
async fn pick(aws: &CloudTool, shape: &Shape, wanted: Option<String>) -> Result<String, Error> {
    let kinds = ["WorkerType", "CoordinatorType"].map(|key| shape.get(key));
    let filter = format!("Name=instance-type,Values={}", kinds.join(","));
    let asked = [
        "ec2",
        "describe-instance-type-offerings",
        "--location-type",
        "availability-zone",
        "--filters",
        &filter,
    ];
    let answer = aws.ask(&asked).await?;
    let offers = answer["InstanceTypeOfferings"].as_array().cloned().unwrap_or_default();
    pick_zone(kinds, &offers, wanted)
}

fn pick_zone(kinds: [&str; 2], offers: &[Value], wanted: Option<String>) -> Result<String, Error> {
    let zones_of = |kind: &str| {
        let own: Vec<Value> = offers.iter().filter(|offer| offer["InstanceType"] == kind).cloned().collect();
        strings(&Value::from(own), "Location")
    };
    if let Some(missing) = kinds.iter().find(|kind| zones_of(kind).is_empty()) {
        return Err(Error::Usage(format!(
            "no zone of this region has {missing}: take another type, or another --region"
        )));
    }
    let mut zones = zones_of(kinds[0]);
    let others = zones_of(kinds[1]);
    zones.retain(|zone| others.contains(zone));
    zones.sort();
    let [worker, coordinator] = kinds;
    match wanted {
        Some(zone) if zones.contains(&zone) => Ok(zone),
        Some(zone) => Err(Error::Usage(format!(
            "the zone {zone} has not both {worker} and {coordinator}; these have: {}",
            if zones.is_empty() { "none".to_owned() } else { zones.join(", ") }
        ))),
        None => zones.into_iter().next().ok_or_else(|| {
            Error::Usage(format!("no zone of this region has both {worker} and {coordinator}"))
        }),
    }
}

/// That the programs run on the types, and that the account may have so many processors.
async fn check_types(aws: &CloudTool, shape: &Shape) -> Result<(), Error> {
    let [worker, coordinator] = ["WorkerType", "CoordinatorType"].map(|key| shape.get(key));
    let answer =
        aws.ask(&["ec2", "describe-instance-types", "--instance-types", worker, coordinator]).await?;
    let kinds = answer["InstanceTypes"].as_array().cloned().unwrap_or_default();
    let mut processors = 0;
    for kind in &kinds {
        let name = kind["InstanceType"].as_str().unwrap_or_default();
        let architectures = kind["ProcessorInfo"]["SupportedArchitectures"].as_array();
        if architectures.is_some_and(|all| all.iter().all(|one| one != "x86_64")) {
            return Err(Error::Usage(format!(
                "{name} is no x86-64 machine, for which Ringtune is made: m7i, m8i and r7iz have AMX"
            )));
        }
        if name == worker {
            processors = kind["VCpuInfo"]["DefaultVCpus"].as_u64().unwrap_or_default();
        }
    }
    if !has_amx(worker) {
        remark(&format!(
            "warning: {worker} has no AMX, which steps in bf16 are several times faster with: m7i, m8i, r7iz"
        ));
    }
    let code = QUOTAS[usize::from(shape.is_spot())];
    let asked = ["service-quotas", "get-service-quota", "--service-code", "ec2", "--quota-code", code];
    match aws.ask(&asked).await {
        Ok(answer) => check_quota(shape, processors, code, answer["Quota"]["Value"].as_f64()),
        Err(CloudError::Refused { code: why, .. }) => {
            remark(&format!("warning: the account's quota of processors ({code}) is not known: {why}"));
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// `processors`: of one worker; `allowed`: of the account.
fn check_quota(shape: &Shape, processors: u64, code: &str, allowed: Option<f64>) -> Result<(), Error> {
    let wanted = processors * u64::from(shape.workers());
    match allowed {
        Some(allowed) if allowed < wanted as f64 => Err(Error::Usage(format!(
            "{} x {} are {wanted} processors, and the account's quota {code} is {allowed:.0}: fewer --workers, a smaller \
             --worker-type, or ask AWS for more (aws service-quotas request-service-quota-increase)",
            shape.workers(),
            shape.get("WorkerType")
        ))),
        _ => Ok(()),
    }
}

/// Whether a type is of Intel's 4th generation of Xeons, or a later one: m7i, r7iz, c8i.
fn has_amx(kind: &str) -> bool {
    let family =
        kind.split('.').next().unwrap_or_default().trim_start_matches(|c: char| c.is_ascii_lowercase());
    let rest = family.trim_start_matches(|c: char| c.is_ascii_digit());
    let generation = family[..family.len() - rest.len()].parse::<u32>();
    generation.is_ok_and(|generation| generation >= 7) && rest.starts_with('i')
}

/// That the machines find what they install.
async fn check_packages(aws: &CloudTool, shape: &Shape) -> Result<(), Error> {
    let [bucket, prefix] = ["Bucket", "Prefix"].map(|key| shape.get(key));
    let below = format!("{prefix}/packages/");
    let answer = aws.ask(&["s3api", "list-objects-v2", "--bucket", bucket, "--prefix", &below]).await?;
    let names: Vec<String> = strings(&answer["Contents"], "Key");
    let missing = missing_packages(names.iter().filter_map(|name| name.strip_prefix(&below)));
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "s3://{bucket}/{below} lacks {}; make packages makes them, and\n  aws s3 cp --recursive target/packages/ \
         s3://{bucket}/{below} --exclude '*' --include '*.deb'",
        missing.join(", ")
    )))
}

/// Debian's newest image.
async fn newest_image(aws: &CloudTool) -> Result<String, Error> {
    let answer = aws.ask(&["ssm", "get-parameter", "--name", IMAGE]).await?;
    let found = answer["Parameter"]["Value"].as_str().map(str::to_owned);
    found.ok_or_else(|| Error::Usage(format!("{IMAGE} names no image in this region: give one with --image")))
}

/// How many workers run.
async fn running(aws: &CloudTool, found: &Found) -> Result<usize, Error> {
    let Some(group) = found.outputs.get("Group") else { return Ok(0) };
    let asked = ["autoscaling", "describe-auto-scaling-groups", "--auto-scaling-group-names", group];
    let answer = aws.ask(&asked).await?;
    let states = strings(&answer["AutoScalingGroups"][0]["Instances"], "LifecycleState");
    Ok(states.iter().filter(|state| *state == "InService").count())
}

/// Shows a cluster.
pub(super) async fn status(arguments: &ClusterArguments) -> Result<(), Error> {
    let aws = CloudTool::aws(arguments.region.as_deref());
    let stacks = Stacks::of(&aws, &arguments.name);
    let found = stacks.cluster.find().await?.ok_or_else(|| stacks.none())?;
    show(arguments, &found, running(&aws, &found).await?)
}

/// Shows what a cluster costs.
pub(super) async fn cost(arguments: &ClusterArguments) -> Result<(), Error> {
    let aws = CloudTool::aws(arguments.region.as_deref());
    let stacks = Stacks::of(&aws, &arguments.name);
    let found = stacks.cluster.find().await?.ok_or_else(|| stacks.none())?;
    show_cost(arguments, &Shape::of(&DEFAULTS, Some(&found), &[]), PRICES)
}

/// Removes a cluster, and looks whether anything is left.
pub(super) async fn down(arguments: &DownArguments) -> Result<(), Error> {
    let ClusterArguments { name, region, .. } = &arguments.cluster;
    let aws = CloudTool::aws(region.as_deref());
    let stacks = Stacks::of(&aws, name);
    let (cluster, network) = tokio::try_join!(stacks.cluster.find(), stacks.network.find())?;
    if cluster.is_none() && network.is_none() {
        return Err(stacks.none());
    }
    // 1. Its jobs, and its owner's will.
    give_up(arguments, cluster.as_ref().and_then(Found::url)).await?;
    // 2. The machines go before their network.
    for (stack, found) in [(&stacks.cluster, cluster), (&stacks.network, network)] {
        if found.is_some() {
            stack.remove().await?;
        }
    }
    // 3. The tokens, which the coordinator made.
    let tokens = ["join", "login"].map(|token| format!("/ringtune/{name}/{token}"));
    aws.ask(&["ssm", "delete-parameters", "--names", &tokens[0], &tokens[1]]).await?;
    // 4. What is left, by the tag.
    let left = left(&aws, name).await?;
    if left.is_empty() {
        remark(&format!("the cluster {name} is gone, and nothing has its tag any more"));
        return Ok(());
    }
    Err(Error::JobEnded(format!(
        "the stacks are gone, and these are left with the tag {TAG}={name}:\n  {}",
        left.join("\n  ")
    )))
}

/// What still has the cluster's tag. Machines that have ended keep it for an hour.
async fn left(aws: &CloudTool, name: &str) -> Result<Vec<String>, Error> {
    let filter = format!("Key={TAG},Values={name}");
    let answer = aws.ask(&["resourcegroupstaggingapi", "get-resources", "--tag-filters", &filter]).await?;
    let tagged = strings(&answer["ResourceTagMappingList"], "ResourceARN");
    if tagged.is_empty() {
        return Ok(tagged);
    }
    let filters = format!("Name=tag:{TAG},Values={name}");
    let answer = aws.ask(&["ec2", "describe-instances", "--filters", &filters]).await?;
    let machines = answer["Reservations"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|reservation| reservation["Instances"].as_array().into_iter().flatten());
    let ended: Vec<&str> = machines
        .filter(|machine| {
            ["terminated", "shutting-down"].contains(&machine["State"]["Name"].as_str().unwrap_or_default())
        })
        .filter_map(|machine| machine["InstanceId"].as_str())
        .collect();
    Ok(tagged.into_iter().filter(|arn| !ended.iter().any(|id| arn.ends_with(id))).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_zone_has_both_types() {
        let offer = |kind: &str, zone: &str| json!({ "InstanceType": kind, "Location": zone });
        let offers = [offer("w", "b"), offer("w", "a"), offer("w", "c"), offer("c", "b"), offer("c", "a")];
        let pick = |kinds, wanted: Option<&str>| {
            pick_zone(kinds, &offers, wanted.map(str::to_owned)).map_err(|error| error.to_string())
        };
        assert_eq!(pick(["w", "c"], None).as_deref(), Ok("a"));
        assert_eq!(pick(["w", "c"], Some("b")).as_deref(), Ok("b"));
        let refused = pick(["w", "c"], Some("c")).expect_err("c has no c");
        assert!(refused.ends_with("these have: a, b"), "{refused}");
        assert!(pick(["x", "c"], None).expect_err("nobody has x").contains("no zone of this region has x"));
    }

    #[test]
    fn a_quota_that_is_too_small_is_told_with_its_numbers() {
        let shape = Shape::of(&DEFAULTS, None, &[("Workers", Some("4".to_owned()))]);
        assert!(
            check_quota(&shape, 16, "L-1", Some(64.0)).is_ok()
                && check_quota(&shape, 16, "L-1", None).is_ok()
        );
        let refused = check_quota(&shape, 16, "L-1", Some(32.0)).expect_err("too small").to_string();
        assert!(
            refused.starts_with("4 x m7i.4xlarge are 64 processors, and the account's quota L-1 is 32"),
            "{refused}"
        );
    }

    #[test]
    fn xeons_since_the_fourth_generation_have_amx() {
        assert!(
            ["m7i.large", "r7iz.metal", "c8i.4xlarge", "m7i-flex.large", "i7ie.large"]
                .into_iter()
                .all(has_amx)
        );
        assert!(
            !["m6i.large", "m7a.large", "m7g.large", "t3.large", "", "inf2.xlarge"].into_iter().any(has_amx)
        );
    }
}

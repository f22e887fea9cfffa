//! The verbs of `ringtune cloud azure`.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{
    cluster::{Found, Shape, TAG, given, missing_packages, show, show_cost, show_dry},
    deployment::{DEFAULTS, Group, MACHINE, PAUSE, TEMPLATE},
    give_up,
};
use crate::{
    cloud_arguments::{AzureUpArguments, ClusterArguments, DownArguments},
    cloud_tool::{CloudError, CloudTool, strings},
    error::Error,
    output::remark,
};

const PRICES: &str = include_str!("../../../../../deploy/azure/prices.toml");
/// With it a machine knows which files are whole: it is uploaded last.
const HASHES: &str = "SHA256SUMS";
/// How long rights may take until they count. Source: learn.microsoft.com/azure/role-based-access-control/troubleshooting
const RIGHTS: Duration = Duration::from_secs(600);

/// Makes a cluster, or changes it.
pub(super) async fn up(arguments: AzureUpArguments) -> Result<(), Error> {
    let ClusterArguments { name, region, .. } = &arguments.up.cluster;
    let az = CloudTool::azure();
    let group = Group::of(&az, name);
    // 1. What is there, and what is to be.
    let placed = group.region().await?;
    let there = if placed.is_some() { group.find().await? } else { None };
    let is_new = there.as_ref().is_none_or(|found| !found.outputs.contains_key("Group"));
    let shape = Shape::of(&DEFAULTS, there.as_ref(), &given(&arguments.up));
    let kept = Shape::of(&[], there.as_ref(), &[]);
    if !is_new && kept.is_spot() != shape.is_spot() {
        return Err(Error::Usage(
            "--spot: a scale set cannot change between spot machines and others; take down the cluster first"
                .to_owned(),
        ));
    }
    if arguments.up.dry_run {
        return show_dry(&arguments.up.cluster, &shape, PRICES, &format!("{TEMPLATE}---\n{MACHINE}"));
    }
    let place = match (placed, region) {
        (Some(there), Some(wanted)) if there != *wanted => {
            return Err(Error::Usage(format!("--region: the cluster {name} is in {there}, not in {wanted}")));
        }
        (Some(there), _) => there,
        (None, Some(wanted)) => wanted.clone(),
        (None, None) => {
            return Err(Error::Usage(
                "--region is missing: where to make the cluster, as westeurope".to_owned(),
            ));
        }
    };
    // 2. What would fail in a quarter of an hour.
    match &arguments.packages {
        Some(folder) => check_packages(folder)?,
        None if is_new => {
            return Err(Error::Usage(
                "--packages DIR is missing: what the machines install (see --help)".to_owned(),
            ));
        }
        None => {}
    }
    check_types(&az, &shape, &place).await?;
    let owner = match &arguments.owner {
        Some(owner) => owner.clone(),
        None => {
            let user = az.ask(&["ad", "signed-in-user", "show"]).await?;
            let none =
                || Error::Usage("az does not say who you are: give your object id with --owner".to_owned());
            user["id"].as_str().ok_or_else(none)?.to_owned()
        }
    };
    remark(&shape.text(&shape.cost(PRICES)?));
    // 3. The group, and what is in it.
    let tag = format!("{TAG}={name}");
    az.ask(&["group", "create", "--name", &group.name, "--location", &place, "--tags", &tag]).await?;
    if there.as_ref().is_some_and(|found| found.status == "Running" || found.status == "Accepted") {
        remark(&format!("{}: a deployment is under way, which is waited for", group.name));
        group.follow().await?;
    }
    let done = group.deploy(&shape, &owner).await?;
    // 4. The packages, for which the machines wait.
    if let Some(folder) = &arguments.packages {
        let missing = || Error::JobEnded("the deployment has no output Storage".to_owned());
        upload(&az, done.outputs.get("Storage").ok_or_else(missing)?, folder).await?;
    }
    show(&arguments.up.cluster, &done, group.running().await?)?;
    remark(&format!(
        "the workers join once they have installed their packages. From a network of --clients:\n  \
         az keyvault secret show --vault-name {} --name token --query value --output tsv |\n    \
         ringtune login {} --token-file -\n  ringtune workers",
        done.outputs.get("LoginVault").map_or("VAULT", String::as_str),
        done.url().unwrap_or_else(|| "https://COORDINATOR:7070".to_owned())
    ));
    Ok(())
}

/// That a folder has what the machines install.
fn check_packages(folder: &Path) -> Result<(), Error> {
    let listed = fs::read_dir(folder).map_err(|source| Error::File {
        doing: "--packages: cannot read",
        path: folder.to_owned(),
        source,
    })?;
    let names: Vec<String> =
        listed.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    let mut missing = missing_packages(names.iter().map(String::as_str));
    if !names.iter().any(|name| name == HASHES) {
        missing.push(HASHES.to_owned());
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "--packages: {} lacks {}; make packages makes them in target/packages",
        folder.display(),
        missing.join(", ")
    )))
}

/// That the types are to be had, and that the subscription may have so many processors.
async fn check_types(az: &CloudTool, shape: &Shape, region: &str) -> Result<(), Error> {
    let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
    let workers = u64::from(shape.workers());
    for (key, count, is_spot) in [("CoordinatorType", 1, false), ("WorkerType", workers, shape.is_spot())] {
        let kind = shape.get(key);
        let asked = ["vm", "list-skus", "--location", region, "--resource-type", "virtualMachines"];
        let answer = az.ask(&[&asked[..], &["--size", kind, "--all"]].concat()).await?;
        let (family, processors) = sku(&answer, kind, region)?;
        let quota = if is_spot { "lowPriorityCores".to_owned() } else { family };
        *wanted.entry(quota).or_default() += count * processors;
    }
    let usage = az.ask(&["vm", "list-usage", "--location", region]).await?;
    wanted.iter().try_for_each(|(quota, wanted)| check_quota(&usage, quota, *wanted))
}

/// A type's family and processors.
fn sku(answer: &Value, kind: &str, region: &str) -> Result<(String, u64), Error> {
    let found = answer.as_array().into_iter().flatten().find(|sku| sku["name"] == kind);
    let found = found
        .ok_or_else(|| Error::Usage(format!("{region} has no {kind}: take another type or --region")))?;
    let is_whole = |limit: &&Value| limit["type"] == "Location";
    if let Some(limit) = found["restrictions"].as_array().into_iter().flatten().find(is_whole) {
        let why = limit["reasonCode"].as_str().unwrap_or("restricted");
        return Err(Error::Usage(format!(
            "{kind} is not to be had in {region} ({why}): take another type or --region"
        )));
    }
    let capability = |name: &str| {
        let all = found["capabilities"].as_array().into_iter().flatten();
        all.clone().find(|one| one["name"] == name).and_then(|one| one["value"].as_str()).map(str::to_owned)
    };
    if capability("CpuArchitectureType").is_some_and(|architecture| architecture != "x64") {
        return Err(Error::Usage(format!(
            "{kind} is no x86-64 machine, for which Ringtune is made: Dsv6 has AMX"
        )));
    }
    let processors = capability("vCPUs").and_then(|text| text.parse().ok()).unwrap_or_default();
    Ok((found["family"].as_str().unwrap_or_default().to_owned(), processors))
}

/// Numbers come as texts, or as numbers.
fn check_quota(usage: &Value, quota: &str, wanted: u64) -> Result<(), Error> {
    let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
    let of =
        |entry: &&Value| entry["name"]["value"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(quota));
    let found = usage.as_array().into_iter().flatten().find(of);
    let Some((used, limit)) =
        found.and_then(|entry| Some((number(&entry["currentValue"])?, number(&entry["limit"])?)))
    else {
        remark(&format!("warning: the subscription's quota of processors ({quota}) is not known"));
        return Ok(());
    };
    if used + wanted <= limit {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "the cluster takes {wanted} processors of the quota {quota}, of which {used} of {limit} are in use: fewer --workers, a \
         smaller --worker-type, or ask Azure for more (aka.ms/ProdportalCRP)"
    )))
}

/// Uploads the packages. The right to do so is new, and takes minutes until it counts.
async fn upload(az: &CloudTool, account: &str, folder: &Path) -> Result<(), Error> {
    let source = folder.display().to_string();
    let hashes = folder.join(HASHES).display().to_string();
    let batch = ["upload-batch", "--destination", "packages", "--source", &source, "--pattern", "*.deb"];
    let single = ["upload", "--container-name", "packages", "--name", HASHES, "--file", &hashes];
    let begun = Instant::now();
    for (what, words) in [("the packages", batch), (HASHES, single)] {
        remark(&format!("{what}: to the storage account {account}"));
        let whither = ["--account-name", account, "--auth-mode", "login", "--overwrite"];
        let words = [&["storage", "blob"], &words[..], &whither].concat();
        while let Err(error) = az.ask(&words).await {
            if begun.elapsed() > RIGHTS || matches!(error, CloudError::Missing { .. }) {
                return Err(error.into());
            }
            remark(&format!("not yet: {error}"));
            sleep(PAUSE).await;
        }
    }
    Ok(())
}

/// Shows a cluster.
pub(super) async fn status(arguments: &ClusterArguments) -> Result<(), Error> {
    let az = CloudTool::azure();
    let group = Group::of(&az, &arguments.name);
    group.region().await?.ok_or_else(|| group.none())?;
    show(arguments, &group.find().await?.unwrap_or_default(), group.running().await?)
}

/// Shows what a cluster costs.
pub(super) async fn cost(arguments: &ClusterArguments) -> Result<(), Error> {
    let az = CloudTool::azure();
    let group = Group::of(&az, &arguments.name);
    group.region().await?.ok_or_else(|| group.none())?;
    let found = group.find().await?;
    show_cost(arguments, &Shape::of(&DEFAULTS, found.as_ref(), &[]), PRICES)
}

/// Removes a cluster, and looks whether anything is left.
pub(super) async fn down(arguments: &DownArguments) -> Result<(), Error> {
    let name = &arguments.cluster.name;
    let az = CloudTool::azure();
    let group = Group::of(&az, name);
    let place = group.region().await?;
    if place.is_none() && group.deleted_vaults().await?.is_empty() {
        return Err(group.none());
    }
    if place.is_some() {
        // 1. Its jobs, and its owner's will.
        give_up(arguments, group.find().await?.as_ref().and_then(Found::url)).await?;
        // 2. The group goes with all that is in it.
        az.ask(&["group", "delete", "--name", &group.name, "--yes", "--no-wait"]).await?;
        while az.ask(&["group", "exists", "--name", &group.name]).await? != Value::Bool(false) {
            remark(&format!("{}: is being deleted", group.name));
            sleep(PAUSE).await;
        }
    }
    // 3. Vaults stay for a week, and keep their names from the next cluster.
    for vault in group.deleted_vaults().await? {
        az.ask(&["keyvault", "purge", "--name", &vault]).await?;
    }
    // 4. What is left, by the tag.
    let answer = az.ask(&["resource", "list", "--tag", &format!("{TAG}={name}")]).await?;
    let left = strings(&answer, "id");
    if left.is_empty() {
        remark(&format!("the cluster {name} is gone, and nothing has its tag any more"));
        return Ok(());
    }
    Err(Error::JobEnded(format!(
        "the resource group is gone, and these are left with the tag {TAG}={name}:\n  {}",
        left.join("\n  ")
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_and_quotas_are_refused_before_anything_is_made() {
        let answer = json!([
            { "name": "Standard_D16s_v6", "family": "standardDsv6Family", "restrictions": [],
              "capabilities": [{ "name": "vCPUs", "value": "16" }, { "name": "CpuArchitectureType", "value": "x64" }] },
            { "name": "Standard_D16ps_v6", "capabilities": [{ "name": "CpuArchitectureType", "value": "Arm64" }] },
            { "name": "Standard_D2s_v6", "restrictions": [{ "type": "Location", "reasonCode": "NotAvailableForSubscription" }] }]);
        let of = |kind: &str| sku(&answer, kind, "westeurope").map_err(|error| error.to_string());
        assert_eq!(of("Standard_D16s_v6"), Ok(("standardDsv6Family".to_owned(), 16)));
        for (kind, says) in [
            ("Standard_D16ps_v6", "no x86-64 machine"),
            ("Standard_D2s_v6", "(NotAvailableForSubscription)"),
            ("Standard_D4", "westeurope has no Standard_D4"),
        ] {
            assert!(of(kind).is_err_and(|said| said.contains(says)), "{kind}");
        }
        let usage =
            json!([{ "name": { "value": "StandardDSv6Family" }, "currentValue": "4", "limit": "36" }]);
        assert!(
            check_quota(&usage, "standardDsv6Family", 32).is_ok()
                && check_quota(&usage, "other", 1000).is_ok()
        );
        let refused = check_quota(&usage, "standardDsv6Family", 33).expect_err("too small").to_string();
        assert!(
            refused.contains("takes 33 processors") && refused.contains("4 of 36 are in use"),
            "{refused}"
        );
    }
}

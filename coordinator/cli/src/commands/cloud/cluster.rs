//! What a cluster is made of, and how it is shown.

use std::collections::BTreeMap;

use serde::Serialize;

use super::prices::{self, Cost, Machines};
use crate::{
    cloud_arguments::{ClusterArguments, UpArguments},
    commands::{plural, table::facts},
    error::Error,
    output::{Output, remark},
};

/// The tag by which everything of a cluster is found.
pub(super) const TAG: &str = "ringtune";

/// What the machines install.
const PACKAGES: [&str; 4] = ["ringtune_", "ringtune-coordinator_", "ringtune-libtorch_", "ringtune-worker_"];

/// Those that are not among these names, as patterns.
pub(super) fn missing_packages<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let has =
        |package: &&&str| names.clone().any(|name| name.starts_with(**package) && name.ends_with(".deb"));
    PACKAGES.iter().filter(|package| !has(package)).map(|package| format!("{package}*.deb")).collect()
}

/// The parameters of a cluster's template, all of them: by the names that the templates of CloudFormation have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape(pub(super) BTreeMap<String, String>);

impl Shape {
    /// What is given, else what the cluster has, else the default.
    pub(super) fn of(
        defaults: &[(&str, &str)],
        found: Option<&Found>,
        given: &[(&str, Option<String>)],
    ) -> Self {
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let mut all: BTreeMap<String, String> = defaults.iter().copied().map(owned).collect();
        all.extend(found.into_iter().flat_map(|found| found.parameters.clone()));
        all.extend(given.iter().filter_map(|(key, value)| Some(((*key).to_owned(), value.clone()?))));
        Self(all)
    }

    /// Empty: there is none.
    pub(super) fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    pub(super) fn workers(&self) -> u32 {
        self.number("Workers")
    }

    pub(super) fn is_spot(&self) -> bool {
        self.get("Spot") == "true"
    }

    fn number(&self, key: &str) -> u32 {
        self.get(key).parse().unwrap_or_default()
    }

    pub(super) fn cost(&self, table: &str) -> Result<Cost, Error> {
        let machines = |count, role: &str| Machines {
            count,
            kind: self.get(&format!("{role}Type")).to_owned(),
            disk_gib: self.number(&format!("{role}Disk")),
            is_spot: role == "Worker" && self.is_spot(),
        };
        prices::cost(table, &[machines(1, "Coordinator"), machines(self.workers(), "Worker")])
    }

    /// "2 workers (m7i.4xlarge), a coordinator (m7i.large): $1.76 an hour …"
    pub(super) fn text(&self, cost: &Cost) -> String {
        let workers = self.workers();
        format!(
            "{workers} {} ({}), a coordinator ({}): {}",
            plural(workers, "worker"),
            self.get("WorkerType"),
            self.get("CoordinatorType"),
            cost.text()
        )
    }
}

/// The parameters that `up` names in any cloud.
pub(super) fn given(arguments: &UpArguments) -> [(&'static str, Option<String>); 5] {
    [
        ("Workers", arguments.workers.map(|workers| workers.to_string())),
        ("WorkerType", arguments.worker_type.clone()),
        ("CoordinatorType", arguments.coordinator_type.clone()),
        ("Spot", arguments.spot.map(|spot| spot.to_string())),
        ("Clients", arguments.clients.clone()),
    ]
}

/// A cluster's template as the cloud has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// As the cloud names it.
    pub(super) status: String,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) outputs: BTreeMap<String, String>,
}

impl Found {
    /// Where the coordinator is called from outside; none: there is none yet.
    pub(super) fn url(&self) -> Option<String> {
        let address = self.outputs.get("CoordinatorPublic").filter(|address| !address.is_empty());
        address.map(|address| format!("https://{address}:7070"))
    }
}

/// A cluster as a line of JSON.
#[derive(Serialize)]
struct ClusterObject<'a> {
    r#type: &'static str,
    name: &'a str,
    status: &'a str,
    coordinator: Option<String>,
    worker_type: &'a str,
    workers_wanted: u32,
    workers_running: usize,
}

/// Prints a cluster, of whose workers so many run.
pub(super) fn show(arguments: &ClusterArguments, found: &Found, running: usize) -> Result<(), Error> {
    let shape = Shape::of(&[], Some(found), &[]);
    let object = ClusterObject {
        r#type: "cluster",
        name: &arguments.name,
        status: &found.status,
        coordinator: found.url(),
        worker_type: shape.get("WorkerType"),
        workers_wanted: shape.workers(),
        workers_running: running,
    };
    let clients = Some(shape.get("Clients")).filter(|network| !network.is_empty());
    let inside = found.outputs.get("Coordinator").map(|address| format!(", inside https://{address}:7070"));
    let address = object.coordinator.clone().unwrap_or_else(|| "none yet".to_owned());
    let lines = [
        ("cluster", object.name.to_owned()),
        ("state", found.status.clone()),
        ("address", address + &inside.unwrap_or_default()),
        ("clients", clients.unwrap_or("nobody from outside: --clients CIDR").to_owned()),
        ("workers", format!("{running} of {} run, {}", object.workers_wanted, object.worker_type)),
    ];
    Ok(Output::new(arguments.output.output).data(&facts(&lines), &object)?)
}

/// Prints what a cluster costs.
pub(super) fn show_cost(arguments: &ClusterArguments, shape: &Shape, table: &str) -> Result<(), Error> {
    let cost = shape.cost(table)?;
    Ok(Output::new(arguments.output.output).data(&cost.text(), &cost)?)
}

/// Prints the templates that `up` would use, and what that costs.
pub(super) fn show_dry(
    arguments: &ClusterArguments,
    shape: &Shape,
    table: &str,
    templates: &str,
) -> Result<(), Error> {
    let cost = shape.cost(table)?;
    Output::new(arguments.output.output).data(templates, &cost)?;
    remark(&shape.text(&cost));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_goes_before_what_is_there_and_that_before_the_default() {
        let text = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let found = Found {
            parameters: text(&[("Workers", "4"), ("WorkerType", "m7i.8xlarge")]),
            ..Found::default()
        };
        let defaults = [("Workers", "2"), ("WorkerType", "m7i.4xlarge"), ("Spot", "false")];
        let shape = Shape::of(
            &defaults,
            Some(&found),
            &[("WorkerType", Some("m8i.large".to_owned())), ("Spot", None)],
        );
        assert_eq!(shape.0, text(&[("Workers", "4"), ("WorkerType", "m8i.large"), ("Spot", "false")]));
        assert_eq!((shape.workers(), shape.is_spot(), shape.get("Clients")), (4, false, ""));
    }
}

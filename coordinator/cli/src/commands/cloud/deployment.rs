//! A cluster on Azure: a resource group, which one deployment of a Bicep template fills.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::cluster::{Found, Shape, TAG};
use crate::{
    cloud_tool::{CloudError, CloudTool, strings},
    error::Error,
    output::remark,
};

pub(super) const TEMPLATE: &str = include_str!("../../../../../deploy/azure/cluster.bicep");
pub(super) const MACHINE: &str = include_str!("../../../../../deploy/azure/machine.sh");
/// The cluster's parameters as its template has them.
pub(super) const DEFAULTS: [(&str, &str); 7] = [
    ("Workers", "2"),
    ("WorkerType", "Standard_D16s_v6"),
    ("WorkerDisk", "100"),
    ("Spot", "false"),
    ("CoordinatorType", "Standard_D2s_v6"),
    ("CoordinatorDisk", "100"),
    ("Clients", ""),
];
/// The deployment's name in its group.
const DEPLOYMENT: &str = "ringtune";
/// Between two looks.
pub(super) const PAUSE: Duration = Duration::from_secs(2);

/// A cluster's resource group.
pub(super) struct Group<'a> {
    az: &'a CloudTool,
    pub(super) name: String,
    cluster: &'a str,
}

impl<'a> Group<'a> {
    pub(super) fn of(az: &'a CloudTool, cluster: &'a str) -> Self {
        Self { az, name: format!("ringtune-{cluster}"), cluster }
    }

    pub(super) fn none(&self) -> Error {
        Error::Usage(format!(
            "there is no cluster {} in this subscription (no resource group {}); `ringtune cloud azure up` makes one",
            self.cluster, self.name
        ))
    }

    /// Its region; none: there is no such group.
    pub(super) async fn region(&self) -> Result<Option<String>, Error> {
        let group = match self.az.ask(&["group", "show", "--name", &self.name]).await {
            Err(error) if error.refusal("ResourceGroupNotFound").is_some() => return Ok(None),
            group => group?,
        };
        let cluster = group["tags"][TAG].as_str().unwrap_or_default();
        if cluster != self.cluster {
            return Err(Error::Usage(format!(
                "there is a resource group {} that is not this cluster's (its tag {TAG} is {cluster:?}): take another NAME",
                self.name
            )));
        }
        Ok(group["location"].as_str().map(str::to_owned))
    }

    /// What was deployed; none: nothing yet.
    pub(super) async fn find(&self) -> Result<Option<Found>, Error> {
        let asked = ["deployment", "group", "show", "--resource-group", &self.name, "--name", DEPLOYMENT];
        match self.az.ask(&asked).await {
            Ok(answer) => Ok(Some(read(&answer["properties"]))),
            Err(error) if error.refusal("DeploymentNotFound").is_some() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Deploys the template, and waits until that is done.
    pub(super) async fn deploy(&self, shape: &Shape, owner: &str) -> Result<Found, Error> {
        let place = tempfile::tempdir().map_err(unwritten(Path::new("a temporary folder")))?;
        let [template, parameters] = ["cluster.bicep", "parameters.json"].map(|name| place.path().join(name));
        let values = written(shape, self.cluster, owner).to_string();
        for (file, text) in
            [(&template, TEMPLATE), (&place.path().join("machine.sh"), MACHINE), (&parameters, &values)]
        {
            fs::write(file, text).map_err(unwritten(file))?;
        }
        let [template, parameters] = [template.display().to_string(), format!("@{}", parameters.display())];
        let asked = ["deployment", "group", "create", "--resource-group", &self.name, "--name", DEPLOYMENT];
        let how = ["--template-file", &template, "--parameters", &parameters, "--no-wait"];
        self.az.ask(&[&asked[..], &how].concat()).await?;
        self.follow().await
    }

    /// Says what happens until the deployment is done; an error if it failed.
    pub(super) async fn follow(&self) -> Result<Found, Error> {
        let mut seen = BTreeMap::new();
        loop {
            let found = self.find().await?;
            let asked = ["deployment", "operation", "group", "list", "--resource-group", &self.name];
            let operations = self.az.ask(&[&asked[..], &["--name", DEPLOYMENT]].concat()).await?;
            for operation in operations.as_array().into_iter().flatten() {
                let about = &operation["properties"];
                let state = about["provisioningState"].as_str().unwrap_or_default().to_owned();
                let Some(name) = about["targetResource"]["resourceName"].as_str() else { continue };
                let kind = about["targetResource"]["resourceType"].as_str().unwrap_or_default();
                let text =
                    format!("{} {name} {}", kind.rsplit('/').next().unwrap_or(kind), state.to_lowercase());
                if seen.insert(operation["operationId"].to_string(), state.clone()) != Some(state) {
                    remark(&format!("{}: {text}", self.name));
                }
            }
            match found.as_ref().map(|found| found.status.as_str()) {
                Some("Succeeded") => return Ok(found.unwrap_or_default()),
                Some("Failed" | "Canceled") => {
                    let why = reason(&operations).unwrap_or_else(|| "Azure does not say why".to_owned());
                    return Err(Error::JobEnded(format!(
                        "the deployment in {} failed: {why}; `ringtune cloud azure up` tries again, `down` removes what is there",
                        self.name
                    )));
                }
                _ => sleep(PAUSE).await,
            }
        }
    }

    /// How many workers run.
    pub(super) async fn running(&self) -> Result<usize, Error> {
        let asked = ["vmss", "list-instances", "--resource-group", &self.name, "--name", "workers"];
        let states = match self.az.ask(&asked).await {
            Ok(answer) => strings(&answer, "provisioningState"),
            // A set that is not made yet.
            Err(CloudError::Refused { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(states.iter().filter(|state| *state == "Succeeded").count())
    }

    /// The key vaults of the cluster that are deleted, and that Azure keeps for a week.
    pub(super) async fn deleted_vaults(&self) -> Result<Vec<String>, Error> {
        let answer = self.az.ask(&["keyvault", "list-deleted", "--resource-type", "vault"]).await?;
        let all = answer.as_array().into_iter().flatten();
        let own = all.filter(|vault| vault["properties"]["tags"][TAG] == self.cluster);
        Ok(own.filter_map(|vault| Some(vault["name"].as_str()?.to_owned())).collect())
    }
}

fn unwritten(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::File { doing: "cannot write", path: path.to_owned(), source }
}

/// A deployment's properties. Azure may write an output's name in another case.
fn read(properties: &Value) -> Found {
    let pairs = |list: &Value| {
        let entries = list.as_object().into_iter().flatten();
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
            _ => None,
        };
        entries
            .filter_map(|(key, entry)| Some((first(key, char::to_ascii_uppercase), text(&entry["value"])?)))
            .collect()
    };
    Found {
        status: properties["provisioningState"].as_str().unwrap_or_default().to_owned(),
        parameters: pairs(&properties["parameters"]),
        outputs: pairs(&properties["outputs"]),
    }
}

/// A name with another first letter: the parameters of Bicep are those of CloudFormation, in small letters.
fn first(name: &str, case: impl Fn(&char) -> char) -> String {
    let mut letters = name.chars();
    letters.next().map(|letter| case(&letter)).into_iter().chain(letters).collect()
}

/// The parameters as a file of az.
fn written(shape: &Shape, name: &str, owner: &str) -> Value {
    let typed = |text: &String| match (text.parse::<u32>(), text.parse::<bool>()) {
        (Ok(number), _) => json!(number),
        (_, Ok(flag)) => json!(flag),
        _ => json!(text),
    };
    let mut all: Map<String, Value> = DEFAULTS
        .iter()
        .filter_map(|(key, _)| {
            let value = typed(shape.0.get(*key)?);
            Some((first(key, char::to_ascii_lowercase), json!({ "value": value })))
        })
        .collect();
    all.insert("name".to_owned(), json!({ "value": name }));
    all.insert("owner".to_owned(), json!({ "value": owner }));
    json!({
        "$schema": "https://schema.management.azure.com/schemas/2019-04-01/deploymentParameters.json#",
        "contentVersion": "1.0.0.0",
        "parameters": all,
    })
}

/// The innermost error of the first operation that failed.
fn reason(operations: &Value) -> Option<String> {
    let mut all = operations.as_array()?.iter();
    let failed = all.find(|operation| operation["properties"]["provisioningState"] == "Failed")?;
    let about = &failed["properties"];
    let mut error = &about["statusMessage"]["error"];
    while let Some(inner) = error["details"].as_array().and_then(|details| details.first()) {
        error = inner;
    }
    let name = about["targetResource"]["resourceName"].as_str().unwrap_or("the deployment");
    Some(format!("{name}: {}: {}", error["code"].as_str()?, error["message"].as_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_go_to_azure_and_come_back() {
        let shape = Shape::of(
            &DEFAULTS,
            None,
            &[("Workers", Some("4".to_owned())), ("Spot", Some("true".to_owned()))],
        );
        let parameters = written(&shape, "toy", "someone")["parameters"].take();
        assert_eq!(parameters["workers"]["value"], 4);
        assert_eq!(
            (&parameters["spot"]["value"], &parameters["owner"]["value"]),
            (&json!(true), &json!("someone"))
        );
        let found = read(&json!({ "provisioningState": "Succeeded", "parameters": parameters,
            "outputs": { "coordinatorPublic": { "type": "String", "value": "203.0.113.7" } } }));
        assert_eq!(found.url().as_deref(), Some("https://203.0.113.7:7070"));
        let again = Shape::of(&DEFAULTS, Some(&found), &[]);
        assert!(again.workers() == 4 && again.is_spot() && again.get("WorkerType") == "Standard_D16s_v6");
    }

    #[test]
    fn the_innermost_error_is_the_reason() {
        let failed = json!([
            { "properties": { "provisioningState": "Succeeded" } },
            { "properties": { "provisioningState": "Failed", "targetResource": { "resourceName": "workers" },
                "statusMessage": { "error": { "code": "ResourceDeploymentFailure", "message": "see details",
                    "details": [{ "code": "SkuNotAvailable", "message": "no capacity" }] } } } }]);
        assert_eq!(reason(&failed).as_deref(), Some("workers: SkuNotAvailable: no capacity"));
        assert_eq!(reason(&json!([])), None);
    }
}

//! Stacks of CloudFormation: what is there, and how one is made, changed and removed, event by event.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};

use super::cluster::{Found, Shape, TAG};
use crate::{
    cloud_tool::{CloudError, CloudTool},
    error::Error,
    output::remark,
};

/// Between two looks at a stack.
const PAUSE: Duration = Duration::from_secs(3);

/// A stack, and how to reach it.
#[derive(Debug)]
pub(super) struct Stack<'a> {
    pub(super) aws: &'a CloudTool,
    pub(super) name: String,
    /// The cluster's.
    pub(super) cluster: &'a str,
}

/// The stack of an answer of describe-stacks, and the cluster that its tag names.
fn read(answer: &Value) -> (Found, String) {
    let stack = &answer["Stacks"][0];
    let pairs = |list: &str, key: &str, value: &str| {
        let text = |pair: &Value, name: &str| pair[name].as_str().map(str::to_owned);
        let entries = stack[list].as_array().into_iter().flatten();
        entries.filter_map(|pair| Some((text(pair, key)?, text(pair, value)?))).collect::<BTreeMap<_, _>>()
    };
    let found = Found {
        status: stack["StackStatus"].as_str().unwrap_or_default().to_owned(),
        parameters: pairs("Parameters", "ParameterKey", "ParameterValue"),
        outputs: pairs("Outputs", "OutputKey", "OutputValue"),
    };
    (found, pairs("Tags", "Key", "Value").remove(TAG).unwrap_or_default())
}

fn is_under_way(found: &Found) -> bool {
    found.status.ends_with("_IN_PROGRESS")
}

/// Whether its last change, or its making, was taken back.
fn is_rolled_back(found: &Found) -> bool {
    found.status.contains("ROLLBACK") || found.status.ends_with("_FAILED")
}

impl Stack<'_> {
    /// None: there is no such stack.
    pub(super) async fn find(&self) -> Result<Option<Found>, Error> {
        let asked = ["cloudformation", "describe-stacks", "--stack-name", &self.name];
        let (found, cluster) = match self.aws.ask(&asked).await {
            Ok(answer) => read(&answer),
            Err(error) => {
                let refusal = error.refusal("ValidationError");
                if refusal.is_some_and(|text| text.contains("does not exist")) {
                    return Ok(None);
                }
                return Err(error.into());
            }
        };
        if cluster != self.cluster {
            return Err(Error::Usage(format!(
                "there is a stack {} that is not this cluster's (its tag {TAG} is {cluster:?}): take another NAME",
                self.name
            )));
        }
        Ok(Some(found))
    }

    /// Makes the stack, or changes the one that was `found`.
    pub(super) async fn apply(
        &self,
        template: &str,
        shape: &Shape,
        mut found: Option<Found>,
    ) -> Result<Found, Error> {
        // 1. What is under way is waited for; what was never whole is begun anew.
        if found.as_ref().is_some_and(is_under_way) {
            remark(&format!("{}: a change is under way, which is waited for", self.name));
            let seen = self.seen().await?;
            found = self.follow(seen).await?;
        }
        if found.as_ref().is_some_and(|found| found.status == "ROLLBACK_COMPLETE") {
            remark(&format!("{}: what is left of an earlier try is removed", self.name));
            self.remove().await?;
            found = None;
        }
        // 2. The change.
        let parameters = shape.0.iter();
        let parameters: Vec<Value> =
            parameters.map(|(key, value)| json!({ "ParameterKey": key, "ParameterValue": value })).collect();
        let parameters = Value::from(parameters).to_string();
        let tags = format!("Key={TAG},Value={}", self.cluster);
        let verb = if found.is_some() { "update-stack" } else { "create-stack" };
        let words = [
            "cloudformation",
            verb,
            "--stack-name",
            &self.name,
            "--template-body",
            template,
            "--parameters",
            &parameters,
            "--tags",
            &tags,
            "--capabilities",
            "CAPABILITY_IAM",
        ];
        let seen = if found.is_some() { self.seen().await? } else { BTreeSet::new() };
        match (self.aws.ask(&words).await, found) {
            (Ok(_), _) => {}
            (Err(error), Some(found)) if error.refusal("ValidationError").is_some_and(is_nothing) => {
                remark(&format!("{}: nothing to change", self.name));
                return Ok(found);
            }
            (Err(error), _) => return Err(error.into()),
        }
        // 3. Until it is done, or taken back.
        match self.follow(seen).await? {
            Some(done) if !is_rolled_back(&done) => Ok(done),
            _ => {
                let why = self.reason().await?;
                Err(Error::JobEnded(format!(
                    "the stack {} was rolled back: {why}; `ringtune cloud aws up` tries again, `down` removes what is left",
                    self.name
                )))
            }
        }
    }

    /// Removes the stack, and waits until it is gone.
    pub(super) async fn remove(&self) -> Result<(), Error> {
        let seen = self.seen().await?;
        self.aws.ask(&["cloudformation", "delete-stack", "--stack-name", &self.name]).await?;
        match self.follow(seen).await? {
            Some(found) if found.status == "DELETE_FAILED" => {
                let why = self.reason().await?;
                Err(Error::JobEnded(format!("the stack {} cannot be removed: {why}", self.name)))
            }
            _ => Ok(()),
        }
    }

    /// The events so far.
    async fn seen(&self) -> Result<BTreeSet<String>, Error> {
        Ok(self.events().await?.into_iter().map(|event| event.id).collect())
    }

    /// Says what happens until nothing is under way; none: the stack is gone.
    async fn follow(&self, mut seen: BTreeSet<String>) -> Result<Option<Found>, Error> {
        loop {
            let (found, events) = tokio::join!(self.find(), self.events());
            let found = found?.filter(|found| found.status != "DELETE_COMPLETE");
            for event in events.unwrap_or_default().into_iter().rev() {
                if seen.insert(event.id.clone()) {
                    remark(&format!("{}: {}", self.name, event.text()));
                }
            }
            match found {
                Some(found) if is_under_way(&found) => tokio::time::sleep(PAUSE).await,
                found => return Ok(found),
            }
        }
    }

    /// The newest first; none of a stack that is not there.
    async fn events(&self) -> Result<Vec<Event>, Error> {
        let asked =
            ["cloudformation", "describe-stack-events", "--stack-name", &self.name, "--max-items", "100"];
        match self.aws.ask(&asked).await {
            Ok(answer) => Ok(answer["StackEvents"].as_array().into_iter().flatten().map(Event::of).collect()),
            Err(CloudError::Refused { code, .. }) if code == "ValidationError" => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Why something failed last: the first failure, which the others follow.
    async fn reason(&self) -> Result<String, Error> {
        Ok(reason(&self.events().await?).unwrap_or_else(|| "CloudFormation does not say why".to_owned()))
    }
}

/// Whether an update would change nothing.
fn is_nothing(refusal: &str) -> bool {
    refusal.contains("No updates")
}

/// Something that happened to a resource of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Event {
    id: String,
    resource: String,
    status: String,
    reason: String,
}

impl Event {
    fn of(value: &Value) -> Self {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        Self {
            id: text("EventId"),
            resource: text("LogicalResourceId"),
            status: text("ResourceStatus"),
            reason: text("ResourceStatusReason"),
        }
    }

    fn text(&self) -> String {
        let status = self.status.to_lowercase().replace('_', " ");
        match self.reason.is_empty() {
            true => format!("{} {status}", self.resource),
            false => format!("{} {status}: {}", self.resource, self.reason),
        }
    }
}

/// The first failure of the last change; events come newest first.
fn reason(events: &[Event]) -> Option<String> {
    let failed = |event: &&Event| event.status.ends_with("_FAILED") && !event.reason.contains("cancelled");
    events.iter().rfind(failed).map(|event| format!("{}: {}", event.resource, event.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_the_reason() {
        let event = |resource: &str, status: &str, reason: &str| Event {
            id: resource.to_owned(),
            resource: resource.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
        };
        let events = [
            event(
                "ringtune-toy",
                "ROLLBACK_IN_PROGRESS",
                "The following resource(s) failed to create: [Group]",
            ),
            event("WorkerRole", "CREATE_FAILED", "Resource creation cancelled"),
            event("Group", "CREATE_FAILED", "You have requested more vCPU capacity than your limit"),
            event("Machines", "CREATE_COMPLETE", ""),
        ];
        assert_eq!(
            reason(&events).as_deref(),
            Some("Group: You have requested more vCPU capacity than your limit")
        );
        assert_eq!(reason(&events[3..]), None);
        assert_eq!(events[3].text(), "Machines create complete");
    }

    #[test]
    fn a_stack_is_read_as_aws_describes_it() {
        let answer = json!({ "Stacks": [{ "StackStatus": "UPDATE_ROLLBACK_COMPLETE",
            "Parameters": [{ "ParameterKey": "Workers", "ParameterValue": "2" }],
            "Outputs": [{ "OutputKey": "Group", "OutputValue": "g" }],
            "Tags": [{ "Key": "ringtune", "Value": "toy" }] }] });
        let (found, cluster) = read(&answer);
        assert_eq!((found.parameters["Workers"].as_str(), found.outputs["Group"].as_str()), ("2", "g"));
        assert!(cluster == "toy" && is_rolled_back(&found) && !is_under_way(&found));
    }
}

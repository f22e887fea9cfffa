//! The metadata service of Azure. Source: "Scheduled Events for Linux VMs" and "Azure Instance Metadata Service" in its
//! documentation.

use reqwest::{
    Method,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use serde::Deserialize;
use serde_json::json;

use super::{
    Machine, Notice,
    service::{Service, Trouble},
};

const EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";
const COMPUTE: &str = "/metadata/instance/compute?api-version=2021-02-01";
/// What takes the machine away. A freeze lasts seconds: its ring goes on without it, and takes it back.
const TAKEN: [&str; 4] = ["Preempt", "Terminate", "Reboot", "Redeploy"];

#[derive(Deserialize)]
struct Compute {
    name: String,
    #[serde(rename = "vmSize")]
    size: String,
    #[serde(default)]
    zone: String,
}

/// What this machine is about to meet, if anything.
pub(super) async fn notice(service: &Service) -> Result<Option<Notice>, Trouble> {
    let Some(text) = get(service, EVENTS).await? else { return Ok(None) };
    let events = service.read(EVENTS, events(&text))?;
    if events.is_empty() {
        return Ok(None);
    }
    // They are of all machines of a scale set.
    let own = compute(service).await?.name;
    Ok(events.into_iter().find(|event| event.resources.contains(&own)).map(Event::notice))
}

/// What kind of machine it is.
pub(super) async fn machine(service: &Service) -> Result<Machine, Trouble> {
    let Compute { size, zone, .. } = compute(service).await?;
    Ok(Machine { is_burstable: size.starts_with("Standard_B"), kind: size, zone })
}

/// Says that the machine may go at once: the worker has left.
pub(super) async fn acknowledge(service: &Service, event: &str) -> Result<(), Trouble> {
    let body = json!({ "StartRequests": [{ "EventId": event }] }).to_string();
    service.ask(Method::POST, EVENTS, headers(), body).await.map(drop)
}

async fn compute(service: &Service) -> Result<Compute, Trouble> {
    let text = get(service, COMPUTE).await?.unwrap_or_default();
    service.read(COMPUTE, serde_json::from_str(&text).map_err(|error| error.to_string()))
}

async fn get(service: &Service, path: &str) -> Result<Option<String>, Trouble> {
    service.ask(Method::GET, path, headers(), String::new()).await
}

/// Which no browser sends by itself.
fn headers() -> HeaderMap {
    HeaderMap::from_iter([(HeaderName::from_static("metadata"), HeaderValue::from_static("true"))])
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    events: Vec<Event>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Event {
    event_id: String,
    event_type: String,
    event_status: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    not_before: String,
}

impl Event {
    fn notice(self) -> Notice {
        let begun = self.event_status == "Started";
        let when = if begun || self.not_before.is_empty() { "now" } else { &self.not_before };
        Notice {
            reason: format!("{} of the machine: {when}", self.event_type),
            event: (!begun).then_some(self.event_id),
        }
    }
}

/// Those that take machines away.
fn events(text: &str) -> Result<Vec<Event>, String> {
    let Document { events } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(events.into_iter().filter(|event| TAKEN.contains(&event.event_type.as_str())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_a_machine_away_is_a_notice_with_what_acknowledges_it() {
        let text = r#"{"DocumentIncarnation": 2, "Events": [
            {"EventId": "f", "EventType": "Freeze", "ResourceType": "VirtualMachine", "Resources": ["a"],
             "EventStatus": "Scheduled", "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT"},
            {"EventId": "p", "EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": ["a", "b"],
             "EventStatus": "Scheduled", "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT", "Description": "", "EventSource": "Platform"},
            {"EventId": "r", "EventType": "Reboot", "Resources": ["b"], "EventStatus": "Started", "NotBefore": ""}]}"#;
        let notices: Vec<Notice> = events(text).unwrap().into_iter().map(Event::notice).collect();
        assert_eq!(
            notices,
            [
                Notice {
                    reason: "Preempt of the machine: Mon, 19 Sep 2016 18:29:47 GMT".to_owned(),
                    event: Some("p".to_owned())
                },
                Notice { reason: "Reboot of the machine: now".to_owned(), event: None },
            ]
        );
        assert!(events(r#"{"DocumentIncarnation": 1, "Events": []}"#).unwrap().is_empty());
        for wrong in ["", "[]", "<html>", r#"{"Events": [{"EventId": 1}]}"#] {
            assert!(events(wrong).is_err(), "{wrong}");
        }
    }
}

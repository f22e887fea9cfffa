//! The metadata service of EC2, version 2. Source: "Spot Instance interruption notices", "EC2 instance rebalance
//! recommendations" and "View scheduled events" in the user guide of EC2.

use std::time::{Duration, SystemTime};

use reqwest::{
    Method,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use serde::Deserialize;

use super::{
    Machine, Notice,
    service::{Service, Trouble},
};

const TOKEN: &str = "/latest/api/token";
/// Seconds; a new one is had for each round of questions.
const TOKEN_LIFE: &str = "60";
const SPOT: &str = "/latest/meta-data/spot/instance-action";
const REBALANCE: &str = "/latest/meta-data/events/recommendations/rebalance";
const SCHEDULED: &str = "/latest/meta-data/events/maintenance/scheduled";
const KIND: &str = "/latest/meta-data/instance-type";
const ZONE: &str = "/latest/meta-data/placement/availability-zone";
/// Events are announced up to two weeks ahead. So long before one begins the worker leaves.
const LEAD: Duration = Duration::from_secs(120);
/// Families whose processors are held back once their credits are spent.
const BURSTABLE: [&str; 4] = ["t2.", "t3.", "t3a.", "t4g."];

/// What the machine is about to meet, if anything.
pub(super) async fn notice(service: &Service, now: SystemTime) -> Result<Option<Notice>, Trouble> {
    let headers = credentials(service).await?;
    if let Some(text) = get(service, SPOT, &headers).await? {
        return service.read(SPOT, spot(&text)).map(Some);
    }
    if let Some(text) = get(service, REBALANCE, &headers).await? {
        return service.read(REBALANCE, rebalance(&text)).map(Some);
    }
    match get(service, SCHEDULED, &headers).await? {
        Some(text) => service.read(SCHEDULED, scheduled(&text, now)),
        None => Ok(None),
    }
}

/// What kind of machine it is.
pub(super) async fn machine(service: &Service) -> Result<Machine, Trouble> {
    let headers = credentials(service).await?;
    let kind = get(service, KIND, &headers).await?.unwrap_or_default();
    let zone = get(service, ZONE, &headers).await?.unwrap_or_default();
    let is_burstable = BURSTABLE.iter().any(|family| kind.starts_with(family));
    Ok(Machine { kind, zone, is_burstable })
}

/// Version 2 answers whoever has a token of it, and gives one to whoever is on the machine.
async fn credentials(service: &Service) -> Result<HeaderMap, Trouble> {
    let name = |name| HeaderName::from_static(name);
    let life = HeaderMap::from_iter([(
        name("x-aws-ec2-metadata-token-ttl-seconds"),
        HeaderValue::from_static(TOKEN_LIFE),
    )]);
    let token = service.ask(Method::PUT, TOKEN, life, String::new()).await?.unwrap_or_default();
    let value = HeaderValue::from_str(token.trim()).map_err(|_| "it is no token".to_owned());
    Ok(HeaderMap::from_iter([(name("x-aws-ec2-metadata-token"), service.read(TOKEN, value)?)]))
}

async fn get(service: &Service, path: &str, headers: &HeaderMap) -> Result<Option<String>, Trouble> {
    service.ask(Method::GET, path, headers.clone(), String::new()).await
}

#[derive(Deserialize)]
struct SpotAction {
    action: String,
    time: String,
}

fn spot(text: &str) -> Result<Notice, String> {
    let SpotAction { action, time } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(Notice { reason: format!("spot interruption: {action} at {time}"), event: None })
}

#[derive(Deserialize)]
struct Rebalance {
    #[serde(rename = "noticeTime")]
    notice_time: String,
}

fn rebalance(text: &str) -> Result<Notice, String> {
    let Rebalance { notice_time } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(Notice { reason: format!("rebalance recommendation of {notice_time}"), event: None })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Scheduled {
    code: String,
    state: String,
    not_before: String,
}

/// The first event that begins soon.
fn scheduled(text: &str, now: SystemTime) -> Result<Option<Notice>, String> {
    let events: Vec<Scheduled> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    for Scheduled { code, not_before, .. } in events.into_iter().filter(|event| event.state == "active") {
        if begin(&not_before)? <= now + LEAD {
            return Ok(Some(Notice { reason: format!("{code} at {not_before}"), event: None }));
        }
    }
    Ok(None)
}

/// "21 Jan 2019 09:00:43 GMT".
fn begin(text: &str) -> Result<SystemTime, String> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let parts: Vec<&str> = text.split_whitespace().collect();
    let wrong = || format!("{text:?} is no time");
    let [day, month, year, clock, "GMT"] = parts[..] else { return Err(wrong()) };
    let month = MONTHS.iter().position(|name| *name == month).ok_or_else(wrong)? + 1;
    humantime::parse_rfc3339(&format!("{year}-{month:02}-{day:0>2}T{clock}Z")).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SystemTime {
        humantime::parse_rfc3339(text).unwrap()
    }

    #[test]
    fn an_interruption_and_a_recommendation_are_notices() {
        let reason = |read: Result<Notice, String>| read.unwrap().reason;
        let text = r#"{"action": "terminate", "time": "2017-09-18T08:22:00Z"}"#;
        assert_eq!(reason(spot(text)), "spot interruption: terminate at 2017-09-18T08:22:00Z");
        let text = r#"{"noticeTime": "2020-10-27T08:22:00Z"}"#;
        assert_eq!(reason(rebalance(text)), "rebalance recommendation of 2020-10-27T08:22:00Z");
        for wrong in ["", "<html>", "[]", r#"{"action": 3}"#] {
            assert!(spot(wrong).is_err() && rebalance(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_scheduled_event_is_a_notice_when_it_begins_soon() {
        let events = |state: &str, not_before: &str| {
            format!(
                r#"[{{"NotBefore": "1 Jan 2030 00:00:00 GMT", "Code": "system-reboot", "State": "completed"}},
                    {{"NotBefore": "{not_before}", "Code": "instance-retirement", "State": "{state}", "EventId": "e"}}]"#
            )
        };
        let now = at("2019-01-21T08:59:00Z");
        let soon = scheduled(&events("active", "21 Jan 2019 09:00:43 GMT"), now).unwrap().unwrap();
        assert_eq!(soon.reason, "instance-retirement at 21 Jan 2019 09:00:43 GMT");
        for (state, not_before) in
            [("active", "21 Jan 2019 09:01:43 GMT"), ("canceled", "21 Jan 2019 09:00:43 GMT")]
        {
            assert_eq!(scheduled(&events(state, not_before), now), Ok(None), "{state} {not_before}");
        }
        assert_eq!(scheduled("[]", now), Ok(None));
        assert!(scheduled(&events("active", "soon"), now).unwrap_err().contains("\"soon\" is no time"));
        assert!(scheduled("{}", now).is_err());
        assert_eq!(begin("1 Feb 2030 00:00:01 GMT"), Ok(at("2030-02-01T00:00:01Z")));
    }
}

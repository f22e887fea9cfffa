//! The metadata services of EC2 and of Azure, as a machine of theirs meets them.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{Response, StatusCode},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::Bucket;

/// What EC2 gives whoever is on the machine.
const TOKEN: &str = "a-token-of-the-machine";
/// Of the machine, which opens buckets.
pub const ROLE: &str = "ringtune-worker-role";

/// What a service says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Says {
    /// The machine stays.
    #[default]
    Nothing,
    /// The machine is taken away.
    Taken,
    /// It may be taken away soon: a recommendation of EC2.
    Rebalance,
    /// The machine is started again just now: an event of EC2.
    Event,
    /// Something about other machines: an event of Azure.
    Others,
    /// Nothing, for minutes.
    Hangs,
    /// What makes no sense.
    Lies,
    /// That it has failed.
    Fails,
}

/// A running service; it ends with the test.
#[derive(Debug, Clone)]
pub struct Metadata {
    /// For cloud.endpoint.
    pub endpoint: String,
    served: Served,
}

#[derive(Debug, Clone, Default)]
struct Served {
    says: Arc<Mutex<Says>>,
    /// Paths that were asked for, and events that were acknowledged.
    heard: Arc<Mutex<Vec<String>>>,
}

impl Metadata {
    /// Says nothing at first.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let served = Served::default();
        let router = Router::new().fallback(answer).with_state(served.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { endpoint, served })
    }

    /// From now on.
    pub fn says(&self, says: Says) {
        *self.served.says.lock().unwrap_or_else(PoisonError::into_inner) = says;
    }

    /// Paths that were asked for so far, and `acknowledged EVENT`.
    pub fn heard(&self) -> Vec<String> {
        self.served.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn answer(State(served): State<Served>, request: Request) -> Response<Body> {
    let says = *served.says.lock().unwrap_or_else(PoisonError::into_inner);
    let (parts, body) = request.into_parts();
    let header =
        |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let path = parts.uri.path();
    let hear = |what: String| served.heard.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    hear(path.to_owned());
    let with = |status: StatusCode, text: String| {
        let mut answer = Response::new(Body::from(text));
        *answer.status_mut() = status;
        answer
    };
    let nothing = || with(StatusCode::NOT_FOUND, String::new());
    let right = |text: Value| with(StatusCode::OK, text.to_string());
    match says {
        Says::Hangs => return std::future::pending().await,
        Says::Lies => return with(StatusCode::OK, "<html>sign in</html>".to_owned()),
        Says::Fails => return with(StatusCode::INTERNAL_SERVER_ERROR, String::new()),
        _ => {}
    }
    if path.starts_with("/latest/") {
        if path == "/latest/api/token" {
            let asked = parts.method == "PUT" && !header("x-aws-ec2-metadata-token-ttl-seconds").is_empty();
            return if asked {
                with(StatusCode::OK, TOKEN.to_owned())
            } else {
                with(StatusCode::BAD_REQUEST, String::new())
            };
        }
        if header("x-aws-ec2-metadata-token") != TOKEN {
            return with(StatusCode::UNAUTHORIZED, String::new());
        }
        return match (path, says) {
            ("/latest/meta-data/instance-type", _) => with(StatusCode::OK, "m7i.4xlarge".to_owned()),
            ("/latest/meta-data/public-ipv4", _) => with(StatusCode::OK, "203.0.113.9".to_owned()),
            ("/latest/meta-data/iam/security-credentials/", _) => with(StatusCode::OK, ROLE.to_owned()),
            (path, _) if path.ends_with(ROLE) => right(json!({
                "AccessKeyId": "of-the-role", "SecretAccessKey": Bucket::SECRET, "Token": "of-the-role",
                "Expiration": "2090-01-01T00:00:00Z"
            })),
            ("/latest/meta-data/placement/availability-zone", _) => {
                with(StatusCode::OK, "eu-west-1a".to_owned())
            }
            ("/latest/meta-data/spot/instance-action", Says::Taken) => {
                right(json!({ "action": "terminate", "time": "2030-01-01T00:00:00Z" }))
            }
            ("/latest/meta-data/events/recommendations/rebalance", Says::Rebalance) => {
                right(json!({ "noticeTime": "2030-01-01T00:00:00Z" }))
            }
            ("/latest/meta-data/events/maintenance/scheduled", Says::Event) => right(json!([
                { "Code": "system-reboot", "State": "active", "NotBefore": "21 Jan 2019 09:00:43 GMT", "EventId": "e" }
            ])),
            _ => nothing(),
        };
    }
    if header("metadata") != "true" {
        return with(StatusCode::BAD_REQUEST, String::new());
    }
    match (path, parts.method.as_str()) {
        ("/metadata/instance/compute", "GET") => {
            right(json!({ "name": "workers_1", "vmSize": "Standard_D4s_v6", "zone": "1" }))
        }
        ("/metadata/scheduledevents", "GET") => {
            let event = |resource: &str| {
                json!({ "EventId": "e-1", "EventType": "Preempt", "EventStatus": "Scheduled", "Resources": [resource],
                        "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT" })
            };
            let events = match says {
                Says::Taken => vec![event("workers_1")],
                Says::Others => vec![event("workers_2")],
                _ => Vec::new(),
            };
            right(json!({ "DocumentIncarnation": 1, "Events": events }))
        }
        ("/metadata/scheduledevents", "POST") => {
            let bytes = to_bytes(body, 1 << 16).await.unwrap_or_default();
            let said: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let event = said["StartRequests"][0]["EventId"].as_str().unwrap_or("none");
            hear(format!("acknowledged {event}"));
            with(StatusCode::OK, String::new())
        }
        _ => nothing(),
    }
}

//! Who looks; login and logout.
//!
//! A login is a cookie with the access token. Everything that is asked with it is asked as with a bearer token.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, SET_COOKIE};
use http::{HeaderValue, StatusCode};
use ringtune_proto::v1::{self, access_service_client::AccessServiceClient};
use ringtune_security::Role;
use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

use crate::answer::JSON;
use crate::caller::Caller;
use crate::{Gateway, answer, cookie};

/// Bytes of a login.
const LARGEST_LOGIN: usize = 16 << 10;

/// What the page asks first.
#[derive(Debug, Serialize)]
struct Session {
    /// Callers are asked who they are.
    secured: bool,
    /// "open": nobody is asked; "none": nobody knows who looks; "token"; "certificate".
    login: &'static str,
    name: String,
    role: &'static str,
    version: &'static str,
    /// What whoever looks may call: "JobService/CancelJob".
    methods: Vec<String>,
}

/// A login.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    token: String,
}

pub(crate) async fn session(State(gateway): State<Arc<Gateway>>, caller: Caller) -> Response {
    match look(&gateway, &caller).await {
        Ok((session, stale)) => {
            let mut response = Response::new(Body::from(serde_json::to_vec(&session).unwrap_or_default()));
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, JSON);
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            if stale {
                headers.insert(SET_COOKIE, cookie::gone());
            }
            response
        }
        Err(status) => answer::error(&status),
    }
}

/// Who looks, and whether the cookie is of no use any more.
async fn look(gateway: &Gateway, caller: &Caller) -> Result<(Session, bool), Status> {
    let options = &gateway.options;
    let nobody = Session {
        secured: options.secured,
        login: if options.secured { "none" } else { "open" },
        name: String::new(),
        role: "",
        version: options.version,
        methods: if options.secured { Vec::new() } else { (options.methods)(None, false) },
    };
    if !options.secured || caller.is_nobody() {
        return Ok((nobody, false));
    }
    match who_am_i(gateway, caller).await {
        Ok(who) => {
            let certified = caller.is_certified();
            let role = role(who.role());
            let session = Session {
                login: if certified { "certificate" } else { "token" },
                name: who.name,
                role: role.map_or("", Role::as_str),
                methods: (options.methods)(role, certified),
                ..nobody
            };
            Ok((session, false))
        }
        Err(status) if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) => {
            Ok((nobody, caller.has_stale_cookie(&status)))
        }
        Err(status) => Err(status),
    }
}

async fn who_am_i(gateway: &Gateway, caller: &Caller) -> Result<v1::WhoAmIResponse, Status> {
    let mut access = AccessServiceClient::new(gateway.options.calls.clone());
    Ok(access.who_am_i(caller.call(v1::WhoAmIRequest {})?).await?.into_inner())
}

fn role(wire: v1::Role) -> Option<Role> {
    match wire {
        v1::Role::Unspecified => None,
        v1::Role::Worker => Some(Role::Worker),
        v1::Role::Submitter => Some(Role::Submitter),
        v1::Role::Observer => Some(Role::Observer),
        v1::Role::Admin => Some(Role::Admin),
    }
}

pub(crate) async fn login(State(gateway): State<Arc<Gateway>>, caller: Caller, request: Request) -> Response {
    match cookie_for(&gateway, &caller, request.into_body()).await {
        Ok(cookie) => done(cookie),
        Err(status) => answer::error(&status),
    }
}

async fn cookie_for(gateway: &Gateway, caller: &Caller, body: Body) -> Result<HeaderValue, Status> {
    if !gateway.options.secured {
        let text = "nobody is asked who they are here: no login is needed";
        return Err(Status::failed_precondition(text));
    }
    if caller.is_certified() {
        let text = "your certificate says who you are: no login is needed";
        return Err(Status::failed_precondition(text));
    }
    let body = axum::body::to_bytes(body, LARGEST_LOGIN).await.map_err(|error| {
        Status::invalid_argument(format!(
            "the login could not be read ({error}); allowed: {LARGEST_LOGIN} bytes"
        ))
    })?;
    // What was given is not said again: it may be nearly a token.
    let login: Login = serde_json::from_slice(&body)
        .map_err(|_| Status::invalid_argument("allowed: {\"token\":\"…\"} with an access token"))?;
    let token = login.token.trim();
    let who = who_am_i(gateway, &caller.with_token(token)).await?;
    let ends = who.expire_time.and_then(|time| SystemTime::try_from(time).ok());
    let left = ends.and_then(|ends| ends.duration_since(SystemTime::now()).ok()).unwrap_or(Duration::ZERO);
    cookie::set(token, left)
        .ok_or_else(|| Status::unauthenticated("the token has characters that no token has"))
}

pub(crate) async fn logout() -> Response {
    done(cookie::gone())
}

fn done(cookie: HeaderValue) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(SET_COOKIE, cookie);
    response
}

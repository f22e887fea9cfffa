//! The audit log: a line for each call that changes something, made or not.

use std::time::Instant;

use ringtune_shared::daemon::logging::AUDIT;
use tracing::info;

use super::caller::{Call, Caller, Proof};
use super::table::Row;

/// A call that is to have a line. No part of it is secret.
#[derive(Debug)]
pub struct Audit {
    method: &'static str,
    call: Call,
    began: Instant,
}

impl Audit {
    /// Of a call that begins now; none where its method changes nothing.
    pub fn of(row: &Row, call: &Call) -> Option<Self> {
        row.changes.then(|| Self { method: row.name(), call: call.clone(), began: Instant::now() })
    }

    /// Writes the line. `code`: what the caller was answered, as gRPC names it. `denied`: why the call was not made.
    pub fn write(self, code: &str, denied: Option<&str>) {
        let (role, name, proof) = match self.call.caller() {
            Caller::Known(known) => {
                let proof = match &known.proof {
                    Proof::Certificate(serial) => format!("certificate {serial}"),
                    Proof::Token(id, _) => format!("token {id}"),
                };
                (known.role.as_str(), known.name.as_str(), proof)
            }
            Caller::Refused(reason) => ("", "", reason.clone()),
            Caller::Anonymous | Caller::Open => ("", "", String::new()),
        };
        info!(
            target: AUDIT,
            method = self.method,
            subject = self.call.subject(),
            role,
            name,
            proof,
            address = %self.call.address(),
            code,
            denied,
            seconds = self.began.elapsed().as_secs_f64(),
            "call"
        );
    }
}

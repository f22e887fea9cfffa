//! The audit log: a line for each call that changes something; where it is known who calls, for those that are not made, too.

use std::time::Instant;

use ringtune_shared::daemon::logging::AUDIT;
use tracing::info;

use super::caller::{Call, Caller, Proof};
use super::table::Row;

/// The code of a call that was made.
const MADE: &str = "OK";

/// A call that is to have a line. No part of it is secret.
#[derive(Debug)]
pub struct Audit {
    method: &'static str,
    often: bool,
    call: Call,
    began: Instant,
}

impl Audit {
    /// Of a call that begins now; none where its method changes nothing.
    pub fn of(row: &Row, call: &Call) -> Option<Self> {
        let began = Instant::now();
        row.changes.then(|| Self { method: row.name(), often: row.often, call: call.clone(), began })
    }

    /// Writes the line. `code`: what the caller was answered, as gRPC names it. `denied`: why the call was not made. What a
    /// stranger is denied is only counted: anybody could fill the log with it. What is called often has a line only where it
    /// came to nothing.
    pub fn write(self, code: &str, denied: Option<&str>) {
        if self.often && code == MADE {
            return;
        }
        if matches!(self.call.caller(), Caller::Anonymous | Caller::Refused(_)) && code != MADE {
            return;
        }
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

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Write as _};
    use std::sync::{Arc, Mutex};

    use ringtune_security::{Cluster, Role, TokenId};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::super::caller::Known;
    use super::super::table::grpc_row;
    use super::*;
    use crate::core::Time;

    /// Keeps the lines of the audit log.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let _ = write!(self.0, "{}={value:?} ", field.name());
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == AUDIT
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = Line(String::new());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_line_says_who_did_what_and_how_it_ended() {
        let lines = Lines::default();
        let known = |proof| {
            let (cluster, name) = (Cluster::random(), "ada".to_owned());
            Caller::Known(Known { cluster, role: Role::Submitter, name, proof })
        };
        let row = |method| grpc_row(&format!("/ringtune.v1.JobService/{method}")).unwrap();
        tracing::subscriber::with_default(lines.clone(), || {
            let call = |caller, method| Call::new(caller, ([10, 0, 0, 1], 5000).into(), Some(row(method)));
            let cancel = call(known(Proof::Certificate("0aff".to_owned())), "CancelJob");
            let audit = Audit::of(row("CancelJob"), &cancel).unwrap();
            cancel.about("job-1");
            cancel.about("another word");
            audit.write("OK", None);
            let delete = call(known(Proof::Token(TokenId::from([1; 8]), Time(1))), "DeleteJob");
            Audit::of(row("DeleteJob"), &delete).unwrap().write("NOT_FOUND", None);
            let nobody = call(Caller::Anonymous, "CreateJob");
            Audit::of(row("CreateJob"), &nobody).unwrap().write("UNAUTHENTICATED", Some("no token"));
            Audit::of(row("CreateJob"), &nobody).unwrap().write("OK", None);
            let other = call(known(Proof::Certificate("0aff".to_owned())), "CreateJob");
            Audit::of(row("CreateJob"), &other).unwrap().write("PERMISSION_DENIED", Some("no role"));
            assert!(Audit::of(row("GetJob"), &nobody).is_none(), "it changes nothing");
            let upload = grpc_row("/ringtune.v1.ArtifactService/Upload").unwrap();
            Audit::of(upload, &other).unwrap().write("OK", None);
            Audit::of(upload, &other).unwrap().write("RESOURCE_EXHAUSTED", Some("over quota"));
        });
        let lines = lines.0.lock().unwrap();
        let has = |line: usize, words: &[&str]| {
            for word in words {
                assert!(lines[line].contains(word), "{word}: {}", lines[line]);
            }
        };
        assert_eq!(lines.len(), 5, "what a stranger is denied has no line, and no upload that went well");
        has(4, &["method=\"Upload\"", "code=\"RESOURCE_EXHAUSTED\""]);
        has(0, &["method=\"CancelJob\"", "subject=\"job-1\"", "role=\"submitter\"", "name=\"ada\""]);
        has(0, &["proof=\"certificate 0aff\"", "address=10.0.0.1:5000", "code=\"OK\"", "seconds="]);
        has(1, &["proof=\"token 0101010101010101\"", "code=\"NOT_FOUND\""]);
        has(2, &["code=\"OK\"", "role=\"\""]);
        has(3, &["code=\"PERMISSION_DENIED\"", "denied=\"no role\""]);
    }
}
